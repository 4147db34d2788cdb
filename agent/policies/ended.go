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

// connKey is for what ends a connection, the first packet of which went from one address to another.
type connKey struct {
	pod      policy.PodKey // that may not have it
	protocol uint8
	from, to netip.AddrPort
}

// End reports whether the rules of a pod here forbid a connection; conntrack may forget it then. Its packets are
// dropped for some time, as long as the rules do not change: one in the middle of a forgotten connection does not say
// who opened it, and those of the end that was connected to would be taken for a connection of its own.
func (r *Rules) End(c vswitchd.Connection, now time.Time) bool {
	key, is := r.forbidden(connKey{from: c.From, to: c.To, protocol: c.Protocol})
	if !is || c.Closed {
		return is
	}
	r.ended[key] = now.Add(endedFor)
	number := r.pods[key.pod].number
	r.put(key, slices.Concat(policing.Ended(number, c.Protocol, c.From, c.To),
		policing.Ended(number, c.Protocol, c.To, c.From)))
	return true
}

// Adopt takes, of the flows that the switch has, those of connections that an earlier agent has ended.
func (r *Rules) Adopt(flows []openflow.Flow, now time.Time) {
	for _, f := range flows {
		if protocol, from, to, ok := policing.EndedBy(f); ok {
			r.End(vswitchd.Connection{Protocol: protocol, From: from, To: to}, now)
		}
	}
}

// lift lets packets through of ended connections that are allowed again, or given up.
func (r *Rules) lift(now time.Time) {
	for key, until := range r.ended {
		if still, is := r.forbidden(key); !is || still.pod != key.pod || now.After(until) {
			r.put(key, nil)
			delete(r.ended, key)
		}
	}
}

// forbidden returns c with the pod whose rules forbid it.
func (r *Rules) forbidden(c connKey) (_ connKey, is bool) {
	for key, p := range r.pods {
		for _, port := range p.ports {
			about := compile.Connection{Pod: key, Protocol: policy.Protocol(c.protocol), Port: c.to.Port()}
			switch {
			case p.flows == 0:
				continue
			case slices.Contains(port.At.Addrs, c.from.Addr()):
				about.Direction, about.Peer = policy.Egress, c.to.Addr()
			case slices.Contains(port.At.Addrs, c.to.Addr()) && !slices.Contains(r.place.Node, c.from.Addr()):
				about.Direction, about.Peer = policy.Ingress, c.from.Addr()
			default:
				continue
			}
			if d, ok := r.compiler.Judge(about); ok && d.Verdict == policy.Deny {
				c.pod = key
				return c, true
			}
		}
	}
	return c, false
}

// Changed returns the units that differ since Update or Changed were called last.
func (r *Rules) Changed() map[uint32]openflow.Unit { return r.changed() }
