package openflow

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/test/flowtest"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// FuzzSwitchMessages feeds a connection's bytes to everything that reads them.
// Nothing may panic, loop, or read beyond its message. The list of flows among
// the seeds, testdata/fuzz/FuzzSwitchMessages/flow-list, is what
// flowListMessage returned once.
func FuzzSwitchMessages(f *testing.F) {
	f.Add(ofconn.Encode(ofconn.BarrierReply, 7, nil))
	f.Add([]byte("\x06\x01\x00\x0c\x00\x00\x00\x01\x00\x04\x00\x09"))
	f.Add([]byte("\x06\x01\x00\x10\x00\x00\x00\x01\xff\xff\x09\x00ONF\x00"))
	f.Add([]byte("\x06\x21\x00\x10\x00\x00\x00\x01\x00\x00\x00\x01\x00\x05\x00\x03"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			m, err := ofconn.Read(r)
			if err != nil {
				return
			}
			if m.Failure() == nil {
				t.Error("an error message without an error")
			}
			isCommitReply(m)
			_, _ = nx.ReadPorts(m)
			list, err := readList(m)
			if err != nil {
				continue
			}
			have := newConfirmed(list, confirmed{})
			todo, _, err := have.diff(nil, 0)
			if err != nil || len(todo) > len(list) {
				t.Errorf("%d flows to delete of %d, %v", len(todo), len(list), err)
			}
			for range encodeBundle(1, todo, &err) {
			}
			if err != nil {
				t.Errorf("cannot delete what was listed: %v", err)
			}
		}
	})
}

func readList(m ofconn.Message) (out []listed, err error) {
	err = nx.ReadFlows(m, func(f nx.ListedFlow) { out = append(out, readFlow(f)) })
	return out, err
}

// flowListMessage is a real switch's list of flows, Fairlead's and others.
func flowListMessage(t *testing.T) []byte {
	t.Helper()
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, Dial)
	flowtest.Sync(t, s, randomFlows(t)[:20])
	o.Ofctl("add-flow", "br-int", "table=9,tcp,tcp_flags=+syn,ct_state=+trk,actions=ct(commit,zone=3),resubmit(,10)")
	o.Ofctl("add-flow", "br-int", "table=9,priority=5,dl_vlan=7,icmp,nw_src=10.0.0.0/255.0.255.0,actions=NORMAL")
	xid := s.conn.Reserve(2)
	request, err := nx.ListFlows(xid)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := s.conn.CallOne(t.Context(), xid, request)
	if err != nil || len(answers) != 1 {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	return append(ofconn.Encode(msgMultipartReply, xid, answers[0].Body), ofconn.Encode(ofconn.EchoReply, 1, nil)...)
}

