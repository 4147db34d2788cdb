package policies

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/denied"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// verdicts is how decisions of rules are reported: all are counted, and denials are logged.
type verdicts struct {
	counters
	which     string // PolicyLogNone, PolicyLogAnnotated or PolicyLogAll
	receiving bool   // there is a receiver of denied packets
	// logged are the numbers of the pods whose denied packets are logged.
	logged map[policy.PodKey]uint32
	// shown: flows send the packets that they deny to the tables Denied, as there are pods in logged.
	shown bool
}

// LogDenied sets for which pods denied packets are logged: a value of the config's policyLogDenied.
func (r *Rules) LogDenied(which string) { r.verdicts.which = which }

// LogsDenied reports whether denied packets of any pod are to be logged.
func (r *Rules) LogsDenied() bool {
	for key, p := range r.pods {
		if r.logs(key, p) {
			return true
		}
	}
	return false
}

// SetReceiving sets whether there is a receiver of denied packets: otherwise none is logged. It returns the units that
// differ.
func (r *Rules) SetReceiving(is bool) map[uint32]openflow.Unit {
	if r.verdicts.receiving == is || !r.known {
		return nil
	}
	r.verdicts.receiving = is
	r.logDenied()
	return r.changed()
}

func (r *Rules) logs(key policy.PodKey, p *pod) bool {
	return len(p.diverted) > 0 && !p.closed && (r.verdicts.which == api.PolicyLogAll ||
		r.verdicts.which == api.PolicyLogAnnotated && r.namespaces[key.Namespace].LogDenied)
}

// logKey is the key of the flows that pass a pod's denied packets to the agent.
type logKey policy.PodKey

// logDenied makes the switch pass on the denied packets of those pods that log them, and of no others. They are denied
// all the same: a flow that denies drops packets, or sends them to a table that does.
func (r *Rules) logDenied() {
	v := &r.verdicts
	for key := range v.logged {
		if p := r.pods[key]; p == nil || !v.receiving || !r.logs(key, p) {
			delete(v.logged, key)
			r.put(logKey(key), nil)
		}
	}
	for key, p := range r.pods {
		if v.receiving && r.logs(key, p) && v.logged[key] != p.number {
			v.logged[key] = p.number
			r.put(logKey(key), policing.LogDenied(p.number))
		}
	}
	if is := len(v.logged) > 0; is != v.shown {
		v.shown = is
		for _, f := range r.compiler.Flows() {
			if f.Verdict == policy.Deny && f.Kind != compile.Closed {
				r.putVerdict(f)
			}
		}
	}
}

func (r *Rules) putVerdict(f compile.Flow) {
	number := uint32(0)
	if p := r.pods[f.Pod]; p != nil {
		number = p.number
	}
	r.put(f.Match, r.toDeniedTable(f, flowsOf(f, number)))
}

// toDeniedTable makes flows that deny, if any pod logs that, send packets to the table that drops them.
func (r *Rules) toDeniedTable(f compile.Flow, flows []openflow.Flow) []openflow.Flow {
	if r.verdicts.shown && f.Verdict == policy.Deny && f.Kind != compile.Closed {
		for i := range flows {
			flows[i].Actions = []openflow.Action{openflow.Goto(direction(f.Direction).Denied())}
		}
	}
	return flows
}

// Denied returns the connection that a denied packet was to begin, as seen from the pod whose policies deny it; ok is
// false if that pod does not log it.
func (r *Rules) Denied(p denied.Packet) (c compile.Connection, ok bool) {
	for key, number := range r.verdicts.logged {
		if number == p.Judged {
			c.Pod, ok = key, true
		}
	}
	c.Direction, c.Peer = policy.Ingress, p.Src
	if p.Table == policing.Egress.Denied() {
		c.Direction, c.Peer = policy.Egress, p.Dst
	}
	c.Protocol, c.Port = policy.Protocol(p.Protocol), p.DstPort
	return c, ok
}

// WhyDenied says who the peer is, and why the rules deny a connection.
func (r *Rules) WhyDenied(c compile.Connection) (peer, reason string) {
	d, ok := r.compiler.Judge(c)
	switch {
	case !ok || d.Verdict != policy.Deny:
		reason = "by rules that have changed since"
	case d.Rule != nil:
		reason = fmt.Sprintf("%s, in tier %s", d.Reason(), d.Tier)
	default:
		reason = d.Reason()
	}
	return cmp.Or(r.compiler.Owner(c.Peer), r.ownNode(c.Peer), c.Peer.String()), reason
}

func (r *Rules) ownNode(a netip.Addr) string {
	if slices.Contains(r.nodeState.Node, a) {
		return "this node"
	}
	return ""
}
