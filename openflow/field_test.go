package openflow

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// A match that was sent is read back as the same match, whatever it contains, and each row of the table is used, with
// and without a mask where it has one.
func TestMatchesRoundTrip(t *testing.T) {
	type use struct {
		field string
		exact bool
	}
	seen := map[use]int{}
	r := rand.New(rand.NewPCG(15, 0))
	for range 5000 {
		m := randomMatch(t, r)
		if got, unsupported := sentAndRead(t, Flow{Match: m}); got.Match != m || unsupported {
			t.Fatalf("sent %+v\nread %+v, unsupported: %v", m, got.Match, unsupported)
		}
		for o := range m.fields {
			seen[use{o.name, o.exact()}]++
		}
	}
	masked2 := []string{"ct_state", "tcp_flags", "tcp_src", "tcp_dst", "udp_src", "udp_dst", "sctp_src", "sctp_dst", "ct_mark",
		"pkt_mark"}
	prefixes := []string{"nw_src", "nw_dst", "ipv6_src", "ipv6_dst", "arp_spa", "arp_tpa"}
	onlyActions := []string{"reg3", "tun_dst", "tun_ipv6_dst", "arp_tha"}
	for _, f := range fields {
		masked := f.name == "nw_frag" || f.name == "vlan_vid" || slices.Contains(masked2, f.name) || slices.Contains(prefixes, f.name)
		exact := !slices.Contains([]string{"nw_frag", "ct_state", "ct_mark", "pkt_mark", "tcp_flags"}, f.name) && !slices.Contains(onlyActions, f.name)
		if got := seen[use{f.name, true}] > 0; got != exact {
			t.Errorf("%s was there without a mask: %v, want %v", f.name, got, exact)
		}
		if got := seen[use{f.name, false}] > 0; got != masked {
			t.Errorf("%s was there with a mask: %v, want %v", f.name, got, masked)
		}
	}
}

// A field of Match without a row in the table would be omitted when sent: the flow would match packets that it is not
// meant for.
func TestEveryFieldOfMatchIsInTheTable(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 1))
	for i := range reflect.TypeFor[Match]().NumField() {
		var m, back Match
		name := reflect.TypeFor[Match]().Field(i).Name
		randomize(t, r, reflect.ValueOf(&m).Elem().Field(i))
		m.Protocol %= protoICMPv6
		if m.SrcPort != (Bits{}) || m.DstPort != (Bits{}) || m.TCPFlags != (Bits{}) {
			m.Protocol = protoTCP + 1
		}
		if m.NDTarget.Is4() {
			m.NDTarget = randomAddr(r, false)
		}
		for o := range m.fields {
			o.in.put(&back, o)
		}
		if back != m || m.String() == "" {
			t.Errorf("Match.%s is in no row of fields, or not all of it: %q of %+v gives %+v", name, m, m, back)
		}
	}
}

// A match that would lose something when it is encoded is rejected.
func TestMatchThatCannotBeSent(t *testing.T) {
	for _, m := range []Match{
		{EtherType: ARP, Src: netip.MustParsePrefix("fd00::1/128")},
		{Tagged: true, VLAN: SegmentOf(10)},
		{VLAN: 5},
	} {
		if _, err := (&change{flow: &Flow{Match: m}}).encode(nil, 1); err == nil {
			t.Errorf("no error for %+v", m)
		}
	}
}

