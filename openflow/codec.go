package openflow

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"antrea.io/libOpenflow/common"
	"antrea.io/libOpenflow/openflow15"
	"antrea.io/libOpenflow/util"
	"antrea.io/ofnet/ofctrl"

	"github.com/fairlead-cni/fairlead/api"
)

// request is one encoded message to the switch.
type request struct {
	xid   uint32
	bytes []byte
}

// change is one thing to do to the flow table.
type change struct {
	delete bool
	flow   Flow
	// rawMatch is the ofp_match of a flow to delete, as the switch gave it,
	// where flow cannot express it.
	rawMatch []byte
}

const (
	ofVersion   = 6 // OpenFlow 1.5
	headerLen   = 8
	flowModBody = 40
)

// fragAny is the bit of ip_frag that all fragments have (ovs-fields(7)).
const fragAny = 1

const tpid = 0x8100 // of a VLAN tag (IEEE 802.1Q)

// encodeHello offers OpenFlow 1.5 and nothing else.
func encodeHello(xid uint32) (request, error) {
	hello, err := common.NewHello(ofVersion)
	if err != nil {
		return request{}, err
	}
	elem := common.NewHelloElemVersionBitmap()
	elem.Bitmaps = []uint32{1 << ofVersion}
	hello.Elements = []common.HelloElem{elem}
	hello.Xid = xid
	return encode(xid, hello)
}

// encodeBare encodes a message that is nothing but its header, and optionally
// the payload of an echo.
func encodeBare(kind uint8, xid uint32, payload []byte) request {
	b := make([]byte, headerLen, headerLen+len(payload))
	b[0], b[1] = ofVersion, kind
	binary.BigEndian.PutUint16(b[2:], uint16(headerLen+len(payload)))
	binary.BigEndian.PutUint32(b[4:], xid)
	return request{xid, append(b, payload...)}
}

// encodeDump asks for all flows of all tables.
func encodeDump(xid uint32) (request, error) {
	body := openflow15.NewFlowStatsRequest()
	body.TableId = openflow15.OFPTT_ALL
	msg := openflow15.NewMpRequest(openflow15.MultipartType_FlowDesc)
	msg.Xid = xid
	msg.Body = append(msg.Body, body)
	return encode(xid, msg)
}

// encodeBundle makes of changes one ordered, atomic bundle: open, one message
// per change in their order, commit. The messages' transaction IDs count up
// from first, which is also the bundle's ID.
func encodeBundle(first uint32, changes []change) ([]request, error) {
	const flags = openflow15.OFPBCT_ATOMIC | openflow15.OFPBCT_ORDERED
	out := make([]request, 0, len(changes)+2)
	control := func(kind uint16) error {
		msg := openflow15.NewBundleCtrl(first, kind, flags)
		msg.Xid = first + uint32(len(out))
		r, err := encode(msg.Xid, msg)
		out = append(out, r)
		return err
	}
	if err := control(openflow15.OFPBCT_OPEN_REQUEST); err != nil {
		return nil, err
	}
	for _, c := range changes {
		xid := first + uint32(len(out))
		mod, err := encodeChange(xid, c)
		if err != nil {
			return nil, fmt.Errorf("encoding flow %s: %w", c.flow, err)
		}
		add := openflow15.NewBndleAdd(first, flags)
		add.Header.Xid, add.Message = xid, util.NewBuffer(mod.bytes)
		r, err := encode(xid, add)
		if err != nil {
			return nil, fmt.Errorf("encoding flow %s: %w", c.flow, err)
		}
		out = append(out, r)
	}
	return out, control(openflow15.OFPBCT_COMMIT_REQUEST)
}

// encodeChange encodes one flow mod. A flow that is there already is replaced
// by adding it again, which is atomic. Modify would leave the old cookie.
func encodeChange(xid uint32, c change) (request, error) {
	command := openflow15.FC_ADD
	if c.delete {
		command = openflow15.FC_DELETE_STRICT
	}
	f := c.flow
	if c.delete {
		f.Actions = nil // they may be somebody else's, and are not looked at
	}
	mod, err := flowMod(f, command)
	if err != nil {
		return request{}, err
	}
	mod.Xid = xid
	r, err := encode(xid, mod)
	if err == nil && c.rawMatch != nil {
		r.bytes = append(r.bytes[:headerLen+flowModBody], c.rawMatch...)
		binary.BigEndian.PutUint16(r.bytes[2:], uint16(len(r.bytes)))
	}
	return r, err
}

// flowMod translates f into the terms of ofnet.
func flowMod(f Flow, command int) (*openflow15.FlowMod, error) {
	of := &ofctrl.Flow{Table: &ofctrl.Table{TableId: f.Table}, Match: ofMatch(f), CookieID: f.Cookie()}
	for _, action := range f.Actions {
		switch a := action.(type) {
		case Goto:
			of.Goto(uint8(a))
		case Output:
			of.ApplyAction(ofctrl.NewOutputPort(uint32(a)))
		case SetSource:
			of.ApplyAction(setField(openflow15.NewRegMatchField(0, uint32(a), nil)))
		case SetSegment:
			of.ApplyAction(setField(openflow15.NewRegMatchField(1, uint32(a), nil)))
		case SetEthSrc:
			of.ApplyAction(&ofctrl.SetSrcMACAction{MAC: a[:]})
		case SetEthDst:
			of.ApplyAction(&ofctrl.SetDstMACAction{MAC: a[:]})
		case SetTunDst:
			of.ApplyAction(&ofctrl.SetTunnelDstAction{IP: a.AsSlice()})
		case DecTTL:
			of.ApplyAction(&ofctrl.DecTTLAction{})
		default:
			act := ofUnderlay(a)
			if act == nil {
				return nil, fmt.Errorf("no encoding for action %s", a)
			}
			of.ApplyAction(act)
		}
	}
	bundled, err := of.GetBundleMessage(command)
	if err != nil {
		return nil, err
	}
	mod, ok := bundled.GetMessage().(*openflow15.FlowMod)
	if !ok {
		return nil, fmt.Errorf("ofnet encoded it as %T", bundled.GetMessage())
	}
	if src := f.Match.TunSrc; src.Is4() { // not in ofctrl.FlowMatch
		mod.Match.AddField(*openflow15.NewTunnelIpv4SrcField(src.AsSlice(), nil))
	} else if src.IsValid() {
		mod.Match.AddField(*openflow15.NewTunnelIpv6SrcField(src.AsSlice(), nil))
	}
	if f.Match.Fragment { // nor is this
		any := &openflow15.IcmpTypeField{Type: fragAny} // a byte
		mod.Match.AddField(openflow15.MatchField{Class: openflow15.OXM_CLASS_NXM_1, Field: openflow15.NXM_NX_IP_FRAG,
			HasMask: true, Length: 2, Value: any, Mask: any})
	}
	return mod, nil
}

