package openflow_test

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/flowtest"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A change sends its own flows and no others, and a sync without a change
// sends nothing at all.
func TestSyncSendsTheDifference(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	view := twoPods()
	flowtest.Sync(t, s, tables.Pipeline(view))

	before := s.Messages()
	flowtest.Sync(t, s, tables.Pipeline(view))
	if sent := s.Messages() - before - 1; sent != 0 {
		t.Errorf("a sync without a change sent %d messages", sent)
	}
	pod := tables.Pod{Port: 5, MAC: flowtest.MAC(t, "0a:00:00:00:00:05"), Addrs: flowtest.Addrs("10.10.0.5,fd00:10::5")}
	peer := tables.Peer{Name: "node-d", Tunnel: netip.MustParseAddr("192.168.77.4"),
		PodCIDRs: flowtest.Prefixes("10.10.3.0/24,fd00:10:0:3::/64")}
	with := view
	with.Pods, with.Peers = append([]tables.Pod{pod}, view.Pods...), append([]tables.Peer{peer}, view.Peers...)
	for _, c := range []struct {
		name string
		view tables.View
		want openflow.Changes
	}{
		{"pod and peer come", with, openflow.Changes{Added: 18 + 6}},
		{"pod and peer go", view, openflow.Changes{Deleted: 18 + 6}},
	} {
		if got := flowtest.Sync(t, s, tables.Pipeline(c.view)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	view.Peers[0].Tunnel = netip.MustParseAddr("192.168.77.9")
	if got, want := flowtest.Sync(t, s, tables.Pipeline(view)), (openflow.Changes{Added: 2, Modified: 4,
		Deleted: 2}); got != want {
		t.Errorf("peer moves: %+v, want %+v", got, want)
	}
	s.Resync()
	if got := flowtest.Sync(t, s, tables.Pipeline(view)); got != (openflow.Changes{}) {
		t.Errorf("afterwards a resync found %+v", got)
	}
}

// Any change of the flows by a third party is reverted and counted.
func TestDrift(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	view := twoPods()
	want := tables.Pipeline(view)
	flowtest.Sync(t, s, want)
	ourCookie := fmt.Sprintf("cookie=%#x,", want[0].Cookie())
	added := openflow.Changes{Deleted: 1} // the repair of an added flow
	modified := openflow.Changes{Modified: 1}
	for _, c := range []struct {
		name, command, flow string
		want                openflow.Changes
	}{
		{"added", "add-flow", "priority=7,ip,in_port=3,actions=output:4", added},
		{"added with our cookie", "add-flow", ourCookie + "table=1,priority=7,actions=output:4", added},
		{"added in a table of no ours", "add-flow", "table=42,priority=7,tcp,tcp_dst=80,actions=NORMAL", added},
		{"added with odd match and actions", "add-flow", "table=9,tcp,tcp_flags=+syn,ct_state=+trk,nw_ecn=1," +
			"actions=ct(commit,zone=3,exec(set_field:1->ct_mark)),resubmit(,10)", added},
		{"added, masked", "add-flow", "priority=7,dl_src=0a:00:00:00:00:00/ff:00:00:00:00:00,actions=drop", added},
		{"added, VLAN 7", "add-flow", "priority=400,dl_vlan=7,actions=drop", added},
		{"added, other protocol", "add-flow", "priority=200,icmp,in_port=2,actions=drop", added},
		{"deleted", "del-flows", "table=3,ip,nw_dst=10.10.0.4", openflow.Changes{Added: 1}},
		{"deleted, all", "del-flows", "", openflow.Changes{Added: len(want)}},
		{"modified", "mod-flows", "table=3,ip,nw_dst=10.10.0.4,actions=output:3", modified},
		{"modified to drop", "mod-flows", "table=3,ip,nw_dst=10.10.0.4,actions=drop", modified},
		{"modified, odd action", "mod-flows", "table=3,ip,nw_dst=10.10.0.4,actions=note:01.02,NORMAL", modified},
		{"drop modified to forward", "mod-flows --strict", "table=3,priority=0,actions=NORMAL", modified},
		{"replaced", "add-flow", "cookie=0x1234,table=3,priority=200,ip,nw_dst=10.10.0.4," +
			"actions=set_field:0a:00:00:00:00:04->eth_dst,output:4", modified},
		{"replaced, will expire", "add-flow", "hard_timeout=600," + cookieOf(t, want, "nw_dst=10.10.0.4 ") +
			"table=3,priority=200,ip,nw_dst=10.10.0.4,actions=set_field:0a:00:00:00:00:04->eth_dst,output:4", modified},
	} {
		t.Run(c.name, func(t *testing.T) {
			unread(t, s, want)
			command, option, _ := strings.Cut(c.command, " ")
			o.Ofctl(command, "br-int", strings.Fields(option+" "+c.flow)...)
			if got := flowtest.Sync(t, s, want); got != (openflow.Changes{}) {
				t.Errorf("without a resync %+v was found", got)
			}
			s.Resync()
			if got := flowtest.Sync(t, s, want); got != c.want {
				t.Errorf("found %+v, want %+v", got, c.want)
			}
			if diff := flowtest.Diff(flowtest.Sorted(flowtest.Text(want)), flowtest.Sorted(flowtest.Flows(o))); diff != "" {
				t.Errorf("not repaired (-want +got):\n%s", diff)
			}
		})
	}
}

// unread resyncs until the digest of the list of flows is known: from then on a list is decoded only if it differs.
func unread(t *testing.T, s *openflow.Switch, want []openflow.Flow) {
	t.Helper()
	for range 2 {
		s.Resync()
		if got := flowtest.Sync(t, s, want); got != (openflow.Changes{}) {
			t.Fatalf("a resync without a change found %+v", got)
		}
	}
}

// An external change that restores the state before our last change is found like any other.
func TestOurChangeIsUndone(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	without := tables.Pipeline(twoPods())
	flowtest.Sync(t, s, without)
	unread(t, s, without)
	with := append(slices.Clone(without), openflow.Flow{Kind: openflow.KindBase, Table: 3, Priority: 7})
	if got := flowtest.Sync(t, s, with); got.Added != 1 {
		t.Fatalf("%+v, want one flow added", got)
	}
	o.Ofctl("del-flows", "br-int", "--strict", "table=3,priority=7")
	s.Resync()
	if got := flowtest.Sync(t, s, with); got.Added != 1 {
		t.Errorf("found %+v, want one flow added", got)
	}
}

// A bridge in fail mode standalone has a flow of its own, which would make
// br-int a learning switch.
func TestFreshStandaloneBridge(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-int")
	o.Ctl("set", "Bridge", "br-int", "fail_mode=standalone")
	if flows := flowtest.Flows(o); !strings.Contains(flows, "NORMAL") {
		t.Fatalf("a standalone bridge has no NORMAL flow any more:\n%s", flows)
	}
	want := tables.Pipeline(tables.View{})
	// A flow of Fairlead has the same match: it is replaced, not deleted.
	if got := flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), want); got.Added+got.Modified != len(want) ||
		got.Modified+got.Deleted != 1 {
		t.Errorf("changed %+v, want %d new flows and one gone", got, len(want))
	}
	if flows := flowtest.Flows(o); strings.Contains(flows, "NORMAL") {
		t.Errorf("NORMAL is still there:\n%s", flows)
	}
}

