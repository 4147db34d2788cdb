package peers

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

// rules are NetworkPolicies and ClusterNetworkPolicies by name, in JSON.
var rules = map[string]string{
	"own": `{"kind": "NetworkPolicy", "metadata": {"name": "own", "namespace": "shop"}, "spec": {"podSelector": {},
		"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]}}`,
	"of others": `{"kind": "NetworkPolicy", "metadata": {"name": "others", "namespace": "far"}, "spec": {"podSelector": {},
		"ingress": [{"from": [{"namespaceSelector": {}}]}]}}`,
	"of no pod here": `{"kind": "NetworkPolicy", "metadata": {"name": "none", "namespace": "shop"},
		"spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}}`,
	"by label": `{"kind": "NetworkPolicy", "metadata": {"name": "label", "namespace": "shop"}, "spec": {"podSelector": {},
		"egress": [{"to": [{"namespaceSelector": {"matchLabels": {"team": "x"}}}]}]}}`,
	"all": `{"kind": "NetworkPolicy", "metadata": {"name": "all", "namespace": "shop"}, "spec": {"podSelector": {},
		"egress": [{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}]}]}}`,
	"networks": `{"kind": "NetworkPolicy", "metadata": {"name": "net", "namespace": "shop"}, "spec": {"podSelector": {},
		"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}}`,
	"named port": `{"kind": "NetworkPolicy", "metadata": {"name": "port", "namespace": "shop"}, "spec": {"podSelector": {},
		"policyTypes": ["Egress"], "egress": [{"ports": [{"port": "dns", "protocol": "UDP"}]}]}}`,
	"named port of its own": `{"kind": "NetworkPolicy", "metadata": {"name": "in", "namespace": "shop"},
		"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}}`,
	"cluster": `{"kind": "ClusterNetworkPolicy", "metadata": {"name": "c"}, "spec": {"tier": "Admin", "priority": 1,
		"subject": {"namespaces": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["x", ""]}]}},
		"ingress": [{"action": "Deny", "from": [{"namespaces": {"matchLabels": {"team": "x"}}}]}]}}`,
	"pass": `{"kind": "ClusterNetworkPolicy", "metadata": {"name": "pass"}, "spec": {"tier": "Admin", "priority": 1,
		"subject": {"namespaces": {"matchLabels": {"team": "shop"}}},
		"egress": [{"action": "Pass", "to": [{"namespaces": {"matchLabels": {"team": "x"}}}]},
			{"action": "Accept", "to": [{"networks": ["0.0.0.0/0"]}]}]}}`,
	"isolated": `{"kind": "NetworkPolicy", "metadata": {"name": "isolated", "namespace": "shop"},
		"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}`,
}

func world(t *testing.T, names ...string) map[feed.Key]any {
	t.Helper()
	out := map[feed.Key]any{
		{Kind: feed.Namespace, Name: "shop"}: policy.Namespace{Name: "shop", Labels: map[string]string{"team": "shop"}},
		{Kind: feed.Namespace, Name: "far"}:  policy.Namespace{Name: "far", Labels: map[string]string{"team": "x"}},
		{Kind: feed.Namespace, Name: "x"}:    policy.Namespace{Name: "x", Labels: map[string]string{"team": "x"}},
		{Kind: feed.Node, Name: "n"}:         policy.Node{Name: "n"},
		{Kind: feed.Pod, Name: "shop/web"}: &policy.Pod{PodKey: policy.PodKey{Namespace: "shop", Name: "web"}, Local: true,
			Labels: map[string]string{"app": "web"}},
		{Kind: feed.Pod, Name: "far/host"}: &policy.Pod{PodKey: policy.PodKey{Namespace: "far", Name: "host"}, Local: true,
			HostNetwork: true},
	}
	for _, name := range names {
		parse := policy.ParseNetworkPolicy
		if strings.Contains(rules[name], "Cluster") {
			parse = policy.ParseClusterNetworkPolicy
		}
		p, err := parse([]byte(rules[name]))
		if err != nil || len(p.Problems) > 0 {
			t.Fatal(name, err, p.Problems)
		}
		out[feed.Key{Kind: p.Kind, Name: name}] = p
	}
	return out
}

