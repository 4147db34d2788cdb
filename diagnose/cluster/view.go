// Package cluster reads the state of Fairlead from the Kubernetes API: Nodes and their agents, pools, the owners of
// addresses, the leader. Except for Release it changes nothing, and it has no state.
package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/versions"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// View is what was read, each list sorted by name. What could not be read is in Unread.
type View struct {
	// At is when reading began.
	At          time.Time
	Nodes       []Node
	Agents      []Agent
	Controller  Controller
	Pools       []api.IPPool
	Allocations []api.IPAllocation
	Pods        []Pod
	// ReservationOwners are the UIDs of StatefulSets and Deployments, for which addresses are reserved; nil: they were not
	// read, and a reservation counts as kept.
	ReservationOwners map[string]bool
	// Ranges are those of fairlead-controller's NodeIPAM.
	Ranges   []api.PodCIDRRange
	Policies []inputs.NetworkPolicy
	Warnings []Warning

	// Unread has for each part that could not be read the reason.
	Unread map[Part]error
}

// Part is a part of the View.
type Part string

// The parts.
const (
	Nodes             Part = "Nodes"
	Agents            Part = "Pods of agents"
	Leader            Part = "the Lease of fairlead-controller"
	Pools             Part = "IPPools"
	Allocations       Part = "IPAllocations"
	Pods              Part = "Pods"
	ReservationOwners Part = "StatefulSets and Deployments"
	Ranges            Part = "PodCIDRRanges"
	Policies          Part = "NetworkPolicies"
	Warnings          Part = "Events"
)

// Missing is the first error of the given parts.
func (v *View) Missing(parts ...Part) error {
	for _, p := range parts {
		if err := v.Unread[p]; err != nil {
			return err
		}
	}
	return nil
}

// Node is what matters here of a Node.
type Node struct {
	Name      string   `json:"name"`
	PodCIDRs  []string `json:"podCIDRs,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	// Ready is the status of the condition: "True", "False", "Unknown"; empty: there is none. Since is when that last
	// changed, Why kubelet's message if it is not True.
	Ready string      `json:"ready,omitempty"`
	Since metav1.Time `json:"since,omitzero"`
	Why   string      `json:"why,omitempty"`
	// Fenced: the Node has the taint node.kubernetes.io/out-of-service: no pod runs there.
	Fenced bool `json:"fenced,omitempty"`
	// NoAgent is why no Fairlead agent runs there, according to the Node; empty: one may.
	NoAgent string `json:"noAgent,omitempty"`
	// Versions are those of kubelet, kernel and container runtime.
	Versions map[versions.Software]string `json:"versions,omitempty"`
}

// Runs returns the versions that the Nodes report.
func (v *View) Runs() []versions.Run {
	of := map[string]map[versions.Software]string{}
	for _, n := range v.Nodes {
		of[n.Name] = n.Versions
	}
	return versions.Runs(of)
}

// fencedOff reports whether no pod runs on the node: it has the taint, and is not Ready.
func (n Node) fencedOff() bool { return n.Fenced && n.Ready != "True" }

// Agent is the Pod of a node's agent.
type Agent struct {
	Pod      string `json:"pod"`
	Node     string `json:"node"`
	Ready    bool   `json:"ready"`
	Why      string `json:"why,omitempty"`
	Restarts int    `json:"restarts"`
}

// Controller is the state of fairlead-controller according to its Lease.
type Controller struct {
	// Present: there is a Lease, so a controller has run before.
	Present bool        `json:"present"`
	Leader  string      `json:"leader,omitempty"`
	Renewed metav1.Time `json:"renewed,omitzero"`
	// Works: the leader has renewed it recently.
	Works bool `json:"works"`
}

// leaseStale is the Lease's age from which there is no leader. It is renewed every few seconds; the rest is for clock
// skew.
const leaseStale = time.Minute

func (c Controller) String() string {
	switch {
	case !c.Present:
		return "not found: there is no Lease kube-system/fairlead-controller"
	case c.Works:
		return "leader " + c.Leader
	case c.Leader == "":
		return "stopped: no holder of the Lease kube-system/fairlead-controller"
	}
	return fmt.Sprintf("not responding: %s has not renewed the Lease kube-system/fairlead-controller since %s UTC", c.Leader,
		c.Renewed.UTC().Format(time.DateTime))
}

// Pod is what matters here of a Pod.
type Pod struct {
	Namespace, Name, UID, Node string
	// StaticUID is the UID that kubelet uses for a static pod, whose mirror Pod in the API has another; else empty.
	StaticUID string
	// Ended: all its containers have terminated and will not restart.
	Ended bool
	// Leaving: it is being deleted.
	Leaving     bool
	HostNetwork bool
	IPs         []netip.Addr
}

// Is reports whether an owner's pod UID is p's.
func (p Pod) Is(uid string) bool { return uid != "" && (uid == p.UID || uid == p.StaticUID) }

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Warning is a Warning Event of Fairlead.
type Warning struct {
	About   string      `json:"about"`
	Reason  string      `json:"reason"`
	Message string      `json:"message"`
	Last    metav1.Time `json:"last"`
}

func nodeOf(n *corev1.Node) Node {
	out := Node{Name: n.Name, PodCIDRs: n.Spec.PodCIDRs, NoAgent: inputs.NoAgent(n),
		Versions: versions.OfNode(n.Status.NodeInfo)}
	if len(out.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		out.PodCIDRs = []string{n.Spec.PodCIDR}
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out.Addresses = append(out.Addresses, a.Address)
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready, out.Since = string(c.Status), c.LastTransitionTime
			if c.Status != corev1.ConditionTrue {
				out.Why = c.Message
			}
		}
	}
	out.Fenced = slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
	return out
}

func podOf(p *corev1.Pod) Pod {
	out := Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		HostNetwork: p.Spec.HostNetwork,
		Leaving:     p.DeletionTimestamp != nil,
		StaticUID:   p.Annotations["kubernetes.io/config.hash"],
		Ended:       p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out.IPs = append(out.IPs, a)
		}
	}
	return out
}

func agentOf(p *corev1.Pod) Agent {
	a := Agent{Pod: p.Name, Node: p.Spec.NodeName, Why: string(p.Status.Phase)}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			a.Ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		a.Restarts += int(c.RestartCount)
		switch t := c.LastTerminationState.Terminated; {
		case c.State.Waiting != nil && t != nil:
			a.Why = fmt.Sprintf("%s, ended with exit code %d", c.State.Waiting.Reason, t.ExitCode)
		case c.State.Waiting != nil:
			a.Why = c.State.Waiting.Reason
		}
	}
	if a.Ready {
		a.Why = ""
	}
	return a
}
