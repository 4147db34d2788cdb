package apply

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/policies"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// As long as policies are not known, no pod is added for the time that the config sets.
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
		f.policies.rules = policies.NewRules(feed.New()) // none of which has been read
		if err := f.Waits(); (err != nil) != c.waits {
			t.Errorf("policyStart: %s, policyStartWait: %s: %v", c.start, c.wait, err)
		}
		if f.policies.unknown() == nil {
			t.Errorf("policyStart: %s: it is not reported that policies are not known", c.start)
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

// unread replaces the agent with one that starts while the API server does not answer.
func (n *node) unread() {
	n.flows.Stop()
	n.flows = NewFlows(n.db, n.cfg, "me", n.source, &status.NewMetrics("test").Loop, testr.New(n.t))
	n.t.Cleanup(n.flows.Stop)
	n.flows.policies.rules = policies.NewRules(feed.New())
}

// If an agent starts while policies are not known, the switch continues as before if it enforces any; otherwise no pod
// is opened.
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

// A round that fails on a new connection leaves nothing open: the next one sends all policies to the switch.
func TestPoliciesAfterARoundThatFailed(t *testing.T) {
	n := newPolicyNode(t)
	n.apply(n.round())
	want := flowtest.Sorted(flowtest.Flows(n.OVS))
	lost, err := ovsdb.Connect(n.soon(), "unix:"+n.DBSocket, testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	lost.Close()
	n.flows.Stop()
	n.Ofctl("del-flows", "br-int") // as after a restart of ovs-vswitchd
	r := n.round()
	n.flows.db = lost
	if _, err := n.flows.Apply(n.soon(), r); err == nil {
		t.Fatal("without OVSDB a round succeeds")
	}
	n.flows.db = n.db
	n.apply(n.round())
	if now := flowtest.Sorted(flowtest.Flows(n.OVS)); now != want {
		t.Errorf("the switch has other flows:\n%s", flowtest.Diff(want, now))
	}
}

// readAnew rereads all policies, as a starting agent does.
func (n *node) readAnew() {
	n.t.Helper()
	var err error
	if n.source, err = inputs.NewDirectory(n.dir, logr.Discard()); err != nil {
		n.t.Fatal(err)
	}
	n.source.Refresh()
}

// A switch that does not answer when policies become known gets them later.
func TestPoliciesThatCouldNotBeAdopted(t *testing.T) {
	n := newPolicyNode(t)
	n.apply(n.round())
	n.unread()
	n.apply(n.round())
	n.has("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: more, namespace: ns}\n" +
		"spec: {podSelector: {}, policyTypes: [Egress]}\n")
	n.readAnew()
	n.flows.policies.rules = policies.NewRules(n.source.PolicyObjects())
	never, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.flows.Apply(never, n.round()); err == nil {
		t.Fatal("a round succeeds that has no time")
	}
	n.apply(n.round())
	got := flowtest.Sorted(flowtest.Flows(n.OVS))
	n.flows.Stop()
	n.readAnew()
	n.flows = NewFlows(n.db, n.cfg, "me", n.source, &status.NewMetrics("test").Loop, testr.New(t))
	t.Cleanup(n.flows.Stop)
	n.apply(n.round())
	if want := flowtest.Sorted(flowtest.Flows(n.OVS)); got != want {
		t.Errorf("the switch has other flows than another agent would give it:\n%s", flowtest.Diff(want, got))
	}
}

// Ending connections that policies deny is retried if it fails.
func TestForbiddenConnectionsAreTriedAgain(t *testing.T) {
	n := newPolicyNode(t)
	n.apply(n.round())
	n.looked()
	n.flows.policies.tightened.now, n.flows.runDir = true, filepath.Join(n.Dir, "none")
	began := time.Now()
	n.flows.scanDenied(t.Context())
	if n.looked(); !n.flows.policies.tightened.now {
		t.Error("ovs-vswitchd could not be asked for connections, and will not be asked again")
	}
	if !n.flows.Due() {
		t.Error("that it could not be asked is not to be reported")
	}
	again := n.flows.policies.tightened.again
	n.flows.policies.tightened.again = time.Now().Add(time.Hour)
	if err := n.flows.scanErrors(); err == nil || n.flows.Due() {
		t.Errorf("reported is %v, and permanently: %t", err, n.flows.Due())
	}
	n.flows.policies.tightened.again = again
	n.flows.runDir = n.Dir
	n.NameSocket()
	for _, why := range []string{"after a failure", "once the datapath has followed"} {
		if t.Log(why); n.flows.policies.tightened.again.IsZero() {
			t.Fatalf("%s: never", why)
		}
		n.comes(began)
		began = time.Now()
		n.flows.scanDenied(t.Context())
		n.looked()
		if err := n.flows.scanErrors(); err != nil {
			t.Errorf("%s: %v", why, err)
		}
	}
	if n.flows.policies.tightened.now || !n.flows.policies.tightened.again.IsZero() {
		t.Error("connections are looked at for ever")
	}
}

// The gateway's address counts as an address of the node, which reaches its pods regardless of policies, only if the
// node has no other: masqueraded packets have it, too.
func TestAddressesOfTheNode(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.77.1.1"), netip.MustParseAddr("fd00::1")
	own := netip.MustParseAddr("192.0.2.1")
	view := tables.View{NodeAddrs: []netip.Addr{own}, Gateway: tables.Gateway{Addrs: []netip.Addr{v4, v6}}}
	for _, c := range []struct{ sources, want []netip.Addr }{
		{nil, []netip.Addr{own, v4, v6}},
		{[]netip.Addr{own}, []netip.Addr{own, v6}},
	} {
		r := &Round{Want: desired.State{Gateway: link.GatewayLink{Sources: c.sources}}}
		if got := nodeState(r, view).Node; !slices.Equal(got, c.want) {
			t.Errorf("with sources %v the node is %v, want %v", c.sources, got, c.want)
		}
	}
}

// The metrics have Open vSwitch's counters by policy, which are removed with the policy, and the duration of changes.
func TestPoliciesAreCounted(t *testing.T) {
	n := newPolicyNode(t)
	const none = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: none, namespace: ns}\n" +
		"spec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n"
	const web = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: ns}\n" +
		"spec: {podSelector: {}, egress: [{ports: [{port: 80}]}]}\n"
	n.has(none + web)
	n.apply(n.round())
	send := func(port int) {
		n.Appctl("netdev-dummy/receive", n.pods[0].HostIf, fmt.Sprintf("in_port(1),eth(src=%s,dst=02:00:00:00:00:99),"+
			"eth_type(0x0800),ipv4(src=10.77.1.5,dst=203.0.113.%d,proto=6,tos=0,ttl=64,frag=no),"+
			"tcp(src=40000,dst=%d),tcp_flags(syn)", n.pods[0].MAC, port, port))
	}
	for range 3 {
		send(81)
	}
	send(80)
	m := &n.flows.metrics.Policies
	dropped := m.Dropped.WithLabelValues("NetworkPolicy", "ns", "", "egress")
	accepted := m.Accepted.WithLabelValues("NetworkPolicy", "ns", "web", "egress")
	resync := func() {
		r := n.round()
		r.Verify, r.Settled = true, true
		n.apply(r)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if resync(); testutil.ToFloat64(dropped) == 3 && testutil.ToFloat64(accepted) == 1 {
			break
		}
	}
	if d, a := testutil.ToFloat64(dropped), testutil.ToFloat64(accepted); d != 3 || a != 1 {
		t.Fatalf("dropped %v, accepted %v, want 3 and 1", d, a)
	}
	if resync(); testutil.ToFloat64(dropped) != 3 {
		t.Error("another resync counts packets again")
	}
	n.has(none + "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: lost, namespace: elsewhere}\n" +
		"spec: {podSelector: {matchLabels: {app: lost}}}\n")
	if done, err := n.flows.SyncPolicies(n.soon()); !done || err != nil {
		t.Fatal(done, err)
	}
	if resync(); testutil.CollectAndCount(m.Accepted) != 0 || testutil.CollectAndCount(m.Dropped) != 2 {
		t.Errorf("without the policy there are %d series of what is accepted, %d of what is dropped, want 0 and 2: one for each "+
			"direction", testutil.CollectAndCount(m.Accepted), testutil.CollectAndCount(m.Dropped))
	}
	var out dto.Metric
	if err := m.Enforced.Write(&out); err != nil || out.GetHistogram().GetSampleCount() != 1 {
		t.Errorf("%d changes were timed, %v", out.GetHistogram().GetSampleCount(), err)
	}
}