func TestNeed(t *testing.T) {
	for name, want := range map[string][]string{
		"own": {"shop"}, "of others": nil, "of no pod here": nil, "by label": {"far", "x"}, "all": {everywhere},
		"networks": nil, "named port": {everywhere}, "named port of its own": nil, "cluster": {"far", "x"},
	} {
		if got := slices.Sorted(maps.Keys(neededBy(world(t, name)).read)); !slices.Equal(got, want) {
			t.Errorf("%s: needs the Pods of %q, want %q", name, got, want)
		}
	}
	if got := slices.Sorted(maps.Keys(neededBy(world(t, "own", "by label")).read)); !slices.Equal(got, []string{"far", "shop", "x"}) {
		t.Errorf("two policies need the Pods of %q", got)
	}
	both := neededBy(world(t, "all", "cluster", "own"))
	if got := slices.Sorted(maps.Keys(both.strict)); !both.read[everywhere] || !slices.Equal(got, []string{"far", "x"}) {
		t.Errorf("%v are read, and rules deny those of %q, want of far and x", both.read, got)
	}
}

// Every object read from the file equals the one that was written.
func TestLastKnownIsWhatWas(t *testing.T) {
	all := world(t, slices.Collect(maps.Keys(rules))...)
	logs := policy.Namespace{Name: "logs", LogDenied: true}
	all[feed.Key{Kind: feed.Namespace, Name: "logs"}] = logs
	want := map[feed.Key]any{}
	for key, v := range all {
		if p, is := v.(policy.Policy); is {
			key.Name = p.Name
			if p.Namespace != "" {
				key.Name = p.Namespace + "/" + p.Name
			}
		}
		want[key] = v
	}
	f := lastKnown{filepath.Join(t.TempDir(), "last.json"), "me"}
	size, err := f.write(all)
	if info, stat := os.Stat(f.path); err != nil || stat != nil || int(info.Size()) != size {
		t.Fatal(size, err, stat)
	}
	got, _, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range want {
		was, err := json.Marshal(v)
		is, err2 := json.Marshal(got[key])
		if err = errors.Join(err, err2); err != nil || string(was) != string(is) ||
			reflect.TypeOf(got[key]) != reflect.TypeOf(v) {
			t.Errorf("%v was written as\n%s and read as\n%s (%v)", key, was, is, err)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d objects written, %d read", len(want), len(got))
	}
	if is, _ := got[feed.Key{Kind: feed.Namespace, Name: "logs"}].(policy.Namespace); !is.LogDenied {
		t.Error("the Namespace logs nothing any more")
	}
}

// A file that is damaged, of another version or of another node is not used, and the error says why.
func TestLastKnownIsNotUsed(t *testing.T) {
	f := lastKnown{filepath.Join(t.TempDir(), "last.json"), "me"}
	for content, why := range map[string]string{
		`{"Form":1,"Node":"me","Policies":[{"Kind":"NetworkPolicy"`:      "unexpected EOF",
		`{"Form":2,"Node":"me"}`:                                         "format 2",
		`{"Form":1,"Node":"other"}`:                                      `node "other"`,
		`{"Form":1,"Node":"me","Policies":[{"Kind":"N","New":1}]}`:       "unknown field",
		`{"Form":1,"Node":"me","Pods":[{"Addrs":["10.0.0.256"]}]}`:       "ParseAddr",
		`{"Form":1,"Node":"me","Policies":[{"Subject":{"Pods":"((("}}]}`: "found '('",
	} {
		if err := os.WriteFile(f.path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _, err := f.read(); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v, want %q", content, got, err, why)
		}
	}
}

// Equal label sets are stored once, and those of deleted Pods are evicted.
func TestLabelSetsAreShared(t *testing.T) {
	s := labelSets{}
	first := s.intern(map[string]string{"app": "web", "tier": "front"})
	again := s.intern(map[string]string{"tier": "front", "app": "web"})
	if first["app"] = "changed"; again["app"] != "changed" {
		t.Error("equal labels are held twice")
	}
	if other := s.intern(map[string]string{"app": "web,tier=front"}); len(other) != 1 || other["app"] != "web,tier=front" {
		t.Errorf("labels of the same text are taken for others: %v", other)
	}
	for i := range 3 * maxLabelSets {
		s.intern(map[string]string{"job": strconv.Itoa(i)})
	}
	if len(s) > maxLabelSets {
		t.Errorf("%d sets of labels are held, want at most %d", len(s), maxLabelSets)
	}
}

// The saved objects are passed on if the API server has not answered, and not if it has.
func TestLastKnownIsForUnansweredStarts(t *testing.T) {
	file := lastKnown{filepath.Join(t.TempDir(), "last.json"), "me"}
	if _, err := file.write(world(t, "own")); err != nil {
		t.Fatal(err)
	}
	for _, answered := range []bool{false, true} {
		p := New(feed.New(), nil, nil, "me", file.path, logr.Discard())
		p.opened = answered
		p.takeLastKnown()
		changed, _, known := p.Objects().Take()
		if _, policies := changed[feed.Key{Kind: feed.NetworkPolicy, Name: "shop/own"}]; known == answered || policies == answered {
			t.Errorf("the API server has answered: %t; of the file %d objects are handed on, known: %t", answered, len(changed), known)
		}
	}
}

// What could not be saved because the disk was full is saved once there is space.
func TestSavingIsTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in place of the directory
		t.Fatal(err)
	}
	p := &Peers{file: lastKnown{filepath.Join(dir, "last.json"), "me"}, out: feed.New(), published: published{given: map[feed.Key]any{}}}
	p.opened = true
	for key, v := range world(t, "own") {
		p.addChange(map[feed.Key]any{}, key, v)
	}
	if p.save(0); !p.unsaved {
		t.Error("what was not written counts as saved")
	}
	if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	p.save(0)
	got, _, err := p.file.read()
	if err != nil || len(got) != len(p.given) || p.unsaved {
		t.Errorf("%d of %d objects are saved: %v", len(got), len(p.given), err)
	}
}