// One flow that the switch refuses makes Sync fail with an error that names the flow and the reason. The others are
// installed.
func TestRefusedFlow(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	view := twoPods()
	good := tables.Pipeline(view)
	for _, c := range []struct {
		name, reason string
		flow         openflow.Flow
	}{
		{"match without prerequisite", "OFPBMC_BAD_PREREQ",
			openflow.Flow{Table: 3, Priority: 9, Kind: openflow.KindPod,
				Match: openflow.Match{EtherType: openflow.IPv4, NDTarget: netip.MustParseAddr("fd00::1")}}},
		{"no such port number", "OFPBAC_BAD_OUT_PORT",
			openflow.Flow{Table: 3, Priority: 9, Kind: openflow.KindPod,
				Match: openflow.Match{EtherType: openflow.IPv4}, Actions: []openflow.Action{openflow.Output(0xfffffef0)}}},
		{"goto backwards", "OFPB", openflow.Flow{Table: 3, Priority: 9, Kind: openflow.KindPod, Actions: []openflow.Action{openflow.Goto(1)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.Sync(t.Context(), slices.Concat(good[:5], []openflow.Flow{c.flow}, good[5:]))
			refused := (*openflow.FlowError)(nil)
			if !errors.As(err, &refused) || refused.Flow.Key() != c.flow.Key() {
				t.Fatalf("got error %v, want a FlowError for %s", err, c.flow)
			}
			if !strings.Contains(err.Error(), c.flow.String()) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("error %q does not name the flow %s and %s", err, c.flow, c.reason)
			}
			if diff := flowtest.Diff(flowtest.Sorted(flowtest.Text(good)), flowtest.Sorted(flowtest.Flows(o))); diff != "" {
				t.Errorf("the good flows are missing (-want +got):\n%s", diff)
			}
			if got := flowtest.Sync(t, s, good); got != (openflow.Changes{}) {
				t.Errorf("the next sync changed %+v", got)
			}
		})
	}
}

