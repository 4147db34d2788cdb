package clusterip

import (
	"flag"
	"hash/fnv"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/flowtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Addresses of the node, its pods, and its Services.
const (
	macA, macB, macGW = "0a:00:00:00:00:03", "0a:00:00:00:00:04", "0e:00:00:00:00:01"
	vip4, vip6        = "10.96.0.1", "fd00:10:96::1"
)

// node is a node with two routed pods, a peer, and bridged pods, untagged and in VLAN 10.
func node(t *testing.T) tables.View {
	pod := func(port uint32, mac, addrs string) tables.Pod {
		return tables.Pod{Port: port, MAC: flowtest.MAC(t, mac), Addrs: flowtest.Addrs(addrs)}
	}
	untagged := pod(flowtest.PodU, "0a:00:00:00:00:10", "192.168.77.110")
	tagged := pod(flowtest.PodV, "0a:00:00:00:00:12", "192.168.110.112,fd77:0:0:a10::112")
	untagged.Bridged, tagged.Bridged, tagged.VLAN = true, true, 10
	return tables.View{
		Gateway: tables.Gateway{Port: flowtest.Gateway, MAC: flowtest.MAC(t, macGW),
			Addrs: flowtest.Addrs("10.10.0.1,fd00:10::1"), PodCIDRs: flowtest.Prefixes("10.10.0.0/24,fd00:10::/64")},
		TunnelPort: flowtest.Tunnel, Uplink: flowtest.Uplink,
		Pods: []tables.Pod{tagged, pod(flowtest.PodA, macA, "10.10.0.3,fd00:10::3"),
			pod(flowtest.PodB, macB, "10.10.0.4,fd00:10::4"), untagged},
		Peers: []tables.Peer{{Name: "node-b", Tunnel: netip.MustParseAddr("192.168.77.2"),
			PodCIDRs: flowtest.Prefixes("10.10.1.0/24,fd00:10:0:1::/64")}},
		NodeAddrs: flowtest.Addrs("192.168.77.1"), ViaHost: flowtest.Prefixes("10.96.0.0/16,fd00:10:96::/112"),
	}
}

func ranges() Services {
	return Services{CIDRs: flowtest.Prefixes("10.96.0.0/16,fd00:10:96::/112"), HighPorts: []Port{{TCP, 50051}}}
}

func endpoints(list ...string) (out []netip.AddrPort) {
	for _, e := range list {
		out = append(out, netip.MustParseAddrPort(e))
	}
	return out
}

// units are Services with one endpoint and with two, some of them with session affinity.
func units() map[uint32]openflow.Unit {
	to := func(vip string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(vip), port)
	}
	return map[uint32]openflow.Unit{
		1: Unit(1, to(vip4, 80), TCP, endpoints("10.10.0.4:8080"), 0),
		2: Unit(2, to(vip4, 53), UDP, endpoints("10.10.0.4:53", "10.10.1.9:53"), 0),
		3: Unit(3, to(vip6, 80), TCP, endpoints("[fd00:10::4]:8080"), 0),
		4: Unit(4, to(vip4, 443), TCP, endpoints("10.10.0.4:8443", "10.10.1.9:8443"), 3*time.Hour),
		5: Unit(5, to(vip6, 53), UDP, endpoints("[fd00:10::4]:53", "[fd00:10:0:1::9]:53"), 30*time.Hour),
	}
}

// The flows match the golden file, and do not depend on the order of pods. An address that two pods have gives one
// flow, as the switch would refuse two.
func TestGolden(t *testing.T) {
	v := node(t)
	got := flowtest.Text(Flows(v, ranges()))
	const file = "testdata/flows.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := flowtest.Diff(string(want), got); diff != "" {
		t.Errorf("flows differ from %s; go test -update writes it (-want +got):\n%s", file, diff)
	}
	slices.Reverse(v.Pods)
	if diff := flowtest.Diff(got, flowtest.Text(Flows(v, ranges()))); diff != "" {
		t.Errorf("the order of pods matters:\n%s", diff)
	}
	v.Pods = append(v.Pods, v.Pods[1])
	v.Pods[len(v.Pods)-1].Port = 99
	if diff := flowtest.Diff(got, flowtest.Text(Flows(v, ranges()))); strings.Contains(diff, "-") {
		t.Errorf("with an address that two pods have, flows are missing:\n%s", diff)
	}
	if got := Flows(v, Services{}); len(got) != 0 {
		t.Errorf("without a range of Services: %d flows", len(got))
	}
}