// A list that ends anywhere but between two flows is an error, never a shorter list: deletions based on a shorter list
// would be harmless, but adding flows again that are there would hide a broken connection.
func TestCutFlowList(t *testing.T) {
	whole := flowListMessage(t)
	m, err := ofconn.Read(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	list, err := readList(m)
	if err != nil || len(list) < 10 {
		t.Fatalf("%d flows, %v", len(list), err)
	}
	good := 0
	for n := range m.Body {
		cut := ofconn.Message{Kind: m.Kind, Body: m.Body[:n:n]}
		if part, err := readList(cut); err == nil {
			good++
			for i := range part {
				if part[i].flow.Key() != list[i].flow.Key() {
					t.Fatalf("cut at %d: flow %d is %s", n, i, part[i].flow)
				}
			}
		}
	}
	if good != len(list) { // after each flow but the last, and before the first
		t.Errorf("%d cuts were read without an error, want %d", good, len(list))
	}
}

// randomFlows have any combination of fields that the switch accepts.
func randomFlows(t *testing.T) []Flow {
	t.Helper()
	r, used := rand.New(rand.NewPCG(15, 3)), map[Key]bool{}
	var flows []Flow
	for range 500 {
		if f := (Flow{Table: 10, Priority: 77, Kind: KindPeer, Match: validMatch(t, r)}); !used[f.Key()] {
			used[f.Key()] = true
			flows = append(flows, f)
		}
	}
	return flows
}

// Encoding a flow for a switch and reading its list of flows are inverse, for
// each field and action alone.
func TestEachFieldAndAction(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, Dial)
	m6, v6 := flowtest.MAC(t, "0a:00:00:00:00:06"), netip.MustParseAddr("fd00::6")
	p4, p6 := netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("fd00:8000::/33")
	host6, host4, nd := netip.PrefixFrom(v6, 128), netip.MustParsePrefix("10.0.0.6/32"), Match{EtherType: IPv6,
		ICMPv6: NeighborSolicitation}
	na := Match{EtherType: IPv6, ICMPv6: NeighborAdvertisement}
	matches := []Match{
		{InPort: 65000}, {Tagged: true}, {EtherType: 0x88cc}, {EthSrc: m6}, {Source: FromTunnel},
		{TunSrc: host4.Addr()}, {TunSrc: v6},
		{EtherType: IPv4, Src: p4}, {EtherType: IPv4, Dst: p4}, {EtherType: IPv4, Src: host4, Dst: host4},
		{EtherType: IPv4, Dst: netip.MustParsePrefix("0.0.0.0/1")},
		{EtherType: IPv6, Src: p6}, {EtherType: IPv6, Dst: p6}, {EtherType: IPv6, Src: host6, Dst: host6},
		{EtherType: ARP, Src: host4}, {EtherType: ARP, Dst: host4}, {EtherType: ARP, ARPOp: 2},
		{EtherType: ARP, ARPSha: m6},
		nd, na,
		{EthDst: m6}, {EthSrc: m6, EthDst: m6}, {Segment: SegmentOf(0)}, {Segment: SegmentOf(10)},
		{Source: FromBridged, Segment: SegmentOf(4094)}, {VLAN: SegmentOf(0)}, {VLAN: SegmentOf(1)},
		{VLAN: SegmentOf(4094), EtherType: ARP}, {VLAN: SegmentOf(0), EtherType: IPv6, ICMPv6: Redirect},
		{Source: FromBridged, Segment: SegmentOf(10), EtherType: ARP, Src: host4, Dst: host4},
	}
	nd.NDTarget = v6
	na.NDTll = LinkAddr{true, m6}
	matches = append(matches, nd, na)
	nd.NDSll, na.NDTll = LinkAddr{Set: true}, LinkAddr{Set: true}
	matches = append(matches, nd, na)
	var flows []Flow
	for _, m := range matches {
		flows = append(flows, Flow{Table: 5, Priority: 77, Kind: KindPeer, Match: m})
	}
	for i, a := range []Action{Goto(254), Output(65000), SetSource(FromTunnel), SetEthSrc(m6), SetEthDst(m6),
		SetTunDst(host4.Addr()), SetTunDst(v6), SetSegment(SegmentOf(10)), OutputInPort, OutputController, Resubmit(9),
		CheckLarger(1464), SetSegment(SegmentOf(0) | SizeChecked), SetStage(Seen), SetZone(40960)} {
		flows = append(flows, Flow{Table: 6, Priority: uint16(i), Kind: KindBase, Actions: []Action{a}})
	}
	flows = append(flows, Flow{Table: 7, Match: Match{EtherType: IPv6},
		Actions: []Action{DecTTL{}, Output(1), Output(2), Goto(8)}})
	flows = append(flows,
		Flow{Table: 7, Match: Match{EtherType: ARP, ARPOp: ARPRequest}, Actions: []Action{
			Move("eth_src", "eth_dst"), SetEthSrc(m6), SetARPOp(ARPReply), Move("arp_sha", "arp_tha"), Move("arp_spa", "arp_tpa"),
			SetARPSha(m6), SetARPSpa(host4.Addr()), OutputInPort}},
		Flow{Table: 7, Priority: 1, Actions: []Action{PushVLAN(TPID), SetVLAN(10), Output(1)}},
		Flow{Table: 7, Match: Match{VLAN: SegmentOf(10)}, Actions: []Action{PopVLAN{}, Goto(8)}})
	service := Match{EtherType: IPv4, Protocol: 1 + protoTCP, CTState: Bits{CTNew, CTNew | CTReply}, DstPort: Port(80)}
	flows = append(flows,
		Flow{Table: 7, Priority: 4, Match: service, Actions: []Action{
			Conntrack{Zone: 9, Table: NoTable, NAT: NAT{Kind: NATApply}}}},
		Flow{Table: 7, Priority: 2, Match: service, Actions: []Action{
			Conntrack{Commit: true, ZoneReg: 3, Table: 8, NAT: NAT{Kind: NATDst, Addr: host4.Addr(), First: 80, Last: 80}}}},
		Flow{Table: 7, Priority: 3, Match: service, Actions: []Action{
			Conntrack{Commit: true, Zone: 5, Table: 8, NAT: NAT{Kind: NATSrc, Addr: host4.Addr(), First: 4096, Last: 32767}}}})
	flows = append(flows, Flow{Table: 7, Priority: 5, Match: service, Actions: []Action{
		Learn{Table: 8, Priority: 7, Cookie: 9, Idle: 10800, Protocol: protoTCP, Given: 10800, Value: 77}, Goto(9)}})
	service.EtherType, service.Protocol = IPv6, 1+protoUDP
	flows = append(flows, Flow{Table: 7, Priority: 5, Match: service, Actions: []Action{
		Learn{Table: 8, Priority: 7, Cookie: 1, Idle: 1, IPv6: true, Protocol: protoUDP, Given: 1, Value: 1<<31 - 1},
		Goto(9)}})
	flows = append(flows, Flow{Table: 7, Priority: 2, Match: service, Actions: []Action{
		Conntrack{Commit: true, Zone: 5, Table: 8, NAT: NAT{Kind: NATDst, Addr: v6, First: 80, Last: 80}}}})
	flows = append(flows, randomFlows(t)...)
	flowtest.Sync(t, s, flows)
	s.Resync()
	if got := flowtest.Sync(t, s, flows); got != (Changes{}) {
		list, _ := s.list(t.Context())
		t.Errorf("read back differently: %+v", got)
		for _, l := range list {
			t.Logf("unsupported %v: %s %s", l.unsupported, l.flow, hex.EncodeToString(l.rawMatch))
		}
	}
	if diff := flowtest.Diff(flowtest.Sorted(flowtest.Text(flows)), flowtest.Sorted(flowtest.Flows(o))); diff != "" {
		t.Errorf("ovs-ofctl prints them otherwise (-ours +its):\n%s", diff)
	}
}