// A bundle that fails as a whole changes nothing, and the next Sync sends it again.
func TestRefusedBundle(t *testing.T) {
	o := flowtest.Node(t)
	o.Ctl("--", "--id=@ft", "create", "Flow_Table", "flow_limit=5", "overflow_policy=refuse",
		"--", "set", "Bridge", "br-int", "flow_tables:0=@ft")
	s := flowtest.Dial(t, o, openflow.Dial)
	view := twoPods()
	_, err := s.Sync(t.Context(), tables.Pipeline(view))
	if err == nil || !strings.Contains(err.Error(), "OFPFMFC_TABLE_FULL") || !strings.Contains(err.Error(), "bundle") {
		t.Errorf("got error %v, want OFPFMFC_TABLE_FULL and that of the bundle", err)
	}
	if flows := flowtest.Flows(o); strings.Contains(flows, "priority") {
		t.Errorf("part of a failed bundle is installed:\n%s", flows)
	}
	o.Ctl("clear", "Bridge", "br-int", "flow_tables")
	if got := flowtest.Sync(t, s, tables.Pipeline(view)); got.Added != len(tables.Pipeline(view)) {
		t.Errorf("with room again: %+v, want %d added", got, len(tables.Pipeline(view)))
	}
}

// A flow that cannot be encoded is detected after part of its bundle has been sent: none of that part is installed.
func TestUnencodableFlow(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	many := tables.Pipeline(bigView(100, 100))
	_, err := s.Sync(t.Context(), append(many, openflow.Flow{Table: 9, Actions: []openflow.Action{openflow.Unknown("x")}}))
	if err == nil || !strings.Contains(err.Error(), "no encoding") {
		t.Errorf("got error %v", err)
	}
	if flows := flowtest.Flows(o); strings.Contains(flows, "priority") {
		t.Errorf("part of the bundle is installed:\n%s", flows)
	}
	_, err = s.Sync(t.Context(), []openflow.Flow{{Kind: openflow.KindPod}, {Kind: openflow.KindPeer}})
	if err == nil || !strings.Contains(err.Error(), "two flows") {
		t.Errorf("got error %v", err)
	}
	if got := flowtest.Sync(t, s, []openflow.Flow{{Kind: openflow.KindBase}}); got.Added != 1 {
		t.Errorf("afterwards %+v", got)
	}
}

// A list of 2,000 flows takes several parts.
func TestManyFlows(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	want := tables.Pipeline(bigView(100, 225))
	if len(want) < 2000 {
		t.Fatalf("%d flows are not many", len(want))
	}
	start := time.Now()
	if got := flowtest.Sync(t, s, want); got.Added != len(want) {
		t.Errorf("%+v, want %d added", got, len(want))
	}
	added := time.Now()
	s.Resync()
	if got := flowtest.Sync(t, s, want); got != (openflow.Changes{}) {
		t.Errorf("a resync found %+v", got)
	}
	t.Logf("%d flows: sync %v, resync %v", len(want), added.Sub(start), time.Since(added))
	if n := strings.Count(flowtest.Flows(o), "actions="); n != len(want) {
		t.Errorf("the switch has %d flows, want %d", n, len(want))
	}
}

