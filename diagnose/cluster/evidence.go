package cluster

import (
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Verdict says whether an allocated address may be in use.
type Verdict string

// The verdicts. Unknown means in use: only Gone may be released.
const (
	// Lives: the Pod that it is allocated to exists.
	Lives Verdict = "lives"
	// MayLive: the Pod is gone from the API, but its containers may still run.
	MayLive Verdict = "may be running"
	// Kept: reserved for a StatefulSet or another owner that exists.
	Kept Verdict = "kept"
	// Gone: orphaned, or not a pod's, as far as the API knows.
	Gone Verdict = "gone"
)

// Evidence is what is known about the owner of an address.
type Evidence struct {
	Allocation api.IPAllocation `json:"allocation"`
	Verdict    Verdict          `json:"verdict"`
	// Owner, Pod and Node are messages; empty: there is nothing to report.
	Owner string `json:"owner"`
	Pod   string `json:"pod,omitempty"`
	Node  string `json:"node,omitempty"`
	// Waits is what the release waits for, or why there is none.
	Waits string `json:"waits,omitempty"`
}

// Lines are the non-empty messages.
func (e Evidence) Lines() []string {
	var out []string
	for _, s := range []string{e.Owner, e.Pod, e.Node, e.Waits} {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// index finds Pods and Nodes.
type index struct {
	view  *View
	pods  map[string]Pod // by UID
	nodes map[string]Node
}

func (v *View) index() index {
	x := index{view: v, pods: map[string]Pod{}, nodes: map[string]Node{}}
	for _, p := range v.Pods {
		x.pods[p.UID] = p
		if p.StaticUID != "" {
			x.pods[p.StaticUID] = p
		}
	}
	for _, n := range v.Nodes {
		x.nodes[n.Name] = n
	}
	return x
}

// Evidences is the evidence for all allocations, in their order. It needs Nodes, Pods, Leader and Allocations. Without
// ReservationOwners it says less about reservations.
func (v *View) Evidences() []Evidence {
	x := v.index()
	out := make([]Evidence, 0, len(v.Allocations))
	for _, a := range v.Allocations {
		out = append(out, x.evidence(a))
	}
	return out
}

func (x index) evidence(a api.IPAllocation) Evidence {
	e := Evidence{Allocation: a, Owner: "allocated to " + a.Spec.Owner.String()}
	switch a.Spec.Phase {
	case api.PhaseConflict:
		e.Verdict, e.Owner = Gone, "no pod of this cluster has it: "+mac(a)+" answers for it on the wire, as seen from node "+
			a.Spec.Owner.Node
		e.Waits = "it is probed again " + until(a)
	case api.PhaseCooling:
		e.Verdict, e.Owner = Gone, "released by "+a.Spec.Owner.String()
		e.Waits = "it is cooling, because neighbours may have its previous owner in their caches, and becomes free " + until(a)
	case api.PhaseReserved:
		x.reserved(&e)
	default:
		x.allocated(&e)
	}
	return e
}

func mac(a api.IPAllocation) string {
	if a.Spec.MAC == "" {
		return "an unknown host"
	}
	return a.Spec.MAC
}

func until(a api.IPAllocation) string {
	if a.Spec.Until == nil {
		return "when it is needed"
	}
	return "at " + a.Spec.Until.UTC().Format(time.DateTime) + " UTC"
}

func (x index) reserved(e *Evidence) {
	r := e.Allocation.Spec.Reservation
	if r == nil {
		e.Verdict, e.Owner = Kept, "reserved, without a recorded owner"
		return
	}
	e.Owner = "reserved for " + r.String()
	e.Verdict = Kept
	switch known := r.Kind == api.KindStatefulSet || r.Kind == api.KindDeployment; {
	case known && x.view.ReservationOwners == nil:
		e.Owner += ", which may be gone: StatefulSets and Deployments were not read"
	case known && !x.view.ReservationOwners[r.UID]:
		e.Verdict, e.Owner = Gone, e.Owner+", which is gone"
		e.Waits = "fairlead-controller releases it" + x.ifItWorks()
	}
}

func (x index) ifItWorks() string {
	if x.view.Controller.Works {
		return " within minutes"
	}
	return ", which is not working now"
}

func (x index) allocated(e *Evidence) {
	o := e.Allocation.Spec.Owner
	pod, here := x.pods[o.PodUID]
	node, there := x.nodes[o.Node]
	e.Node = x.nodeSentence(o.Node, node, there)
	switch {
	case o.PodUID == "":
		e.Verdict, e.Pod = MayLive, "the Pod is not recorded"
		if !there || node.fencedOff() {
			e.Verdict = Gone
		}
	case here && !pod.Ended:
		e.Verdict, e.Pod = Lives, fmt.Sprintf("Pod %s (UID %s) exists", pod, pod.UID)
		return
	case here:
		e.Pod = fmt.Sprintf("Pod %s (UID %s) exists and has finished", pod, pod.UID)
	default:
		e.Pod = fmt.Sprintf("the Pod with UID %s no longer exists%s", o.PodUID, x.namesake(o))
	}
	if e.Verdict != "" {
		return
	}
	switch {
	case !there:
		e.Verdict, e.Waits = Gone, "fairlead-controller releases it"+x.ifItWorks()
	case node.fencedOff():
		e.Verdict, e.Waits = Gone, "the Node is marked as out of service: fairlead-controller releases it"+x.ifItWorks()
	case node.Ready == "True":
		e.Verdict, e.Waits = Gone, "the node's agent reclaims it once no container has it, within a minute"
	default:
		e.Verdict, e.Waits = MayLive, "nothing releases it: containers of the Pod may still run on the node"
	}
}

// namesake names a different Pod that has the owner's name.
func (x index) namesake(o api.AllocationOwner) string {
	for _, p := range x.view.Pods {
		if p.Namespace == o.Namespace && p.Name == o.Name {
			return fmt.Sprintf("; the existing Pod %s is a different one, with UID %s", p, p.UID)
		}
	}
	return ""
}

func (x index) nodeSentence(name string, n Node, there bool) string {
	switch {
	case name == "":
		return "the node is not recorded"
	case !there:
		return "there is no Node " + name + " any more"
	case n.Ready == "True":
		return "Node " + name + " is Ready"
	case n.Ready == "":
		return "Node " + name + " has never reported whether it is Ready"
	}
	fenced := ""
	if n.Fenced {
		fenced = ", and is marked as out of service"
	}
	return fmt.Sprintf("Node %s is not Ready (%s) since %s UTC%s", name, n.Ready, n.Since.UTC().Format(time.DateTime), fenced)
}

// Released says what happens to the address once it is released.
func (e Evidence) Released() string {
	switch {
	case e.Allocation.Spec.Phase != api.PhaseAllocated:
		return "it can be allocated at once"
	case e.Allocation.Spec.Reservation != nil:
		return "it stays reserved for its owner's next pod"
	}
	return "it cools for a minute"
}

// WhyNot says why the address should not be released, unless the verdict is Gone.
func (e Evidence) WhyNot() string {
	switch e.Verdict {
	case Lives:
		return "its pod is running"
	case Kept:
		return "it is " + e.Owner
	}
	return "its pod may be running"
}
