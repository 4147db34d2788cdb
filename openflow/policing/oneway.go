package policing

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/openflow"
)

// IANA's numbers of the protocol and its message type.
const icmpv6, echoRequest = 58, 128

// EndedOneWay is Ended for protocols without ports: it drops all packets of the protocol from one end to the other in
// connections that began in that direction. Connections that the other end may open continue, with their replies.
func EndedOneWay(pod uint32, protocol uint8, from, to netip.Addr) (out []openflow.Flow) {
	for _, f := range Ended(pod, protocol, netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)) {
		if f.Priority != stateEnded {
			continue
		}
		f.Match.SrcPort, f.Match.DstPort = openflow.Bits{}, openflow.Bits{}
		f.Match.CTState = openflow.Bits{Value: openflow.CTTracked, Mask: openflow.CTTracked | openflow.CTReply}
		if protocol == icmpv6 { // package openflow has its types; conntrack's entry began with an echo request
			f.Match.Protocol, f.Match.ICMPv6 = 0, 1+echoRequest
		}
		out = append(out, f)
	}
	return out
}

// EndedAs is EndedBy that also handles flows of EndedOneWay, which have no ports.
func EndedAs(f openflow.Flow) (protocol uint8, from, to netip.AddrPort, ok bool) {
	protocol, from, to, ok = EndedBy(f)
	if ok && f.Match.ICMPv6 != 0 {
		protocol = icmpv6
	}
	return protocol, from, to, ok
}