// Packets that a flow drops are counted on it.
func TestDropsAreCounted(t *testing.T) {
	o := flowtest.Node(t)
	view := twoPods()
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), tables.Pipeline(view))
	packet := "in_port(1),eth(src=0a:00:00:00:00:03,dst=0e:00:00:00:00:01),eth_type(0x0800)," +
		"ipv4(src=%s,dst=%s,proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=2000)"
	for range 3 {
		o.Appctl("netdev-dummy/receive", "pod-a", fmt.Sprintf(packet, "10.10.0.4", "10.10.0.1")) // spoofed
		o.Appctl("netdev-dummy/receive", "pod-a", fmt.Sprintf(packet, "10.10.0.3", "10.10.0.77"))
	}
	deadline := time.Now().Add(time.Minute) // ovs-vswitchd updates counters about once a second
	for _, drop := range []string{
		`table=0, n_packets=3, .*priority=0 actions=drop`,
		`table=3, n_packets=3, .*priority=150,ip,nw_dst=10.10.0.0/24 actions=drop`,
	} {
		for re := regexp.MustCompile(drop); ; time.Sleep(50 * time.Millisecond) {
			flows := o.Ofctl("dump-flows", "br-int", "--no-names")
			if re.MatchString(flows) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no flow like %q:\n%s", drop, flows)
			}
		}
	}
}

// cookieOf is "cookie=...," of the flow whose text has part.
func cookieOf(t *testing.T, flows []openflow.Flow, part string) string {
	t.Helper()
	for _, f := range flows {
		if strings.Contains(f.String(), part) {
			return fmt.Sprintf("cookie=%#x,", f.Cookie())
		}
	}
	t.Fatalf("no flow with %q", part)
	return ""
}

// bigView has pods with two addresses and peers with two podCIDRs.
func bigView(pods, peers int) tables.View {
	v := tables.View{TunnelPort: 1, Gateway: tables.Gateway{Port: 2, MAC: [6]byte{0x0e, 5: 1},
		Addrs: flowtest.Addrs("10.0.0.1,fd00:10::1"), PodCIDRs: flowtest.Prefixes("10.0.0.0/24,fd00:10::/64")}}
	for i := range pods {
		v.Pods = append(v.Pods, tables.Pod{Port: uint32(10 + i), MAC: [6]byte{0x0a, 4: byte(i >> 8), 5: byte(i)},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(2 + i)}),
				netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 14: byte(i >> 8), 15: byte(2 + i)})}})
	}
	for i := range peers {
		hi, lo := byte(i>>8), byte(i)
		v.Peers = append(v.Peers, tables.Peer{Name: fmt.Sprintf("node-%05d", i),
			Tunnel: netip.AddrFrom4([4]byte{172, 16, hi, lo}),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + hi, lo, 0}), 24),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, 0, 0x10, 0, 0, hi, lo}), 64)}})
	}
	return v
}