// The flow and group of a Service's port are encoded directly into the send buffer: there may be tens of thousands.
func TestEncodingAllocates(t *testing.T) {
	const most = 10 // for the flow and the group of a port with five endpoints; measured: 6.1
	var changes []change
	for i := range 100 {
		g := &nx.Group{ID: uint32(i + 1)}
		for j := range 5 {
			g.Buckets = append(g.Buckets, Bucket{ID: uint32(j + 1), Action: nx.Conntrack{Commit: true, ZoneReg: 3, Table: 5,
				NAT: NAT{Kind: NATDst, Addr: netip.AddrFrom4([4]byte{10, 0, byte(j), byte(i)}), First: 80, Last: 80}}})
		}
		changes = append(changes, change{group: g}, change{flow: &Flow{Kind: KindService, Table: TableService,
			Priority: UnitPriority, Actions: []Action{ToGroup(g.ID)}, Match: Match{EtherType: IPv4, Protocol: protoTCP + 1,
				Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 32), DstPort: Port(80),
				CTState: Bits{CTTracked | CTNew, CTTracked | CTNew}, TCPFlags: Bits{TCPSyn, TCPSyn | TCPAck}}}})
	}
	each := testing.AllocsPerRun(5, func() {
		var err error
		for range encodeBundle(1, changes, &err) {
		}
		if err != nil {
			t.Fatal(err)
		}
	}) / 100
	t.Logf("%.1f allocations for each port", each)
	if each > most {
		t.Errorf("want at most %d", most)
	}
}

// A list of tens of thousands of flows is compared every 15 seconds.
func TestListingAllocates(t *testing.T) {
	const most = 2 // per flow; measured: 1.1
	u := newUnits((*Flow).ofPolicy)
	var list []*listed
	for i, f := range manyFlows(100) {
		f.Kind = KindPolicy
		u.put(uint32(i+1), Unit{Flows: []Flow{f}})
		list = append(list, &listed{flow: f, cookie: f.Cookie()})
	}
	each := testing.AllocsPerRun(5, func() {
		l := u.relist()
		for _, x := range list {
			if !l.flow(x) {
				t.Fatal("a flow of policies is of no unit")
			}
		}
		if l.end(); len(u.differ) != 0 {
			t.Fatalf("%d units differ", len(u.differ))
		}
	}) / 100
	t.Logf("%.1f allocations for each flow", each)
	if each > most {
		t.Errorf("want at most %d", most)
	}
}
