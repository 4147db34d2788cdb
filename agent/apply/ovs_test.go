package apply

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// node is an Open vSwitch without devices, with the appliers that need nothing else of a node.
type node struct {
	*ovstest.OVS
	t      *testing.T
	dir    string // of the manifests
	source *inputs.Directory
	cfg    api.AgentConfig
	db     *ovsdb.DB
	ports  *OVSDB
	flows  *Flows
	pods   []api.Attachment
}

func newNode(t *testing.T, cfg api.AgentConfig) *node {
	t.Helper()
	n := &node{OVS: ovstest.Start(t, ovstest.Options{}), t: t, dir: t.TempDir(), cfg: cfg}
	n.cfg.OVSBridge, n.cfg.HostGateway, n.cfg.OVSDatapathType, n.cfg.OVSRunDir = "br-int", "gw0", "dummy", n.Dir
	n.cfg.TrafficEncapMode = api.ModeNoEncap
	var err error
	if n.source, err = inputs.NewDirectory(n.dir, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	if n.db, err = ovsdb.Connect(n.soon(), "unix:"+n.DBSocket, testr.New(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.db.Close)
	n.ports = NewOVSDB(n.db, n.Dir)
	n.flows = NewFlows(n.db, n.cfg, "me", n.source, &status.NewMetrics("test").Loop, testr.New(t))
	t.Cleanup(n.flows.Stop)
	return n
}

// soon is a context with far more time than any step needs.
func (n *node) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	n.t.Cleanup(cancel)
	return ctx
}

// has writes manifests, and rereads them.
func (n *node) has(manifests string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, "all.yaml"), []byte(manifests), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.source.Refresh()
}

// pod adds a pod to the node.
func (n *node) pod(id string, last byte) api.Attachment {
	a := api.Attachment{ContainerID: id, IfName: "eth0", HostIf: link.HostName(id, "eth0"), Network: "fairlead",
		PodNamespace: "ns", PodName: id, Netns: "/run/netns/" + id, MAC: api.MAC{2, 0, 0, 0, 0, last},
		Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 1, last}), 24)}}
	n.pods = append(n.pods, a)
	return a
}

// round is a round in which all pods are desired.
func (n *node) round() *Round {
	n.t.Helper()
	obs, err := n.db.Observe("br-int")
	if err != nil {
		n.t.Fatal(err)
	}
	own := inputs.Node{Name: "me", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}}
	return &Round{Observed: obs, Want: desired.Compute(desired.Inputs{Config: n.cfg, Own: own, Attachments: n.pods,
		Transport: link.Transport{Name: "eth0", MTU: 1500, IPv4: netip.MustParseAddr("192.0.2.1")}})}
}