// The same holds for actions: each field that can be written, each pair that can be copied, and all others.
func TestActionsRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 2))
	actions := []Action{Output(1), Output(r.Uint32()), OutputInPort, OutputController, DecTTL{}, PopVLAN{}, Resubmit(0),
		PushVLAN(TPID), SetTunDst(randomAddr(r, true)), SetTunDst(randomAddr(r, false)), SetVLAN(10), SetSource(FromPod),
		SetSegment(SegmentOf(7)), ToGroup(r.Uint32()), Resubmit(6), CheckLarger(1464), SetStage(Seen), SetZone(100),
		Conntrack{Zone: 100, Table: NoTable, NAT: NAT{Kind: NATApply}}, Conntrack{Zone: 7, Table: 3},
		Conntrack{Commit: true, ZoneReg: 3, Table: 5, NAT: NAT{Kind: NATDst, Addr: randomAddr(r, true), First: 80, Last: 80}},
		Conntrack{Commit: true, Zone: 9, Table: 3, NAT: NAT{Kind: NATSrc, Addr: randomAddr(r, false), First: 4096,
			Last: 32767}},
		Conntrack{Commit: true, ZoneReg: 3, Table: NoTable, Mark: 2}, Conjunction{r.Uint32(), 2, 3}}
	for _, f := range fields {
		var v value
		for i := 16 - f.width; i < 16; i++ {
			v[i] = byte(r.Uint32())
		}
		actions = append(actions, SetField{f, v}, SetField{field: f})
		for _, to := range fields {
			if f.move != "" && to.move != "" && f.width == to.width && f != to {
				actions = append(actions, Move(f.name, to.name))
			}
		}
	}
	kinds := map[uint16]bool{}
	for _, a := range actions {
		want := []Action{a, Goto(uint8(r.Uint32()))}
		if got, _ := sentAndRead(t, Flow{Actions: want}); !slices.Equal(got.Actions, want) {
			t.Errorf("sent %v, read %v", want, got.Actions)
		}
		kinds[a.ofnet().GetActionMessage().Header().Type] = true
	}
	for _, row := range actionTypes {
		if !kinds[row.kind] {
			t.Errorf("no action of type %d was sent", row.kind)
		}
	}
}

// sentAndRead returns a flow as our decoder reads it after encoding.
func sentAndRead(t *testing.T, f Flow) (got Flow, unsupported bool) {
	t.Helper()
	c := change{flow: &f}
	b, err := c.encode(nil, 1)
	if err != nil {
		t.Fatalf("%s: %v", f, err)
	}
	body := b[ofconn.HeaderLen+40:] // after the fields that precede the match
	length := int(binary.BigEndian.Uint16(body[2:]))
	got.Match, unsupported = readMatch(body[4:length])
	got.Actions = readInstructions(body[(length+7)&^7:])
	return got, unsupported
}

// randomMatch has about half of the fields of Match, also in combinations that the switch would reject.
func randomMatch(t *testing.T, r *rand.Rand) (m Match) {
	t.Helper()
	for i := range reflect.TypeFor[Match]().NumField() {
		if r.IntN(2) == 0 {
			randomize(t, r, reflect.ValueOf(&m).Elem().Field(i))
		}
	}
	if m.Protocol %= protoICMPv6; m.ICMPv6 != 0 {
		m.Protocol = 0
	}
	if m.VLAN != 0 {
		m.Tagged = false
	}
	if m.NDTarget.IsValid() {
		m.NDTarget = randomAddr(r, false)
	}
	if m.EtherType == ARP {
		for _, p := range []*netip.Prefix{&m.Src, &m.Dst} {
			if p.Addr().Is6() {
				*p = randomPrefix(r, true)
			}
		}
	}
	m.withProtocol(r)
	return m
}

// withProtocol removes the fields of protocols other than m's.
func (m *Match) withProtocol(r *rand.Rand) {
	if r.IntN(2) == 0 && m.ICMPv6 == 0 {
		m.Protocol = 1 + []uint16{protoTCP, protoUDP, protoSCTP}[r.IntN(3)]
	}
	if !slices.Contains([]uint16{protoTCP + 1, protoUDP + 1, protoSCTP + 1}, m.Protocol) {
		m.SrcPort, m.DstPort = Bits{}, Bits{}
	} else if r.IntN(2) == 0 && m.SrcPort != (Bits{}) {
		m.SrcPort, m.DstPort = Port(uint16(r.Uint32())), Port(uint16(r.Uint32()))
	}
	if m.Protocol != protoTCP+1 {
		m.TCPFlags = Bits{}
	}
}

