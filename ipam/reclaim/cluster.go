package reclaim

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// TaintOutOfService is the taint by which an administrator declares that a node is off and will not come back by
// itself.
const TaintOutOfService = "node.kubernetes.io/out-of-service"

// ClusterNode is the state of a node in the API. The zero value: there is no Node of that name.
type ClusterNode struct {
	UID     string
	Created time.Time
	// Fenced: it has the taint TaintOutOfService. Ready: its kubelet reports Ready, so it is running, whatever the
	// taint says.
	Fenced, Ready bool
}

// Lost returns why the node will never report its pods again; empty if it may. Not being ready is no reason.
func (n ClusterNode) Lost() (why string) {
	switch {
	case n.UID == "":
		return "its Node was deleted"
	case n.Fenced && !n.Ready:
		return "its Node is fenced (UID " + n.UID + ")"
	}
	return ""
}

// Pod is a Pod on a node, as the API server has it.
type Pod struct {
	UID, Namespace, Name string
	// ConfigHash is the annotation kubernetes.io/config.hash: kubelets use it as the UID of static pods, whose mirror
	// Pods in the API have another.
	ConfigHash string
	Created    time.Time
	// IPs are the known addresses; the node's for a pod with HostNetwork.
	IPs         []netip.Addr
	HostNetwork bool
	// Finished: its phase is Succeeded or Failed.
	Finished bool
}

// Lives reports whether o is one of the pods and has not finished. An owner without a pod UID is matched by name, if it
// has one: that can only keep an address.
func Lives(o api.AllocationOwner, pods []Pod) bool {
	for _, p := range pods {
		same := p.UID == o.PodUID || p.ConfigHash == o.PodUID
		if o.PodUID == "" {
			same = o.Name != "" && p.Namespace == o.Namespace && p.Name == o.Name
		}
		if same && !p.Finished {
			return true
		}
	}
	return false
}

// Occupied reports whether one of the pods on a node may have an address of a podCIDR that an earlier Node of that name
// had. A pod without a known address may, unless it is younger than the current Node.
func Occupied(podCIDR netip.Prefix, now ClusterNode, pods []Pod) bool {
	return slices.ContainsFunc(pods, func(p Pod) bool {
		unknown := len(p.IPs) == 0 && (now.UID == "" || !p.Created.After(now.Created))
		return !p.Finished && !p.HostNetwork && (unknown || slices.ContainsFunc(p.IPs, podCIDR.Contains))
	})
}

// Lost returns what owners on lost nodes hold. nodes are all of the cluster, by name. If there are none, nothing is
// known.
func Lost(allocations []*api.IPAllocation, nodes map[string]ClusterNode) []Suspect {
	if len(nodes) == 0 {
		return nil
	}
	var out []Suspect
	for _, a := range allocations {
		if a.Spec.Phase != api.PhaseAllocated || a.Spec.Owner.Node == "" {
			continue
		}
		if why := nodes[a.Spec.Owner.Node].Lost(); why != "" {
			out = append(out, Suspect{*a, why})
		}
	}
	return out
}
