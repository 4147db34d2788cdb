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

// endedFor is how long packets of an ended connection are dropped: Linux's TCP retransmits unanswered data for 924 s
// (tcp_retries2, ip-sysctl), and then gives up.
const endedFor = 16 * time.Minute

// connKey is the key of the flows that end a connection; from and to are those of its first packet. Two segments may
// use the same addresses, so the conntrack zone is part of it.
type connKey struct {
	pod      policy.PodKey // that may not have this connection
	zone     uint16
	protocol uint8
	from, to netip.AddrPort
}

// noPorts reports whether c stays in conntrack, as it has no ports.
func (c connKey) noPorts() bool { return c.from.Port() == 0 && c.to.Port() == 0 }

// End returns those connections of a conntrack zone that the rules of pods here deny; they may then be removed from
// conntrack. Their packets are dropped for some time, as long as the rules do not change: a packet in the middle of a
// removed connection does not show who opened it, and those of the server would count as a connection of its own.
//
// Connections without ports are not removed: Open vSwitch cannot do that in all datapaths. Their packets keep the
// conntrack entry alive, so those in the direction of the first are dropped until the rules allow them, or the entry is
// gone (ScanDone).
func (r *Rules) End(zone uint16, all []vswitchd.Connection, now time.Time) (forbidden []vswitchd.Connection) {
	here := r.owners(zone)
	for _, c := range all {
		is := false
		for i, at := range [...]netip.Addr{c.From.Addr(), c.To.Addr()} {
			for _, pod := range here[at] {
				key := connKey{pod: pod, zone: zone, protocol: c.Protocol, from: c.From, to: c.To}
				if i > 0 && slices.Contains(here[c.From.Addr()], pod) || !r.forbids(key) {
					continue
				}
				if is = true; !c.Closed {
					r.end(key, now)
				}
			}
		}
		if is {
			forbidden = append(forbidden, c)
		}
	}
	return forbidden
}

// owners are the pods in a zone, by address.
func (r *Rules) owners(zone uint16) map[netip.Addr][]policy.PodKey {
	out := map[netip.Addr][]policy.PodKey{}
	for key, p := range r.pods {
		for _, port := range p.ports {
			at := policing.Pod{Pod: port.At}
			if at.Zone() != zone {
				continue
			}
			for _, a := range at.Own() {
				if !slices.Contains(out[a], key) {
					out[a] = append(out[a], key)
				}
			}
		}
	}
	return out
}

func (r *Rules) end(key connKey, now time.Time) {
	r.ended[key] = now.Add(endedFor)
	number := r.pods[key.pod].number
	if key.noPorts() {
		r.put(key, policing.EndedOneWay(number, key.protocol, key.from.Addr(), key.to.Addr()))
	} else {
		r.put(key, policing.Ended(number, key.protocol, key.from, key.to))
	}
}

// Adopt takes over those of the switch's flows that drop connections which an earlier agent has ended.
func (r *Rules) Adopt(flows []openflow.Flow, now time.Time) {
	for _, f := range flows {
		protocol, from, to, ok := policing.EndedAs(f)
		if !ok {
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

// RecheckDue reports whether connections have been dropped for so long that it is time to check whether conntrack still
// has them.
func (r *Rules) RecheckDue(now time.Time) bool {
	for key, until := range r.ended {
		if key.noPorts() && now.After(until) {
			return true
		}
	}
	return false
}

// ScanDone is called when all connections that have existed since from were passed to End: those that conntrack no
// longer has need not be dropped, as their next packet is judged.
func (r *Rules) ScanDone(from time.Time) {
	for key, until := range r.ended {
		if key.noPorts() && until.Before(from.Add(endedFor)) {
			r.put(key, nil)
			delete(r.ended, key)
		}
	}
}

// lift stops dropping packets of ended connections that are allowed again, or whose time is over.
func (r *Rules) lift(now time.Time) {
	for key, until := range r.ended {
		if !r.forbids(key) || now.After(until) && !key.noPorts() {
			r.put(key, nil)
			delete(r.ended, key)
		}
	}
}

// forbids reports whether the rules of c's pod deny the connection, or the pod is closed to all but its node, as
// nothing is known about it.
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
		case slices.Contains(at.Own(), c.to.Addr()) && !slices.Contains(r.nodeState.Node, c.from.Addr()):
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