// apply lets both appliers apply their parts of r, and returns their changes.
func (n *node) apply(r *Round) (ports, flows Changes) {
	n.t.Helper()
	var err error
	if ports, err = n.ports.Apply(n.soon(), r); err == nil {
		flows, err = n.flows.Apply(n.soon(), r)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return ports, flows
}

// looked handles found connections as the loop does, until all scans are done.
func (n *node) looked() {
	n.t.Helper()
	for deadline := time.After(time.Minute); n.flows.policies.tightened.busy() || n.flows.leftover.unseen.busy(); {
		select {
		case <-n.flows.Found():
			n.flows.EndFound(n.soon())
		case <-deadline:
			n.t.Fatal("connections are looked for without end")
		}
	}
}

// expect fails the test unless the switch has a flow with each text, or none of them.
func (n *node) expect(when string, there bool, texts ...string) {
	n.t.Helper()
	flows := flowtest.Flows(n.OVS)
	for _, text := range texts {
		if strings.Contains(flows, text) != there {
			n.t.Errorf("%s: a flow with %q: %t, want %t", when, text, !there, there)
		}
	}
}

// A port that was removed externally is restored and reported by any round, even if that has another purpose.
func TestRemovedPortIsReported(t *testing.T) {
	n := newNode(t, api.AgentConfig{})
	a := n.pod("a", 5)
	n.apply(n.round())
	n.Ctl("del-port", a.HostIf)
	n.pod("b", 6)
	for n.ports.InPlace(t.Context(), n.round().Observed) {
		time.Sleep(time.Millisecond)
	}
	r := n.round()
	r.Settled = true
	ports, _ := n.apply(r)
	if len(ports.Repaired) != 1 || !strings.Contains(ports.Repaired[0], a.HostIf) || len(ports.Wanted) != 1 {
		t.Errorf("repaired %q, and did %q", ports.Repaired, ports.Wanted)
	}
}

// A zone's timeouts wait until ovs-vswitchd has applied earlier changes. That is no external change.
func TestZonesThatWaited(t *testing.T) {
	n := newNode(t, api.AgentConfig{})
	n.apply(n.round())
	n.Vswitchd.Kill()
	n.Ctl("--no-wait", "set", "Open_vSwitch", ".", "next_cfg=1000")
	apply := func(pending bool) Changes {
		t.Helper()
		for n.round().Observed.Pending != pending {
			time.Sleep(time.Millisecond)
		}
		r := n.round()
		r.Settled, r.Want.OVSDB.Zones = true, ovsdb.Zones{Numbers: []uint16{7}, Timeouts: map[string]int{"tcp_close": 5}}
		c, err := n.ports.Apply(n.soon(), r)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := apply(true); len(c.Wanted)+len(c.Repaired) > 0 {
		t.Fatalf("while ovs-vswitchd is down: %+v", c)
	}
	n.Vswitchd.Start()
	wanted := func(when string, changes ...string) {
		t.Helper()
		for _, change := range changes {
			if c := apply(false); !slices.Equal(c.Wanted, []string{change}) || len(c.Repaired) > 0 {
				t.Errorf("%s: %+v; want %q", when, c, change)
			}
		}
	}
	wanted("as it is back", "conntrack zone 7 added", "timeouts of conntrack zone 7 set")
	n.Vswitchd.Kill()
	n.Vswitchd.Start()
	wanted("after a restart", "timeouts of conntrack zone 7 removed, to be set again", "timeouts of conntrack zone 7 set")
	n.Ctl("clear", "Datapath", strings.TrimSpace(n.Ctl("--columns=_uuid", "--bare", "find", "Datapath")), "ct_zones")
	for n.ports.InPlace(t.Context(), n.round().Observed) {
		time.Sleep(time.Millisecond)
	}
	if c := apply(false); !slices.Equal(c.Repaired, []string{"conntrack zone 7 added"}) {
		t.Errorf("after a hand has removed it: %+v; want one repair", c)
	}
}

// A foreign port on the bridge is noticed in a round, which reports it.
func TestForeignPortIsNotInPlace(t *testing.T) {
	n := newNode(t, api.AgentConfig{})
	n.apply(n.round())
	if !n.ports.InPlace(t.Context(), n.round().Observed) {
		t.Error("what a round has just put in place is not")
	}
	n.Ctl("add-port", "br-int", "theirs")
	for len(n.round().Observed.Foreign) == 0 {
		time.Sleep(time.Millisecond)
	}
	if n.ports.InPlace(t.Context(), n.round().Observed) {
		t.Error("a foreign port is taken for what a round left")
	}
}

// Flows are written before their port exists, with the port number that it requests, and change if it gets another.
func TestPortWithAnotherNumber(t *testing.T) {
	n := newNode(t, api.AgentConfig{})
	n.apply(n.round())
	a := n.pod("a", 5)
	r := n.round()
	r.Settled, r.Added = true, []string{a.HostIf}
	if _, err := n.ports.Apply(n.soon(), r); err != nil {
		t.Fatal(err)
	}
	n.Ctl("set", "Interface", a.HostIf, "type=none-such") // it has no number for now
	var asked uint32
	for gets := uint32(1); gets != 0; time.Sleep(time.Millisecond) {
		pods := n.round().Observed.Pods
		gets, asked = pods[0].OFPort, pods[0].Requested
	}
	applied := make(chan error, 1)
	go func() {
		_, err := n.flows.Apply(n.soon(), r)
		applied <- err
	}()
	ahead := fmt.Sprintf("in_port=%d,", asked)
	for !strings.Contains(flowtest.Flows(n.OVS), ahead) {
		time.Sleep(time.Millisecond)
	}
	n.Ctl("set", "Interface", a.HostIf, `type=""`, "ofport_request=77")
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	n.expect("after the port has another number", false, ahead)
	n.expect("after the port has another number", true, "in_port=77,")
}

func serviceManifests(port int, endpoints string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: dns, namespace: ns}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: ns, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: dns, port: %d, protocol: UDP}]
endpoints: [%s]
`, port, endpoints)
}

const oneEndpoint = "{addresses: [10.77.1.5], conditions: {ready: true}}"

func newServiceNode(t *testing.T, port int) *node {
	t.Helper()
	n := newNode(t, api.AgentConfig{Services: api.ServicesOVS, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12")})
	n.has(serviceManifests(port, oneEndpoint))
	n.pod("a", 5)
	n.apply(n.round())
	n.expect("a Service", true, "nw_dst=10.96.0.10,tp_dst=53")
	return n
}

// sync calls SyncServices.
func (n *node) sync(when string, done bool) {
	n.t.Helper()
	if did, err := n.flows.SyncServices(n.soon()); did != done || err != nil {
		n.t.Errorf("%s: SyncServices: %t, %v; want %t", when, did, err, done)
	}
}

// Answers from a high port need a flow that all Services share: a round adds it, and removes it after the last endpoint
// with that port.
func TestHighPortsOfEndpoints(t *testing.T) {
	n := newServiceNode(t, 53)
	const answers = "tp_src=40000,"
	n.expect("a low port", false, answers)
	n.has(serviceManifests(40000, oneEndpoint))
	n.sync("a high port", false)
	n.apply(n.round())
	n.expect("a high port", true, answers)
	n.has(serviceManifests(40000, ""))
	n.sync("no endpoint", false)
	n.apply(n.round())
	n.expect("no endpoint", false, answers, "nw_dst=10.96.0.10,tp_dst=53")
}

// If there are more endpoints than Open vSwitch accepts, the node uses its own selection.
func TestServiceWithTooManyEndpoints(t *testing.T) {
	n := newServiceNode(t, 53)
	var all []string
	for i := range 600 {
		all = append(all, fmt.Sprintf("{addresses: [10.78.%d.%d], conditions: {ready: true}}", i>>8, i&255))
	}
	n.has(serviceManifests(53, strings.Join(all, ", ")))
	n.sync("600 endpoints", true)
	for id, unit := range made(n.flows.services.units()) {
		if len(unit.Buckets) != openflow.MaxBuckets {
			t.Errorf("unit %d has %d buckets", id, len(unit.Buckets))
		}
	}
	for _, ports := range n.flows.services.of {
		for _, b := range ports {
			list := b.list()
			last := list[len(list)-1]
			if len(list) != openflow.MaxBuckets || last.Addr() == netip.MustParseAddr("10.78.1.243") {
				t.Errorf("%d endpoints, the last is %s: want some of all 600, not the first", len(list), last)
			}
		}
	}
}

// In another zone the node uses other endpoints, although its Services have not changed.
func TestServicesFollowTheZoneOfTheNode(t *testing.T) {
	n := newServiceNode(t, 53)
	endpoints := map[string]string{"a": "nat(dst=10.77.1.5:53)", "b": "nat(dst=10.77.1.6:53)"}
	for here, there := range map[string]string{"a": "b", "b": "a"} {
		n.has("apiVersion: v1\nkind: Node\nmetadata: {name: me, labels: {topology.kubernetes.io/zone: " + here + "}}\n---\n" +
			serviceManifests(53, "{addresses: [10.77.1.5], hints: {forZones: [{name: a}]}}, "+
				"{addresses: [10.77.1.6], hints: {forZones: [{name: b}]}}"))
		n.sync("in zone "+here, true)
		n.expect("in zone "+here, true, endpoints[here])
		n.expect("in zone "+here, false, endpoints[there])
	}
}

// A restarted ovs-vswitchd gets all Services, not only those that have changed.
func TestServicesOutliveTheSwitch(t *testing.T) {
	n := newServiceNode(t, 53)
	n.Vswitchd.Kill()
	n.Vswitchd.Start()
	n.expect("after the restart of ovs-vswitchd", false, "nw_dst=10.96.0.10,tp_dst=53")
	n.flows.Stop()
	n.apply(n.round())
	n.expect("after a round", true, "nw_dst=10.96.0.10,tp_dst=53")
}

// A pod's port number is released with its flows; the port itself may stay until then.
func TestNumbersOfDeletedPods(t *testing.T) {
	n := newNode(t, api.AgentConfig{})
	a := n.pod("a", 5)
	n.apply(n.round())
	n.pods = nil
	n.apply(n.round())
	if _, has := n.flows.numbers[a.HostIf]; has || !slices.Contains(slices.Collect(hostIfs(n.round())), a.HostIf) {
		t.Errorf("the port is on record or its number is not: %v", n.flows.numbers)
	}
	if n.flows.InPlace(t.Context(), n.round().Observed) {
		t.Error("a port that is to go is in place")
	}
}

func hostIfs(r *Round) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, p := range r.Observed.Pods {
			if !yield(p.HostIf) {
				return
			}
		}
	}
}

// The userspace datapath's cached megaflows are looked up again after a change; the kernel datapath does not need that.
func TestCachedMegaflowsAreForgotten(t *testing.T) {
	for datapath, want := range map[string]bool{api.DatapathNetdev: false, api.DatapathSystem: true} {
		n := newNode(t, api.AgentConfig{})
		n.flows.datapath = datapath
		a := n.pod("a", 5)
		n.apply(n.round())
		n.Ctl("set", "Open_vSwitch", ".", "other_config:max-idle=600000")
		n.Appctl("netdev-dummy/receive", a.HostIf, fmt.Sprintf("in_port(1),eth(src=%s,dst=02:00:00:00:00:99),"+
			"eth_type(0x0800),ipv4(src=10.77.1.5,dst=203.0.113.9,proto=17,tos=0,ttl=64,frag=no),udp(src=40000,dst=9)", a.MAC))
		cached := func() bool { return strings.Contains(n.Appctl("dpctl/dump-flows"), "actions:") }
		if !cached() {
			t.Fatalf("%s: the packet is not cached", datapath)
		}
		n.pod("b", 6)
		n.apply(n.round())
		n.Appctl("revalidator/wait")
		if cached() != want {
			t.Errorf("%s: after a change the packet is cached: %t, want %t", datapath, !want, want)
		}
	}
}