// A closed pod receives no packets of connections that were open before, except from its node.
func TestConnectionsOfClosedPods(t *testing.T) {
	n := newNode(t, api.AgentConfig{NetworkPolicies: api.PoliciesEnforce, PolicyStart: api.PolicyStartClosed})
	n.NameSocket()
	n.has("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: all, namespace: ns}\n" +
		"spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}\n")
	to, from := n.pod("a", 5), n.pod("b", 6)
	n.apply(n.round())
	arrives := func(when string, port int, want bool) {
		t.Helper()
		got := func() string {
			_, all, _ := strings.Cut(n.Ofctl("dump-ports", "br-int", to.HostIf), "tx pkts=")
			return strings.Split(all, ",")[0]
		}
		before := got()
		n.Appctl("netdev-dummy/receive", from.HostIf, fmt.Sprintf("in_port(%d),eth(src=%s,dst=%s),eth_type(0x0800),"+
			"ipv4(src=10.77.1.6,dst=10.77.1.5,proto=17,tos=0,ttl=64,frag=no),udp(src=%d,dst=9)", 2, from.MAC,
			api.MAC{2, 0, 0, 0, 0, 0x99}, port))
		if arrived := got() != before; arrived != want {
			t.Errorf("%s: the packet arrives: %t, want %t\n%s", when, arrived, want, n.Appctl("dpctl/dump-conntrack"))
		}
	}
	arrives("that policies allow", 40000, true)
	arrives("in an open connection", 40000, true)
	n.unread() // together with ovs-vswitchd, where conntrack is the kernel's
	n.Ofctl("del-flows", "br-int")
	n.apply(n.round())
	n.looked()
	n.Appctl("revalidator/wait") // cached megaflows are looked up again now
	arrives("in a new connection of a pod that is closed", 40001, false)
	arrives("in an open connection of a pod that is closed", 40000, false)
}
