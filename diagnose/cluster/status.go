package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/versions"
)

// Status is a summary of the cluster.
type Status struct {
	Controller Controller    `json:"controller"`
	Ranges     []RangeStatus `json:"podCIDRRanges,omitempty"`
	Nodes      []NodeStatus  `json:"nodes"`
	// Versions are those that the Nodes report, and what is known of each.
	Versions []VersionStatus `json:"versions,omitempty"`
	Pools    []PoolStatus    `json:"pools"`
	Warnings []Warning       `json:"warnings,omitempty"`
	// NotKnown are messages about what could not be read.
	NotKnown []string `json:"notKnown,omitempty"`
}

// NodeStatus is a Node and the Pod of its agent.
type NodeStatus struct {
	Node
	Agent *Agent `json:"agent,omitempty"`
	// Held counts the pools' addresses that are allocated to pods on the node.
	Held int `json:"heldAddresses"`
	// Reach is what its agent has found by probing other nodes; nil: it does not probe, or was not queried.
	Reach *Reached `json:"reach,omitempty"`
}

// Reached says how many of the nodes that a node probes have pods that are reached in both directions.
type Reached struct {
	Probed  int `json:"probed"`
	Reached int `json:"reached"`
	// Away are nodes that do not run, or whose agent does not.
	Away int `json:"away,omitempty"`
	// NotReached are nodes whose pods do not reach this one's, or are not reached from them.
	NotReached []string `json:"notReached,omitempty"`
	// Problem is why none is probed.
	Problem string `json:"problem,omitempty"`
}

// VersionStatus is a version, its nodes, and whether Fairlead was tested with it.
type VersionStatus struct {
	versions.Run
	Support string `json:"support"`
}

// RangeStatus is how full a range of NodeIPAM is, in podCIDRs.
type RangeStatus struct {
	ClusterCIDR string `json:"clusterCIDR"`
	NodeMask    int    `json:"nodeMask"`
	Used        int64  `json:"used"`
	Total       int64  `json:"total"`
	State       string `json:"state"`
}

// PoolStatus is a pool and its usage, in addresses.
type PoolStatus struct {
	Name string `json:"name"`
	// State is "Ready", or the reason why not, and Message the explanation.
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
	// Used and Total are as counted by fairlead-controller. Total is 0 if it has not.
	Used  int64 `json:"used"`
	Total int64 `json:"total"`
	// Phases counts the current allocations.
	Phases map[api.AllocationPhase]int `json:"phases,omitempty"`
	// Ranges are as written.
	Ranges  []string `json:"ranges"`
	VLAN    string   `json:"vlan"`
	Network string   `json:"network,omitempty"`
}

// StatusParts are the parts that Status needs.
func StatusParts() []Part { return []Part{Nodes, Agents, Leader, Pools, Allocations, Ranges, Warnings} }

// Status summarises the view.
func (v *View) Status() Status {
	s := Status{Controller: v.Controller, Nodes: []NodeStatus{}, Pools: v.PoolStatuses(), Warnings: v.Warnings}
	held := map[string]int{}
	for _, a := range v.Allocations {
		if a.Spec.Phase == api.PhaseAllocated {
			held[a.Spec.Owner.Node]++
		}
	}
	for _, n := range v.Nodes {
		ns := NodeStatus{Node: n, Held: held[n.Name]}
		if i := slices.IndexFunc(v.Agents, func(a Agent) bool { return a.Node == n.Name }); i >= 0 {
			ns.Agent = &v.Agents[i]
		}
		s.Nodes = append(s.Nodes, ns)
	}
	for _, r := range v.Runs() {
		s.Versions = append(s.Versions, VersionStatus{r, versions.Of(r.Software, r.Version, v.At).String()})
	}
	for _, r := range v.Ranges {
		s.Ranges = append(s.Ranges, RangeStatus{r.Spec.ClusterCIDR, r.Spec.NodeMask, r.Status.Used, r.Status.Total,
			stateOf(r.Status.Conditions, api.RangeReady)})
	}
	for _, p := range StatusParts() {
		if err := v.Unread[p]; err != nil {
			s.NotKnown = append(s.NotKnown, err.Error())
		}
	}
	return s
}

// stateOf is "Ready", or the reason why that is not True.
func stateOf(conditions []metav1.Condition, ready string) string {
	c := meta.FindStatusCondition(conditions, ready)
	switch {
	case c == nil:
		return "not checked yet"
	case c.Status == metav1.ConditionTrue:
		return "Ready"
	}
	return c.Reason
}

// PoolStatuses are the statuses of all pools. It needs Pools and Allocations.
func (v *View) PoolStatuses() []PoolStatus {
	out := []PoolStatus{}
	for _, p := range v.Pools {
		s := PoolStatus{Name: p.Name, State: stateOf(p.Status.Conditions, api.PoolReady), VLAN: vlans(p),
			Network: p.Annotations[api.AnnotationNetwork], Phases: map[api.AllocationPhase]int{}}
		if u := p.Status.Usage; u != nil {
			s.Used, s.Total = u.Used, u.Total
		}
		for _, c := range p.Status.Conditions {
			if c.Type != api.PoolReady && c.Status == metav1.ConditionTrue && s.Message == "" {
				s.Message = c.Message
			}
		}
		for _, r := range p.Spec.IPRanges {
			text := r.CIDR
			if text == "" {
				text = r.Start + "-" + r.End
			}
			s.Ranges = append(s.Ranges, text)
		}
		for _, a := range v.Allocations {
			if a.Spec.Pool == p.Name {
				s.Phases[a.Spec.Phase]++
			}
		}
		out = append(out, s)
	}
	return out
}

// vlans are the VLANs of a pool's ranges.
func vlans(p api.IPPool) string {
	if p.Spec.SubnetInfo != nil {
		return fmt.Sprint(p.Spec.SubnetInfo.VLAN)
	}
	all := map[int]bool{}
	for _, r := range p.Spec.IPRanges {
		all[r.VLAN] = true
	}
	var out []string
	for _, v := range slices.Sorted(maps.Keys(all)) {
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, ",")
}
