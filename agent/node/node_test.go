package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/rundir"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

const (
	meManifest = `{apiVersion: v1, kind: Node, metadata: {name: me}, spec: {podCIDR: 10.0.1.0/24},
  status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}`
	// movedManifest has a podCIDR that contains half of the underlay, but no node's address.
	movedManifest = `{apiVersion: v1, kind: Node, metadata: {name: me}, spec: {podCIDR: 192.0.2.128/25},
  status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}`
	peerManifest = `{apiVersion: v1, kind: Node, metadata: {name: peer}, spec: {podCIDR: 10.0.2.0/24},
  status: {addresses: [{type: InternalIP, address: 192.0.2.12}]}}`
)

// Errors about the node's own Node, or about all Nodes, change nothing on the node.
func TestTakeOwnKeepsTheLastGood(t *testing.T) {
	dir := t.TempDir()
	write := func(name, manifest string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("me.yaml", meManifest)
	write("peer.yaml", peerManifest)
	source, err := inputs.NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	n := newTestNode(t, api.AgentConfig{}, source)
	if err := n.updateOwn(source.Snapshot()); err != nil {
		t.Fatal(err)
	}
	n.links.transport = link.Transport{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}

	refused := func(what string, nodes int) {
		t.Helper()
		podCIDR := (*desired.PodCIDRError)(nil)
		if err := n.updateOwn(source.Refresh()); !errors.As(err, &podCIDR) {
			t.Errorf("%s: the error is %v, want a PodCIDRError", what, err)
		}
		if want := []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}; !slices.Equal(n.own.PodCIDRs, want) {
			t.Errorf("%s: the podCIDRs in force are %v, want %v", what, n.own.PodCIDRs, want)
		}
		if len(n.nodes) != nodes {
			t.Errorf("%s: the nodes in force are %v, want %d", what, n.nodes, nodes)
		}
	}
	write("me.yaml", movedManifest)
	refused("a podCIDR in the underlay", 2)
	if err := os.Remove(filepath.Join(dir, "me.yaml")); err != nil {
		t.Fatal(err)
	}
	refused("the own Node is gone", 1)
	if err := os.Remove(filepath.Join(dir, "peer.yaml")); err != nil {
		t.Fatal(err)
	}
	refused("all Nodes are gone", 1)
}

// As long as the API server has not reported any Node, the agent waits, and does not conclude that its node has none.
// The same holds with saved Nodes.
func TestWaitsForTheAPIServer(t *testing.T) {
	for what, kept := range map[string]string{"nothing kept": "", "no podCIDR then": `{"Node":"me","Nodes":{"me":{"Name":"me"}}}`} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			waitsForTheAPIServer(t, kept)
		})
	}
}