// Changes of policies, and of labels that they select by, are saved before they are enforced. Created and deleted Pods
// need no save.
func TestWhatIsSavedFirst(t *testing.T) {
	pod, space, node := feed.Key{Kind: feed.Pod, Name: "shop/web"}, feed.Key{Kind: feed.Namespace, Name: "shop"},
		feed.Key{Kind: feed.Node, Name: "n"}
	rule := feed.Key{Kind: feed.NetworkPolicy, Name: "own"}
	given := world(t, "own")
	web := given[pod].(*policy.Pod)
	like := func(labels map[string]string) *policy.Pod {
		return &policy.Pod{PodKey: web.PodKey, UID: "another", Local: true, Labels: labels}
	}
	other := world(t, "isolated")[feed.Key{Kind: feed.NetworkPolicy, Name: "isolated"}]
	for what, c := range map[string]struct {
		key  feed.Key
		now  any
		want bool
	}{
		"a Node":                   {node, policy.Node{Name: "n", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, false},
		"a new Pod":                {feed.Key{Kind: feed.Pod, Name: "shop/new"}, like(nil), false},
		"a Pod that is gone":       {pod, nil, false},
		"a Pod of the same labels": {pod, like(web.Labels), false},
		"a Pod of other labels":    {pod, like(map[string]string{"app": "db"}), true},
		"labels of a Namespace":    {space, policy.Namespace{Name: "shop"}, true},
		"a Namespace as it was":    {space, given[space], false},
		"a policy as it was":       {rule, given[rule], false},
		"another policy":           {rule, other, true},
		"a policy that is gone":    {rule, nil, true},
		"a new policy":             {feed.Key{Kind: feed.NetworkPolicy, Name: "isolated"}, other, true},
	} {
		p := &Peers{published: published{given: given}}
		if p.restricts(map[feed.Key]any{c.key: c.now}) != c.want {
			t.Errorf("%s: it is saved first: %t", what, !c.want)
		}
	}
}

// No receiver gets the removal of a policy without its replacement: a batch is one change.
func TestBatchIsOneChange(t *testing.T) {
	in := feed.New()
	p := New(in, nil, nil, "me", filepath.Join(t.TempDir(), "last.json"), logr.Discard())
	before := feed.Key{Kind: feed.NetworkPolicy, Name: "shop/before"}
	objects := map[feed.Key]any{before: policy.Policy{}}
	hand := func(now map[feed.Key]any) {
		in.Replace(objects, now)
		objects = now
		if p.receive(); p.pass(t.Context()) {
			t.Error("a batch without rules waits")
		}
	}
	in.Replace(nil, objects)
	hand(objects)
	p.Objects().Take()
	next := map[feed.Key]any{{Kind: feed.NetworkPolicy, Name: "shop/after"}: policy.Policy{}}
	for i := range 5000 {
		name := strconv.Itoa(i)
		next[feed.Key{Kind: feed.Pod, Name: "shop/" + name}] = &policy.Pod{PodKey: policy.PodKey{Namespace: "shop", Name: name}}
	}
	var handing sync.WaitGroup
	handing.Go(func() { hand(next) })
	for found := false; !found; {
		changed, _, _ := p.Objects().Take()
		if _, found = changed[before]; found && len(changed) != len(next)+1 {
			t.Errorf("with it %d of %d changes are taken", len(changed), len(next)+1)
		}
	}
	handing.Wait()
}
