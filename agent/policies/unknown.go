package policies

import (
	"slices"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/policing"
)

// keptID is the number of the unit of the flows that the switch has from an earlier agent. No other unit has it.
const keptID = 0

// Unknown returns the units for as long as it is not known what applies to any pod. there are the switch's flows for
// pods and policies: pods that it serves and enforces policies on stay as they are, and all others are closed: those
// that it serves without policies, as after networkPolicies: report, would be open. When the objects are known, the
// switch must be compared with Units, as the units of this method have flows of others.
func (r *Rules) Unknown(there []openflow.Flow) map[uint32]openflow.Unit {
	served, enforces := map[uint32]bool{}, false
	for _, f := range there {
		enforces = enforces || f.Kind.OfPolicies() && f.Table == policing.Ingress.Accept()
		served[f.Match.InPort] = f.Kind == openflow.KindPod && f.Match.InPort != 0 || served[f.Match.InPort]
	}
	for key, p := range r.pods {
		r.setClosed(key, p, p.staysClosed(enforces, served))
		r.divert(key)
	}
	out, ours := r.Units(), map[openflow.Key]bool{}
	for _, unit := range out {
		for _, f := range unit.Flows {
			ours[f.Key()] = true
		}
	}
	var kept []openflow.Flow
	for _, f := range there {
		if f.Kind.OfPolicies() && !ours[f.Key()] {
			kept = append(kept, f)
		}
	}
	if len(kept) > 0 {
		out[keptID] = openflow.Unit{Flows: kept}
	}
	return out
}

// staysClosed reports whether a pod is closed as long as policies are not known: one that was closed before, although
// it is served, and one that is served without policies or not at all. A pod without a port is gone.
func (p *pod) staysClosed(enforces bool, served map[uint32]bool) bool {
	judged := func(port Port) bool { return enforces && served[port.At.Port] }
	return len(p.ports) > 0 && (p.closed || slices.ContainsFunc(p.ports, func(port Port) bool { return !judged(port) }))
}