var update = flag.Bool("update", false, "write the flows into testdata")

// The switch has exactly the flows and groups that were sent, and foreign groups are deleted.
func TestParity(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	want := slices.Concat(tables.Pipeline(node(t)), Flows(node(t), ranges()))
	s.SetUnits(units(), true)
	for range 3 { // until the list's digest is known: from then on it is decoded only if it differs
		flowtest.Sync(t, s, want)
		s.Resync()
	}
	flowtest.Sync(t, s, want)
	o.Ofctl("add-group", "br-int", "group_id=77,type=all,bucket=output:4", "-OOpenFlow15")
	o.Ofctl("mod-group", "br-int", "group_id=2,type=select,bucket=bucket_id:1,actions=output:4", "-OOpenFlow15")

	if _, err := s.SyncUnits(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Resync()
	if got := flowtest.Sync(t, s, want); got != (openflow.Changes{Modified: 1, Deleted: 1}) {
		t.Errorf("of a group added and one modified by others a resync changed %+v", got)
	}
	// A starting agent does not know yet which ports endpoints have.
	again := flowtest.Dial(t, o, openflow.Dial)
	unread := slices.Concat(tables.Pipeline(node(t)), Flows(node(t), Services{CIDRs: ranges().CIDRs}))
	if got := flowtest.Sync(t, again, unread); got != (openflow.Changes{}) {
		t.Errorf("before Services have been read %+v was changed", got)
	}
	again.SetUnits(units(), true)
	if got := flowtest.Sync(t, again, want); got != (openflow.Changes{}) || len(again.Gone()) != 0 {
		t.Errorf("a new connection changed %+v", got)
	}
	again.SetUnits(nil, true)
	flowtest.Sync(t, again, nil)
	if groups := o.Ofctl("dump-groups", "br-int", "-OOpenFlow15"); strings.Contains(groups, "group_id") {
		t.Errorf("groups that are left:\n%s", groups)
	}
}

const (
	fromA    = "in_port=3,dl_src=" + macA + ",dl_dst=" + macGW + ",tcp,nw_src=10.10.0.3,nw_ttl=64,tcp_src=40000"
	fromA6   = "in_port=3,dl_src=" + macA + ",dl_dst=" + macGW + ",tcp6,ipv6_src=fd00:10::3,nw_ttl=64,tcp_src=40000"
	fromB    = "in_port=4,dl_src=" + macB + ",dl_dst=" + macGW + ",tcp,nw_src=10.10.0.4,nw_ttl=64"
	fromPeer = "in_port=1,tun_src=192.168.77.2,tun_dst=192.168.77.1,dl_src=0e:00:00:00:00:b1,dl_dst=" + macGW +
		",tcp,nw_src=10.10.1.9,nw_ttl=63"
	fromGW = "in_port=2,dl_src=" + macGW + ",dl_dst=" + macA
	fromV  = "in_port=12,dl_src=0a:00:00:00:00:12,dl_dst=0c:00:00:00:00:01,tcp,nw_src=192.168.110.112,nw_ttl=64,tcp_src=40000"
)

// For UDP it is known which endpoints were removed, even if no agent ran at the time.
func TestGone(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	dns := netip.AddrPortFrom(netip.MustParseAddr(vip4), 53)
	want := slices.Concat(tables.Pipeline(node(t)), Flows(node(t), ranges()))
	expect := func(s *openflow.Switch, endpoints ...string) {
		t.Helper()
		var got []string
		for _, g := range s.Gone() {
			if g.Service != dns {
				t.Errorf("%s has lost an endpoint", g.Service)
			}
			got = append(got, g.Endpoint.String())
		}
		if slices.Sort(got); !slices.Equal(got, endpoints) {
			t.Errorf("%v have gone, want %v", got, endpoints)
		}
	}
	one := Unit(2, dns, UDP, endpoints("10.10.1.9:53"), 0)
	s.SetUnits(units(), true)
	flowtest.Sync(t, s, want)
	expect(s)
	s.SetUnits(map[uint32]openflow.Unit{2: one, 1: {}}, false)
	if _, err := s.SyncUnits(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(s, "10.10.0.4:53")
	expect(s)
	s.SetUnits(units(), true)
	flowtest.Sync(t, s, want)
	expect(s)
	later, last := units(), units()
	later[2] = one
	again := flowtest.Dial(t, o, openflow.Dial)
	again.SetUnits(later, true)
	flowtest.Sync(t, again, want)
	expect(again, "10.10.0.4:53")
	delete(last, 2)
	once := flowtest.Dial(t, o, openflow.Dial)
	once.SetUnits(last, true)
	flowtest.Sync(t, once, want)
	expect(once, "10.10.1.9:53")
}

// Only the differences of a listing are kept; a Unit that changes afterwards is compared with the switch's state.
func TestUnitsThatWereListed(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	want := slices.Concat(tables.Pipeline(node(t)), Flows(node(t), ranges()))
	list := func() {
		t.Helper()
		s.Resync()
		if _, err := s.PodFlows(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.SetUnits(units(), true)
	flowtest.Sync(t, s, want)
	list()
	dns := netip.AddrPortFrom(netip.MustParseAddr(vip4), 53)
	s.SetUnits(map[uint32]openflow.Unit{1: {}, 2: Unit(2, dns, UDP, endpoints("10.10.1.9:53"), 0)}, false)
	// One flow fewer, and one that no longer leads to a group, which is deleted.
	if got := flowtest.Sync(t, s, want); got != (openflow.Changes{Modified: 1, Deleted: 2}) || len(s.Gone()) != 1 {
		t.Errorf("changed after the list: %+v", got)
	}
	s.SetUnits(units(), true)
	flowtest.Sync(t, s, want)
	o.Ofctl("mod-flows", "br-int", "table=2,udp,nw_dst="+vip4+",actions=drop")
	o.Ofctl("del-flows", "br-int", "table=9,tcp,nw_dst="+vip4)
	list()
	if got := flowtest.Sync(t, s, want); got != (openflow.Changes{Added: 3, Modified: 1}) || len(s.Gone()) != 0 {
		t.Errorf("changed by others: %+v", got)
	}
	list()
	if got := flowtest.Sync(t, s, want); got != (openflow.Changes{}) {
		t.Errorf("afterwards: %+v", got)
	}
}

// A starting agent reuses the numbers that the switch has, so the way they are computed must never change.
func TestNumbers(t *testing.T) {
	for _, e := range endpoints("10.0.0.1:80", "[fd00::1]:65535") {
		h := fnv.New32a()
		h.Write(append(e.Addr().AsSlice(), byte(e.Port()>>8), byte(e.Port()), TCP))
		if got, want := firstID(e, TCP), h.Sum32()&0x7fffffff; got != want {
			t.Errorf("%s has the number %d, want %d", e, got, want)
		}
		list := []netip.AddrPort{e, netip.AddrPortFrom(e.Addr().Next(), 0)}
		if got := Pack(list).List(e.Addr().Is4()); !slices.Equal(got, list) {
			t.Errorf("packed %v, and got %v", list, got)
		}
	}
	others := []openflow.Bucket{{ID: 0x7fffffff}, {ID: 1}}
	if got := bucketID(others, 0x7fffffff); got != 2 {
		t.Errorf("what others have is number %d", got)
	}
}

// traced is the result of a trace: the tables that a packet visits in all passes, and the datapath's actions.
type traced struct {
	visited  []string
	megaflow string // of the first pass
	actions  string // of all passes
}

func trace(o *ovstest.OVS, p string) (out traced) {
	report := o.Trace("br-int", p)
	for _, m := range regexp.MustCompile(`(?m)^ *(\d+)\. `).FindAllStringSubmatch(report, -1) {
		out.visited = append(out.visited, m[1])
	}
	out.megaflow = regexp.MustCompile(`Megaflow: (.*)`).FindStringSubmatch(report)[1]
	for _, m := range regexp.MustCompile(`Datapath actions: (.*)`).FindAllStringSubmatch(report, -1) {
		out.actions += m[1] + "\n"
	}
	return out
}

// Direct traffic is forwarded as without Services: by the same tables and actions, without conntrack. Of ports, its
// megaflows match only whether they are low, or may be an endpoint's.
func TestDirectTrafficIsAsBefore(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	direct := []string{
		fromA + ",nw_dst=10.10.0.4,tcp_dst=8080", fromB + ",nw_dst=10.10.0.3,tcp_src=8080,tcp_dst=40000",
		fromA + ",nw_dst=10.10.1.9,tcp_dst=8080", fromPeer + ",nw_dst=10.10.0.3,tcp_src=8080,tcp_dst=40000",
		fromPeer + ",nw_dst=10.10.0.4,tcp_src=40000,tcp_dst=8080", fromA6 + ",ipv6_dst=fd00:10::4,tcp_dst=8080",
		fromA + ",nw_dst=192.0.2.1,tcp_dst=443", fromV + ",nw_dst=192.0.2.1,tcp_dst=443",
		fromGW + ",tcp,nw_src=192.0.2.1,nw_ttl=60,tcp_src=443,nw_dst=10.10.0.3,tcp_dst=40000",
	}
	flowtest.Sync(t, s, tables.Pipeline(node(t)))
	before := map[string]traced{}
	for _, p := range direct {
		before[p] = trace(o, p)
	}
	s.SetUnits(units(), true)
	flowtest.Sync(t, s, slices.Concat(tables.Pipeline(node(t)), Flows(node(t), ranges())))
	ports := regexp.MustCompile(`,tp_(src|dst)=0x[08]000/0x[8c]000|,tp_(src|dst)=0x0/0x8000`)
	for _, p := range direct {
		got, was := trace(o, p), before[p]
		if !slices.Equal(got.visited, was.visited) || got.actions != was.actions || strings.Contains(got.actions, "recirc") {
			t.Errorf("%s visits %v and does\n%swithout Services %v and\n%s", p, got.visited, got.actions, was.visited, was.actions)
		}
		wide := strings.Replace(ports.ReplaceAllString(got.megaflow, ""), ",tcp,", ",ip,", 1)
		if wide != strings.Replace(was.megaflow, ",tcp,", ",ip,", 1) {
			t.Errorf("%s has the megaflow\n%s\nwithout Services\n%s", p, got.megaflow, was.megaflow)
		}
	}
}

// The tables that a first packet to a ClusterIP visits. Open vSwitch's traces do not have the addresses that conntrack
// translates.
func TestPacketsToServices(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	s.SetUnits(units(), true)
	flowtest.Sync(t, s, slices.Concat(tables.Pipeline(node(t)), Flows(node(t), ranges())))
	elsewhere := strings.Replace(fromA, macGW, "0e:66:6c:00:00:01", 1)
	for _, c := range []struct{ name, packet, visited, does string }{
		{"one endpoint", fromA + ",nw_dst=10.96.0.1,tcp_dst=80,tcp_flags=syn", "0 3 2 5 3", "nat(dst=10.10.0.4:8080)"},
		{"IPv6", fromA6 + ",ipv6_dst=fd00:10:96::1,tcp_dst=80,tcp_flags=syn", "0 3 2 5 3", "nat(dst=[fd00:10::4]:8080)"},
		{"not the first of its connection", elsewhere + ",nw_dst=10.96.0.1,tcp_dst=80,tcp_flags=ack", "0 3 2",
			"set(eth(dst=" + macGW},
		{"an answer to what another has sent", elsewhere + ",nw_dst=10.96.0.1,tcp_dst=80,tcp_flags=syn|ack", "0 3 2",
			"set(eth(dst=" + macGW},
		{"no such port", elsewhere + ",nw_dst=10.96.0.1,tcp_dst=81,tcp_flags=syn", "0 3 2", "set(eth(dst=" + macGW},
		{"bridged", fromV + ",nw_dst=10.96.0.1,tcp_dst=80,tcp_flags=syn", "0 3 2 5 3", "ct(commit,zone=36874"},
		{"an answer", fromB + ",nw_dst=10.10.0.3,tcp_src=8080,tcp_dst=17000", "0 3 3", "ct(zone=45056,nat),ct(zone=40960,nat)"},
		{"an answer of a port that is high", fromB + ",nw_dst=10.10.0.3,tcp_src=50051,tcp_dst=17000", "0 3 3",
			"ct(zone=45056,nat),ct(zone=40960,nat)"},
	} {
		got := trace(o, c.packet)
		if strings.Join(got.visited, " ") != c.visited || !strings.Contains(got.actions, c.does) {
			t.Errorf("%s: visits %v and does\n%s\nwant %s and %s", c.name, got.visited, got.actions, c.visited, c.does)
		}
	}
}

// Connections are forgotten in each zone that has some: those of routed pods share one, and each segment has its own.
func TestZonesOfAll(t *testing.T) {
	if got, want := Zones(node(t).Pods), []uint16{zoneSegments, zoneSegments + 10, zoneRouted}; !slices.Equal(got, want) {
		t.Errorf("the zones are %#x, want %#x", got, want)
	}
}

// AllZones are the zones that packets go through, no more and no fewer.
func TestAllZones(t *testing.T) {
	v, used := node(t), map[uint16]bool{}
	for _, f := range Flows(v, ranges()) {
		for _, a := range f.Actions {
			if ct, ok := a.(openflow.Conntrack); ok {
				used[ct.Zone] = true
			}
		}
	}
	if got, want := AllZones(v.Pods), slices.Sorted(maps.Keys(used)); !slices.Equal(got, want) {
		t.Errorf("the zones are %#x, want %#x", got, want)
	}
}

// A forgotten ID is free again: a port that returns gets the ID that a starting agent would give it.
func TestForgottenNumberIsFree(t *testing.T) {
	var ids IDs
	to := netip.MustParseAddrPort("10.96.0.10:53")
	first := ids.Of(to, UDP)
	ids.Forget(to, UDP)
	if again := ids.Of(to, UDP); again != first || ids.Of(to, TCP) == first {
		t.Errorf("it had %d, and has %d after it was forgotten", first, again)
	}
}

// If two ports have the same number, the second gets the next one, and keeps it when the first is gone.
func TestNumbersThatAreEqual(t *testing.T) {
	var fresh IDs
	to := netip.MustParseAddrPort("10.96.0.10:53")
	number := fresh.Of(to, UDP)
	other := owner{netip.MustParseAddrPort("10.96.0.11:53"), UDP}
	ids := IDs{byID: map[uint32]owner{number: other}, moved: map[owner]uint32{other: number}}
	for _, when := range []string{"at first", "the second time"} {
		if id := ids.Of(to, UDP); id != number+1 {
			t.Errorf("%s it is %d, want %d", when, id, number+1)
		}
	}
	ids.Forget(other.to, UDP)
	if id := ids.Of(to, UDP); id != number+1 {
		t.Errorf("after the other is gone it is %d, want %d still", id, number+1)
	}
	ids.Forget(to, UDP)
	if id := ids.Of(to, UDP); id != number || len(ids.byID) != 1 || len(ids.moved) != 0 {
		t.Errorf("after it was gone it is %d, want %d: %v", id, number, ids)
	}
}

// Units that the switch had when it was listed are deleted once they are gone, even if a first comparison found nothing
// to do.
func TestUnitDeletedAfterEqualComparison(t *testing.T) {
	o := flowtest.Node(t)
	want := slices.Concat(tables.Pipeline(node(t)), Flows(node(t), ranges()))
	before := flowtest.Dial(t, o, openflow.Dial)
	before.SetUnits(units(), true)
	flowtest.Sync(t, before, want)
	s := flowtest.Dial(t, o, openflow.Dial) // a starting agent that has not read Services yet
	flowtest.Sync(t, s, want)
	s.SetUnits(units(), true)
	for _, c := range []struct {
		what    string
		deletes bool
	}{{"equal", false}, {"without one", true}} {
		if c.deletes {
			s.SetUnits(map[uint32]openflow.Unit{1: {}}, false)
		}
		changes, err := s.SyncUnits(t.Context())
		if err != nil || (changes.Deleted > 0) != c.deletes || changes.Added+changes.Modified > 0 {
			t.Errorf("%s: %+v, %v", c.what, changes, err)
		}
	}
}

// Answers from ports below 32768 share one flow; those from each port above have a flow of their own.
func TestHighPorts(t *testing.T) {
	for port, want := range map[uint16]bool{1: false, 0x7fff: false, 0x8000: true, 0xffff: true} {
		if got := (Port{TCP, port}).High(); got != want {
			t.Errorf("port %d is high: %t", port, got)
		}
	}
}