func waitsForTheAPIServer(t *testing.T, kept string) {
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "last-inputs.json")
	for path, content := range map[string]string{file: kept, kubeconfig: `{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {}}],
  contexts: [{name: c, context: {cluster: c, user: u}}]}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := api.AgentConfig{PodCIDRWait: time.Millisecond, ClientConnection: api.ClientConnection{Kubeconfig: kubeconfig}}
	client, err := kube.New(cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	source := inputs.NewKubernetes(client, "me", file, false, logr.Discard())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go source.Run(ctx)
	n := newTestNode(t, cfg, source)
	last := rundir.LastError{Path: filepath.Join(t.TempDir(), "last-error")}
	go func() { // the file is read after 3 s; then the wait continues
		defer cancel()
		seen := func() bool {
			text, _ := os.ReadFile(last.Path)
			return source.Snapshot().Kept || kept == "" && strings.Contains(string(text), "refused")
		}
		for ctx.Err() == nil && !seen() {
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second)
	}()
	if err := n.WaitPodCIDR(ctx, last); err != nil || ctx.Err() == nil {
		t.Errorf("got %v, want it to wait until its context ends", err)
	}
	if kept != "" {
		if s := source.Snapshot(); !s.Kept || s.Unread {
			t.Errorf("the snapshot is %+v, want what was kept", s)
		}
		return
	}
	for what, got := range map[string]func() string{
		"not ready":  func() string { return n.Board.Load().NotReady.Error() },
		"last-error": func() string { text, _ := os.ReadFile(last.Path); return string(text) },
	} {
		if want := "https://127.0.0.1:1 cannot be read"; !strings.Contains(got(), want) || !strings.Contains(got(), "refused") {
			t.Errorf("%s: %q, want %q and the reason in it", what, got(), want)
		}
	}
}

// A pod that gets its address just before the podCIDR changes would be unreachable.
func TestOvertaken(t *testing.T) {
	own := inputs.Node{Name: "me", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}
	pod := func(addr string) *api.Attachment {
		return &api.Attachment{Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	requests := func() []request {
		out := []request{{Change: Change{Add: pod("10.0.1.2/24")}}, {Change: Change{Add: pod("10.0.9.2/24")}},
			{Change: Change{Add: pod("10.0.9.3/24"), Restores: true}}, {}}
		for i := range out {
			out[i].done = make(chan error, 1)
		}
		return out
	}
	for _, test := range []struct {
		what     string
		conflict error
		refused  []int
	}{
		{"podCIDR changed", nil, []int{1}},
		{"podCIDR taken by another node", errors.New("taken"), []int{0, 1}},
	} {
		all := requests()
		rest := refuseOutdated(slices.Clone(all), own, test.conflict)
		if len(rest) != len(all)-len(test.refused) {
			t.Errorf("%s: %d of %d requests go on", test.what, len(rest), len(all))
		}
		for i, r := range all {
			if got, want := len(r.done) == 1, slices.Contains(test.refused, i); got != want {
				t.Errorf("%s: request %d refused: %v, want %v", test.what, i, got, want)
			}
		}
	}
}

// As long as policies are not known no pod is added, as it would be open. The record of an existing pod is restored,
// and a DEL is carried out.
func TestAddsWaitForPolicies(t *testing.T) {
	for _, unknown := range []error{nil, errors.New("policies are not known")} {
		all := []request{{Change: Change{Add: &api.Attachment{}}}, {Change: Change{Add: &api.Attachment{}, Restores: true}},
			{}}
		for i := range all {
			all[i].done = make(chan error, 1)
		}
		rest := refuseEarly(slices.Clone(all), unknown)
		for i, r := range all {
			goesOn := slices.ContainsFunc(rest, func(other request) bool { return other.done == r.done })
			if want := i > 0 || unknown == nil; goesOn != want || len(r.done) == 1 == want {
				t.Errorf("%v: request %d goes on: %t, want %t, and %d answers", unknown, i, goesOn, want, len(r.done))
			}
		}
	}
}

// While Open vSwitch is down nothing is computed, but a CHECK still knows the pods' MTU.
func TestARoundWithoutAResultForgetsNothing(t *testing.T) {
	n := newTestNode(t, api.AgentConfig{}, nowhere(t))
	n.steps.flows = &fakeSwitch{}
	outside := &round{snapshot: &inputs.Snapshot{}, computed: true}
	outside.Want.PodMTU = 1450
	outside.Want.OVSDB.Pods = []api.Attachment{{PodName: "p", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.9.2/24")}}}
	n.publish(outside)
	was := n.Board.Load().Degraded
	n.publish(&round{snapshot: &inputs.Snapshot{}, outcome: outcome{pods: errors.New("ovsdb-server is down"), ovsDown: true}})
	s := n.Board.Load()
	if s.PodMTU != 1450 || was == nil || s.Degraded != was || s.NotReady == nil || s.OVSDown == nil {
		t.Errorf("MTU %d, degraded %v, not ready %v, away %v; want 1450, %v, and the reason twice",
			s.PodMTU, s.Degraded, s.NotReady, s.OVSDown, was)
	}
}

// The ADD of a bridged pod does not depend on the podCIDR.
func TestBridgedPodsAreNotOvertaken(t *testing.T) {
	pod := &api.Attachment{Bridged: true, Addrs: []netip.Prefix{netip.MustParsePrefix("192.168.110.5/24")}}
	waiting := []request{{Change{Add: pod}, make(chan error, 1)}}
	own := inputs.Node{Name: "me", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}
	if left := refuseOutdated(waiting, own, errors.New("no podCIDR")); len(left) != 1 {
		t.Error("it is refused")
	}
}

// A record that is removed from OVSDB externally while the pod runs stays desired; one that a DEL removes does not come
// back, even though the DEL's round still sees it.
func TestAttachmentsLostFromOVSDB(t *testing.T) {
	n := newTestNode(t, api.AgentConfig{}, nowhere(t))
	attachment := func(id string) api.Attachment {
		return api.Attachment{ContainerID: id, IfName: "eth0", HostIf: link.HostName(id, "eth0")}
	}
	a, b, c := attachment("a"), attachment("b"), attachment("c")
	port := func(a api.Attachment) ovsdb.PodPort { return ovsdb.PodPort{Attachment: a} }
	step := func(what string, now []ovsdb.PodPort, waiting []request, want ...string) {
		t.Helper()
		var got []string
		for _, a := range n.attachments(now, waiting) {
			got = append(got, a.ContainerID)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: wanted are %v, want %v", what, got, want)
		}
	}
	step("two on record", []ovsdb.PodPort{port(a), port(b)}, nil, "a", "b")
	step("del-port b", []ovsdb.PodPort{port(a)}, nil, "a", "b")
	step("del-br", nil, nil, "a", "b")
	step("written again, and an ADD", []ovsdb.PodPort{port(a), port(b)}, []request{{Change: Change{Add: &c}}}, "a", "b", "c")
	step("the ADD failed before it was on record", []ovsdb.PodPort{port(a), port(b)}, nil, "a", "b")
	step("DEL a", []ovsdb.PodPort{port(a), port(b)}, []request{{Change: Change{Del: attachments.KeyOf(a)}}}, "b")
	step("a is off", []ovsdb.PodPort{port(b)}, nil, "b")
	step("DEL b, whose port was removed externally", nil, []request{{Change: Change{Del: attachments.KeyOf(b)}}})
	step("none is left", nil, nil)
}
