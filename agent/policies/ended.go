package policies

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// endedFor is how long packets of an ended connection are dropped: for 924 s Linux's TCP sends again what has no answer
// (tcp_retries2, ip-sysctl), and then gives up.
const endedFor = 16 * time.Minute

// IANA's numbers of the protocol, and of its type of message.
const icmpv6, echoRequest = 58, 128

// connKey is for what ends a connection, the first packet of which went from one address to another. Two segments may
// use the same addresses, so the conntrack zone is part of it.
type connKey struct {
	pod      policy.PodKey // that may not have it
	zone     uint16
	protocol uint8
	from, to netip.AddrPort
}

// End reports whether the rules of pods here forbid a connection of a conntrack zone, which may forget it then. Its
// packets are dropped for some time, as long as the rules do not change: one in the middle of a forgotten connection
// does not say who opened it, and those of the end that was connected to would be taken for a connection of its own.
//
// What has no ports is not forgotten: Open vSwitch does not have all datapaths forget it. Its packets keep conntrack's
// entry alive, so those that go the way of the first are dropped until the rules allow them.
func (r *Rules) End(zone uint16, c vswitchd.Connection, now time.Time) (is bool) {
	for pod := range r.pods {
		key := connKey{pod: pod, zone: zone, protocol: c.Protocol, from: c.From, to: c.To}
		if !r.forbids(key) {
			continue
		}
		if is = true; !c.Closed {
			r.end(key, now)
		}
	}
	return is
}

func (r *Rules) end(key connKey, now time.Time) {
	flows := policing.Ended(r.pods[key.pod].number, key.protocol, key.from, key.to)
	r.ended[key] = now.Add(endedFor)
	if key.from.Port() == 0 && key.to.Port() == 0 {
		r.ended[key] = now.AddDate(100, 0, 0)
		flows = oneWay(flows)
	}
	r.put(key, flows)
}

// oneWay returns the flows that drop all packets of a protocol that go from one end to the other in connections that
// began that way. What the other end may begin goes on, and is answered.
func oneWay(flows []openflow.Flow) (out []openflow.Flow) {
	for _, f := range flows {
		if _, _, _, ok := policing.EndedBy(f); ok {
			f.Match.SrcPort, f.Match.DstPort = openflow.Bits{}, openflow.Bits{}
			f.Match.CTState = openflow.Bits{Value: openflow.CTTracked, Mask: openflow.CTTracked | openflow.CTReply}
			if f.Match.Protocol == 1+icmpv6 { // package openflow knows its types; conntrack's entry began with an echo request
				f.Match.Protocol, f.Match.ICMPv6 = 0, 1+echoRequest
			}
			out = append(out, f)
		}
	}
	return out
}

// Adopt takes, of the flows that the switch has, those of connections that an earlier agent has ended.
func (r *Rules) Adopt(flows []openflow.Flow, now time.Time) {
	for _, f := range flows {
		protocol, from, to, ok := policing.EndedBy(f)
		if !ok || f.Match.ICMPv6 != 0 { // pings are looked for again
			continue
		}
		for key, p := range r.pods {
			for _, port := range p.ports {
				key := connKey{key, policing.Pod{Pod: port.At}.Zone(), protocol, from, to}
				if p.number == f.Match.Judged && r.forbids(key) {
					r.end(key, now)
				}
			}
		}
	}
}

// lift lets packets through of ended connections that are allowed again, or given up.
func (r *Rules) lift(now time.Time) {
	for key, until := range r.ended {
		if !r.forbids(key) || now.After(until) {
			r.put(key, nil)
			delete(r.ended, key)
		}
	}
}

// forbids reports whether the rules of c's pod forbid the connection, or all but those from the node, as it is closed
// or nothing is known of it.
func (r *Rules) forbids(c connKey) bool {
	p := r.pods[c.pod]
	if p == nil || len(p.diverted) == 0 {
		return false
	}
	for _, port := range p.ports {
		about := compile.Connection{Pod: c.pod, Protocol: policy.Protocol(c.protocol), Port: c.to.Port()}
		at := policing.Pod{Pod: port.At}
		switch {
		case at.Zone() != c.zone || !slices.Contains(p.diverted, port.HostIf):
			continue
		case slices.Contains(at.Own(), c.from.Addr()):
			about.Direction, about.Peer = policy.Egress, c.to.Addr()
		case slices.Contains(at.Own(), c.to.Addr()) && !slices.Contains(r.place.Node, c.from.Addr()):
			about.Direction, about.Peer = policy.Ingress, c.from.Addr()
		default:
			continue
		}
		if d, ok := r.compiler.Judge(about); p.closed || !r.owned(port) || ok && d.Verdict == policy.Deny {
			return true
		}
	}
	return false
}

// Changed returns the units that differ since Update or Changed were called last.
func (r *Rules) Changed() map[uint32]openflow.Unit { return r.changed() }
