package policies

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/denied"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/policy"
)

// sorted are all flows of the rules, as text.
func (w *world) sorted() (out []string) {
	for _, f := range w.allFlows() {
		out = append(out, f.String())
	}
	slices.Sort(out)
	return out
}

func loggingWorld(t *testing.T) *world {
	lock, err := policy.ParseClusterNetworkPolicy([]byte(`{"metadata": {"name": "lock"}, "spec": {"tier": "Admin", "priority": 1,
		"subject": {"namespaces": {}}, "ingress": [{"action": "Deny", "from": [{"pods": {"namespaceSelector": {},
		"podSelector": {"matchLabels": {"app": "none"}}}}]}]}}`))
	if err != nil || len(lock.Problems) > 0 {
		t.Fatal(err, lock.Problems)
	}
	return newWorld(t, networkPolicy(t, "web", `{"podSelector": {"matchLabels": {"app": "judged"}},
		"policyTypes": ["Ingress", "Egress"], "ingress": [{"ports": [{"port": 80}]}]}`), lock)
}

// With the log, only flows that deny change, and only to send to a table that drops: all other flows stay exactly the
// same, and new flows are for the pods that log.
func TestLogChangesOnlyWhatDenies(t *testing.T) {
	w := loggingWorld(t)
	w.LogDenied(api.PolicyLogAnnotated)
	w.update()
	before := w.sorted()
	w.SetReceiving(true)
	if now := w.sorted(); !slices.Equal(now, before) || w.LogsDenied() {
		t.Error("flows have changed, and no Namespace logs")
	}
	annotate := func(is bool) {
		w.source.Put(feed.Namespace, "shop", policy.Namespace{Name: "shop", Labels: map[string]string{"team": "shop"},
			LogDenied: is})
		w.update()
	}
	annotate(true)
	denies := map[openflow.Key]bool{}
	shows := []openflow.Action{openflow.OutputController}
	drops := []uint8{policing.Egress.Denied(), policing.Ingress.Denied()}
	was := map[openflow.Key]openflow.Flow{}
	annotate(false)
	for _, f := range w.allFlows() {
		was[f.Key()] = f
	}
	if now := w.sorted(); !slices.Equal(now, before) {
		t.Error("after the annotation has come and gone, there are other flows")
	}
	annotate(true)
	for _, f := range w.allFlows() {
		old, had := was[f.Key()]
		switch {
		case had && old.String() == f.String():
		case had && len(old.Actions) == 0 && len(f.Actions) == 1 && slices.Contains(drops, gotoOf(f)):
			denies[f.Key()] = true
		case !had && slices.Contains(drops, f.Table) && slices.Equal(f.Actions, shows):
		default:
			t.Errorf("with the log there is %s in place of %s", f, old)
		}
	}
	if want := 3*2 + 2; len(denies) != want { // three pods in two directions, and a rule that exists twice
		t.Errorf("%d flows deny by way of the log, want %d", len(denies), want)
	}
	w.LogDenied(api.PolicyLogNone)
	if w.update(); !slices.Equal(w.sorted(), before) {
		t.Error("policyLogDenied: none leaves flows of the log")
	}
	w.LogDenied(api.PolicyLogAll)
	annotate(false)
	if w.update(); slices.Equal(w.sorted(), before) {
		t.Error("policyLogDenied: all logs nothing")
	}
	w.SetReceiving(false)
	if !slices.Equal(w.sorted(), before) {
		t.Error("no agent takes denied packets, and flows show them")
	}
}

func gotoOf(f openflow.Flow) uint8 {
	to, _ := f.Actions[0].(openflow.Goto)
	return uint8(to)
}

// A packet belongs to the pod for which it was judged. One that the rules now accept is reported as such, and those of
// pods that do not log belong to no pod.
func TestDeniedPacketsOfPods(t *testing.T) {
	w := loggingWorld(t)
	w.LogDenied(api.PolicyLogAll)
	w.update()
	w.SetReceiving(true)
	a := policy.PodKey{Namespace: "shop", Name: "a"}
	from, to := netip.MustParseAddr("10.10.0.4"), netip.MustParseAddr("10.10.0.3")
	p := denied.Packet{Table: policing.Ingress.Denied(), Judged: w.pods[a].number, Src: from, Dst: to, Protocol: 6,
		DstPort: 22}
	c, ok := w.Denied(p)
	if !ok || c.Pod != a || c.Direction != policy.Ingress || c.Peer != from || c.Port != 22 {
		t.Errorf("the packet is of %+v, %t", c, ok)
	}
	for port, want := range map[uint16]string{22: "isolated by NetworkPolicy shop/web, and no rule accepts it",
		80: "by rules that have changed since"} {
		c.Port = port
		if peer, reason := w.WhyDenied(c); peer != "pod shop/b" || reason != want {
			t.Errorf("port %d: peer %q, reason %q, want %q", port, peer, reason, want)
		}
	}
	c.Peer = netip.MustParseAddr("192.168.77.1")
	if peer, _ := w.WhyDenied(c); peer != "this node" {
		t.Errorf("the node is %q", peer)
	}
	p.Table, p.Judged = policing.Egress.Denied(), unknownPod
	if c, ok := w.Denied(p); ok {
		t.Errorf("a packet of a pod that is unknown is of %+v", c)
	}
}

// The order in which rules and the log are added does not matter.
func TestRulesThatComeWhileLogging(t *testing.T) {
	more := []policy.Policy{networkPolicy(t, "more", `{"podSelector": {"matchLabels": {"app": "friend"}},
		"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "judged"}}}], "ports": [{"port": 22}]}]}`)}
	for _, action := range []string{"Accept", "Deny", "Pass"} {
		p, err := policy.ParseClusterNetworkPolicy([]byte(`{"metadata": {"name": "` + action + `"}, "spec": {"tier": "Baseline",
			"priority": 1, "subject": {"namespaces": {}}, "egress": [{"action": "` + action + `", "to": [{"networks":
			["203.0.113.0/24"]}]}]}}`))
		if err != nil {
			t.Fatal(err)
		}
		more = append(more, p)
	}
	flows := func(logFirst bool) []string {
		w := loggingWorld(t)
		w.LogDenied(api.PolicyLogAll)
		w.update()
		if logFirst {
			w.SetReceiving(true)
		}
		for _, p := range more {
			w.source.Put(p.Kind, p.Name, p)
		}
		w.update()
		w.SetReceiving(true)
		return w.sorted()
	}
	if first, last := flows(true), flows(false); !slices.Equal(first, last) {
		t.Errorf("with the log first there are %d flows, with the rules first %d, and they differ", len(first), len(last))
	}
}