// validMatch is a match that the switch accepts: fields with their prerequisites (ovs-fields(7)), and known values.
func validMatch(t *testing.T, r *rand.Rand) Match {
	t.Helper()
	m := randomMatch(t, r)
	m.InPort %= 0xff00 // above are ports such as LOCAL
	m.ARPOp %= 0x100
	if m.EtherType == 0x88cc { // ovs-ofctl prints it after the addresses
		m.EtherType = 0
	}
	ip, nd := m.EtherType == IPv4 || m.EtherType == IPv6, uint8(0)
	if m.EtherType == IPv6 && r.IntN(2) == 0 {
		nd = []uint8{NeighborSolicitation, NeighborAdvertisement}[r.IntN(2)]
		m.ICMPv6 = nd
	}
	for _, p := range []*netip.Prefix{&m.Src, &m.Dst} {
		if *p = randomPrefix(r, m.EtherType != IPv6); !ip && m.EtherType != ARP {
			*p = netip.Prefix{}
		}
	}
	m.Fragment = m.Fragment && ip
	if !ip {
		m.TTL = 0
	}
	if !ip || m.CTState.Value&(CTNew|CTEstablished|CTRelated|CTReply) == 0 {
		m.CTSrc, m.CTDst = netip.Addr{}, netip.Addr{}
	}
	for _, a := range []*netip.Addr{&m.CTSrc, &m.CTDst} {
		if a.IsValid() {
			*a = randomAddr(r, m.EtherType == IPv4)
		}
	}
	if m.EtherType != ARP {
		m.ARPOp, m.ARPSha = 0, api.MAC{}
	}
	if m.EtherType != IPv6 {
		m.ICMPv6 = 0
	}
	if m.Protocol = 0; m.EtherType == IPv6 && m.ICMPv6 == 0 {
		m.Protocol = []uint16{0, 1, 60}[r.IntN(3)]
	}
	m.ICMP = 0
	if ip && m.ICMPv6 == 0 {
		m.withProtocol(r)
	} else {
		m.SrcPort, m.DstPort, m.TCPFlags = Bits{}, Bits{}, Bits{}
	}
	if m.EtherType == IPv4 && m.Protocol == 0 && r.IntN(2) == 0 {
		m.Protocol, m.ICMP = protoICMP+1, 3
	}
	if nd == 0 {
		m.NDTarget = netip.Addr{}
	}
	if nd != NeighborSolicitation {
		m.NDSll = LinkAddr{}
	}
	if nd != NeighborAdvertisement {
		m.NDTll = LinkAddr{}
	}
	return m
}

// randomize sets part of a Match to a value that differs from the unset one.
func randomize(t *testing.T, r *rand.Rand, part reflect.Value) {
	t.Helper()
	mac := api.MAC{0x0a, byte(r.Uint32()), 5: byte(r.Uint32())}
	switch p := part.Addr().Interface().(type) {
	case *bool:
		*p = true
	case *uint8, *uint16, *uint32, *Source:
		part.SetUint(r.Uint64()&(1<<part.Type().Bits()-1) | 1)
	case *EtherType:
		*p = []EtherType{IPv4, IPv6, ARP, 0x88cc}[r.IntN(4)]
	case *Segment:
		*p = SegmentOf(uint16(r.IntN(api.MaxVLAN + 1)))
	case *api.MAC:
		*p = mac
	case *LinkAddr:
		*p = []LinkAddr{{Set: true}, {true, mac}}[r.IntN(2)]
	case *Bits:
		*p = Bits{Mask: uint16(r.Uint32())&0x3f | 1}
		p.Value = uint16(r.Uint32()) & p.Mask
	case *Stage:
		*p = []Stage{Untouched, Seen}[r.IntN(2)]
	case *Judgement:
		*p = []Judgement{NotYet, Accepted}[r.IntN(2)]
	case *netip.Addr:
		*p = randomAddr(r, r.IntN(2) == 0)
	case *netip.Prefix:
		*p = randomPrefix(r, r.IntN(2) == 0)
	default:
		t.Fatalf("no random value for a field of type %s", part.Type())
	}
}

func randomAddr(r *rand.Rand, v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	}
	return netip.AddrFrom16([16]byte{0xfd, byte(r.Uint32()), byte(r.Uint32()), 9: byte(r.Uint32()), 15: 1})
}

// randomPrefix is a single address half of the time.
func randomPrefix(r *rand.Rand, v4 bool) netip.Prefix {
	a := randomAddr(r, v4)
	bits := a.BitLen()
	if r.IntN(2) == 0 {
		bits = 1 + r.IntN(bits)
	}
	return netip.PrefixFrom(a, bits).Masked()
}