// ofUnderlay translates the actions that only the underlay's frames meet; nil
// if a is none.
func ofUnderlay(action Action) ofctrl.OFAction {
	switch a := action.(type) {
	case PopVLAN:
		return &ofctrl.PopVLANAction{}
	case PushVLAN:
		return &ofctrl.PushVLANAction{EtherType: tpid}
	case SetVLAN:
		return setField(openflow15.NewVlanIdField(uint16(a), nil))
	case OutputInPort:
		return ofctrl.NewOutputInPort()
	case SetARPOp:
		return setField(openflow15.NewArpOperField(uint16(a)))
	case SetARPSha:
		return setField(openflow15.NewArpShaField(a[:]))
	case SetARPSpa:
		return setField(openflow15.NewArpSpaField(a.AsSlice()))
	case MoveField:
		_, from, to, bits := a.fields()
		return ofctrl.NewCopyFieldAction(bits, 0, 0, oxmID(from, bits), oxmID(to, bits))
	}
	return nil
}

func setField(f *openflow15.MatchField) *ofctrl.SetFieldAction { return ofctrl.NewSetFieldAction(f) }

// oxmID names a field of so many bits, given as class<<8 | field.
func oxmID(id uint32, bits uint16) *openflow15.OxmId {
	return openflow15.NewOxmId(uint16(id>>8), uint8(id), false, uint8(bits/8), 0)
}

func ofMatch(f Flow) ofctrl.FlowMatch {
	m := f.Match
	of := ofctrl.FlowMatch{
		Priority: f.Priority, InputPort: m.InPort, Ethertype: uint16(m.EtherType), ArpOper: m.ARPOp,
	}
	if m.Tagged {
		vid, present := uint16(0), uint16(openflow15.OFPVID_PRESENT)
		of.VlanId, of.VlanMask = &vid, &present
	}
	if m.VLAN == segmentOf(0) {
		of.NonVlan = true
	} else if m.VLAN != 0 {
		vid := m.VLAN.vlan()
		of.VlanId = &vid
	}
	if m.EthSrc != (api.MAC{}) {
		of.MacSa = hardware(m.EthSrc)
	}
	if m.EthDst != (api.MAC{}) {
		of.MacDa = hardware(m.EthDst)
	}
	if m.ARPSha != (api.MAC{}) {
		of.ArpSha = hardware(m.ARPSha)
	}
	if m.Source != 0 {
		of.NxRegs = append(of.NxRegs, &ofctrl.NXRegister{ID: 0, Data: uint32(m.Source)})
	}
	if m.Segment != 0 {
		of.NxRegs = append(of.NxRegs, &ofctrl.NXRegister{ID: 1, Data: uint32(m.Segment)})
	}
	if m.EtherType == ARP {
		of.ArpSpa, _ = ofPrefix(m.Src)
		of.ArpTpa, _ = ofPrefix(m.Dst)
	} else {
		of.IpSa, of.IpSaMask = ofPrefix(m.Src)
		of.IpDa, of.IpDaMask = ofPrefix(m.Dst)
	}
	if m.ICMPv6 != 0 {
		of.IpProto, of.Icmp6Type = protoICMPv6, &m.ICMPv6
	}
	if m.hasND() {
		of.Icmp6Code = new(uint8)
	}
	if m.NDTarget.IsValid() {
		ip := net.IP(m.NDTarget.AsSlice())
		of.NdTarget = &ip
	}
	if m.NDSll.Set {
		of.NdSll = hardware(m.NDSll.MAC)
	}
	if m.NDTll.Set {
		of.NdTll = hardware(m.NDTll.MAC)
	}
	return of
}

func hardware(m api.MAC) *net.HardwareAddr {
	hw := net.HardwareAddr(m[:])
	return &hw
}

func ofPrefix(p netip.Prefix) (addr, mask *net.IP) {
	if !p.IsValid() {
		return nil, nil
	}
	a := net.IP(p.Addr().AsSlice())
	m := net.IP(net.CIDRMask(p.Bits(), p.Addr().BitLen()))
	return &a, &m
}

// encode marshals msg. libOpenflow panics on values that it cannot marshal;
// here that is an error like any other.
func encode(xid uint32, msg util.Message) (r request, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("encoding %T: %v", msg, p)
		}
	}()
	b, err := msg.MarshalBinary()
	return request{xid, b}, err
}

// errorName is the name of an OpenFlow error in the specification.
func errorName(kind, code uint16, vendor uint32) string {
	return ofctrl.GetErrorMessage(kind, code, vendor)
}
