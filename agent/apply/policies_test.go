package apply

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/policies"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// As long as policies are not known, no pod is added for the time that the config allows.
func TestPoliciesAreWaitedFor(t *testing.T) {
	source, err := inputs.NewDirectory(t.TempDir(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		start string
		wait  time.Duration
		waits bool
	}{{api.PolicyStartWait, time.Hour, true}, {api.PolicyStartWait, 0, false}, {api.PolicyStartClosed, time.Hour, false}} {
		cfg := api.AgentConfig{NetworkPolicies: api.PoliciesEnforce, PolicyStart: c.start, PolicyStartWait: c.wait}
		f := NewFlows(nil, cfg, "node1", source, nil, logr.Discard())
		f.policies.rules = policies.NewRules(feed.New()) // of which nothing is read
		if err := f.Waits(); (err != nil) != c.waits {
			t.Errorf("policyStart: %s, policyStartWait: %s: %v", c.start, c.wait, err)
		}
		if f.policies.unknown() == nil {
			t.Errorf("policyStart: %s: it is not said that policies are not known", c.start)
		}
	}
}

// newPolicyNode has a pod that a policy isolates.
func newPolicyNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, api.AgentConfig{NetworkPolicies: api.PoliciesEnforce, PolicyStart: api.PolicyStartWait,
		PolicyStartWait: time.Hour})
	n.has("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: none, namespace: ns}\n" +
		"spec: {podSelector: {}, policyTypes: [Ingress]}\n")
	n.pod("a", 5)
	return n
}

// unread is an agent that starts while the API server does not answer.
func (n *node) unread() {
	n.flows.Close()
	n.flows = NewFlows(n.db, n.cfg, "me", n.source, &status.NewMetrics("test").Loop, testr.New(n.t))
	n.t.Cleanup(n.flows.Close)
	n.flows.policies.rules = policies.NewRules(feed.New())
}

// An agent that starts while policies are not known has the switch go on as it does, if it enforces some; and otherwise
// opens no pod.
func TestPoliciesThatAreUnknownAreKept(t *testing.T) {
	n := newPolicyNode(t)
	n.unread()
	r := n.round()
	if _, err := n.ports.Apply(n.soon(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := n.flows.Apply(n.soon(), r); !errors.Is(err, errNoPolicies) {
		t.Errorf("a switch without flows: %v", err)
	}
	n.flows.policies.rules = policies.NewRules(n.source.PolicyObjects())
	n.apply(n.round())
	before := flowtest.Sorted(flowtest.Flows(n.OVS))
	n.unread()
	if _, flows := n.apply(n.round()); !errors.Is(flows.Degraded, errNoPolicies) {
		t.Errorf("that policies are not known is reported as %v", flows.Degraded)
	}
	if now := flowtest.Sorted(flowtest.Flows(n.OVS)); now != before {
		t.Errorf("the switch does something else:\n%s", flowtest.Diff(before, now))
	}
}

// Connections that policies forbid, and that could not be ended, are tried again.
func TestForbiddenConnectionsAreTriedAgain(t *testing.T) {
	n := newPolicyNode(t)
	n.apply(n.round())
	n.flows.policies.tightened, n.flows.runDir = true, filepath.Join(n.Dir, "none")
	if n.flows.cut(t.Context()); !n.flows.policies.tightened {
		t.Error("ovs-vswitchd could not be asked for connections, and will not be asked again")
	}
}

// The gateway's address is the node's, which reaches its pods whatever policies say, only where the node has no other:
// what is masqueraded has it too.
func TestAddressesOfTheNode(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.77.1.1"), netip.MustParseAddr("fd00::1")
	own := netip.MustParseAddr("192.0.2.1")
	view := tables.View{NodeAddrs: []netip.Addr{own}, Gateway: tables.Gateway{Addrs: []netip.Addr{v4, v6}}}
	for _, c := range []struct{ sources, want []netip.Addr }{
		{nil, []netip.Addr{own, v4, v6}},
		{[]netip.Addr{own}, []netip.Addr{own, v6}},
	} {
		r := &Round{Want: desired.State{Gateway: link.GatewayLink{Sources: c.sources}}}
		if got := place(r, view).Node; !slices.Equal(got, c.want) {
			t.Errorf("with sources %v the node is %v, want %v", c.sources, got, c.want)
		}
	}
}
