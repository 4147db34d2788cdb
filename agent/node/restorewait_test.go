package node

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/agent/apply"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const twoEndpoints = `apiVersion: v1
kind: Service
metadata: {name: dns, namespace: ns}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: ns, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: [10.77.2.5]}, {addresses: [10.77.2.6]}]
`

// lateServices is a source whose Services are not read at first.
type lateServices struct {
	inputs.Source
	unread *inputs.Kubernetes // nil: Services have been read
}

func (l *lateServices) Services() *inputs.Services {
	if l.unread != nil {
		return l.unread.Services()
	}
	return l.Source.Services()
}

// groupsFirst is an applier that checks whether the switch has groups before it applies its part.
type groupsFirst struct {
	apply.Applier
	node *restoreNode
}

func (g groupsFirst) Apply(ctx context.Context, r *apply.Round) (apply.Changes, error) {
	g.node.hadGroups = g.node.groups()
	return g.Applier.Apply(ctx, r)
}

// restoreNode is an Open vSwitch with a guard, and an agent's appliers for pods.
type restoreNode struct {
	*ovstest.OVS
	t         *testing.T
	db        *ovsdb.DB
	cfg       api.AgentConfig
	hadGroups bool // when the last round checked whether ovs-vswitchd may end its wait
}

func newRestoreNode(t *testing.T) *restoreNode {
	t.Helper()
	n := &restoreNode{OVS: ovstest.Start(t, ovstest.Options{}), t: t}
	n.cfg = api.AgentConfig{OVSBridge: "br-int", HostGateway: "gw0", OVSDatapathType: "dummy", OVSRunDir: n.Dir,
		TrafficEncapMode: api.ModeNoEncap, Services: api.ServicesOVS, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12")}
	guard, err := os.Create(filepath.Join(n.Dir, "fairlead-guard.lock"))
	if err == nil {
		err = syscall.Flock(int(guard.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guard.Close() })
	if n.db, err = ovsdb.Connect(t.Context(), "unix:"+n.DBSocket, testr.New(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.db.Close)
	return n
}

func (n *restoreNode) groups() bool {
	return strings.Contains(n.Ofctl("dump-groups", "br-int"), "group_id")
}

// agent is a starting agent. The returned function applies what pods depend on.
func (n *restoreNode) agent(source inputs.Source) func() {
	agent := newTestNode(n.t, n.cfg, source)
	none := func([]steer.Entry) error { return nil }
	agent.steps, _ = newSteps(n.db, n.cfg, "me", source, none, status.NewMetrics("test"), testr.New(n.t))
	n.t.Cleanup(agent.steps.close)
	for i, s := range agent.steps.pods {
		if s.Name() == "flow-restore-wait" {
			agent.steps.pods[i].Applier = groupsFirst{s.Applier, n}
		}
	}
	return func() {
		n.t.Helper()
		ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
		defer cancel()
		r := &round{}
		r.Observed = n.observe()
		r.Want = desired.Compute(desired.Inputs{Config: n.cfg,
			Own:       inputs.Node{Name: "me", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}},
			Transport: link.Transport{Name: "eth0", MTU: 1500, IPv4: netip.MustParseAddr("192.0.2.1")}})
		if agent.applyGroup(ctx, r, agent.steps.pods); r.err() != nil {
			n.t.Fatal(r.err())
		}
	}
}

func (n *restoreNode) observe() ovsdb.Observed {
	n.t.Helper()
	obs, err := n.db.Observe("br-int")
	if err != nil {
		n.t.Fatal(err)
	}
	return obs
}

// continues reports whether the running ovs-vswitchd no longer waits; the next start should wait in either case.
func (n *restoreNode) continues() bool {
	n.t.Helper()
	id, err := vswitchd.StartID(n.Dir)
	key := n.observe().RestoreWait
	if err != nil || id == "" || !key.Set || !key.Ours {
		n.t.Fatalf("flow-restore-wait is %+v; the start is %q, %v", key, id, err)
	}
	return key.Restored == id
}

// A restarted ovs-vswitchd ends its wait, and replaces the kernel's megaflows from earlier flows, only once it has the
// groups of Services, which flows refer to.
func TestNextStartWaitsForGroups(t *testing.T) {
	n := newRestoreNode(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(twoEndpoints), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() inputs.Source {
		source, err := inputs.NewDirectory(dir, testr.New(t))
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	n.agent(read())()
	if !n.continues() || !n.groups() {
		t.Fatalf("before the restart it goes on: %t, and has groups: %t", n.continues(), n.groups())
	}
	n.Vswitchd.Kill()
	n.Vswitchd.Start()
	client, err := kube.ForConfig(&rest.Config{Host: "127.0.0.1:1"}) // not contacted
	if err != nil {
		t.Fatal(err)
	}
	late := &lateServices{read(), inputs.NewKubernetes(client, "me", "", false, testr.New(t))}
	round := n.agent(late)
	if round(); n.continues() || n.groups() {
		t.Errorf("before Services are known it goes on: %t, and has groups: %t", n.continues(), n.groups())
	}
	late.unread = nil
	if round(); !n.continues() || !n.hadGroups {
		t.Errorf("it goes on: %t, and had groups before: %t", n.continues(), n.hadGroups)
	}
}