// How the switch treats fragments determines what flows see of them. That setting is not part of its flows, and is
// reset by each restart of ovs-vswitchd.
func TestFragmentsAreSeen(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	for range 2 {
		s.Resync()
		if _, err := s.Sync(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if got := o.Ofctl("get-frags", "br-int"); !strings.Contains(got, "nx-match") {
			t.Errorf("fragments: %s, want nx-match", got)
		}
		o.Ofctl("set-frags", "br-int", "normal")
	}
}

// twoPods is a node with two pods and two peers, in both families.
func twoPods() tables.View {
	v := tables.View{TunnelPort: flowtest.Tunnel, Gateway: tables.Gateway{Port: flowtest.Gateway, MAC: [6]byte{0x0e, 5: 1},
		Addrs: flowtest.Addrs("10.10.0.1,fd00:10::1"), PodCIDRs: flowtest.Prefixes("10.10.0.0/24,fd00:10::/64")}}
	for i := range 2 {
		v.Pods = append(v.Pods, tables.Pod{Port: uint32(flowtest.PodA + i), MAC: [6]byte{0x0a, 5: byte(3 + i)},
			Addrs: flowtest.Addrs(fmt.Sprintf("10.10.0.%d,fd00:10::%[1]d", 3+i))})
		v.Peers = append(v.Peers, tables.Peer{Name: fmt.Sprintf("node-%d", i),
			Tunnel:   netip.AddrFrom4([4]byte{192, 168, 77, byte(2 + i)}),
			PodCIDRs: flowtest.Prefixes(fmt.Sprintf("10.10.%d.0/24,fd00:10:0:%[1]d::/64", 1+i))})
	}
	return v
}

// Each list reports which flows of other nodes have recently taken packets, even if nothing has changed.
func TestOnFlowStats(t *testing.T) {
	o := flowtest.Node(t)
	sw := flowtest.Dial(t, o, openflow.Dial)
	type took struct {
		packets uint64
		idle    time.Duration
	}
	sent, received := map[netip.Prefix]took{}, map[netip.Prefix]took{}
	sw.OnFlowStats(func(f *openflow.Flow, packets uint64, idle time.Duration) {
		switch {
		case f.Kind != openflow.KindPeer:
			t.Errorf("%s", f)
		case f.Match.Src.IsValid():
			received[f.Match.Src] = took{packets, idle}
		case f.Match.Source == openflow.FromPod:
			sent[f.Match.Dst] = took{packets, idle}
		}
	})
	pipeline := tables.Pipeline(twoPods())
	began := time.Now() // no flow is older
	flowtest.Sync(t, sw, pipeline)
	there := netip.MustParsePrefix("10.10.1.0/24")
	packet := "in_port(1),eth(src=0a:00:00:00:00:03,dst=0e:00:00:00:00:01),eth_type(0x0800)," +
		"ipv4(src=10.10.0.3,dst=10.10.1.9,proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=2000)"
	deadline := time.Now().Add(2 * time.Minute)
	for time.Since(began) < 4*time.Second || sent[there].idle+2*time.Second > received[there].idle {
		o.Appctl("netdev-dummy/receive", "pod-a", packet)
		time.Sleep(200 * time.Millisecond)
		sw.Resync()
		flowtest.Sync(t, sw, pipeline)
		if time.Now().After(deadline) {
			t.Fatalf("sent %v, received %v", sent, received)
		}
	}
	if got := sent[there]; got.packets == 0 || received[there].packets > 0 || received[there].idle > time.Since(began) {
		t.Errorf("sent %v, received %v", sent, received)
	}
	if other := sent[netip.MustParsePrefix("10.10.2.0/24")]; other.packets > 0 {
		t.Errorf("to a node without traffic %d packets were sent", other.packets)
	}
}

// A flow that moves from one Unit to another stays, whichever of the two comes first.
func TestFlowMovesToAnotherUnit(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	flow := func(i byte) openflow.Unit {
		src := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, i}), 32)
		return openflow.Unit{Flows: []openflow.Flow{{Kind: openflow.KindPolicy, Table: 20, Priority: 1,
			Actions: []openflow.Action{openflow.Goto(21)}, Match: openflow.Match{EtherType: openflow.IPv4, Src: src}}}}
	}
	s.SetPolicies(map[uint32]openflow.Unit{20: flow(7), 21: flow(8), 22: flow(9)}, true)
	flowtest.Sync(t, s, nil)
	s.SetPolicies(map[uint32]openflow.Unit{20: flow(8), 21: flow(9), 22: flow(10)}, false)
	changes := flowtest.Sync(t, s, nil)
	all := flowtest.Flows(o)
	for i, want := range map[int]bool{7: false, 8: true, 9: true, 10: true} {
		if strings.Contains(all, fmt.Sprintf("nw_src=10.0.0.%d ", i)) != want {
			t.Errorf("10.0.0.%d: there is a flow: %t, want %t", i, !want, want)
		}
	}
	if want := (openflow.Changes{Added: 3, Deleted: 1}); changes != want {
		t.Errorf("%+v, want %+v", changes, want)
	}
	s.Resync()
	if again := flowtest.Sync(t, s, nil); again != (openflow.Changes{}) {
		t.Errorf("the switch had something else than was known: %+v", again)
	}
}
