package lab

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
)

// NodeState is the state of one node.
type NodeState struct {
	Node string `json:"node"`
	// Addresses are its own; PodCIDRs are those of its manifest, which may be gone.
	Addresses []string   `json:"addresses"`
	PodCIDRs  []string   `json:"podCIDRs"`
	Agent     AgentState `json:"agent"`
	// VswitchdPID and OVSDBPID are 0 if the daemon is not running.
	VswitchdPID int `json:"vswitchdPID"`
	OVSDBPID    int `json:"ovsdbPID"`
}

// NodeStates reads the state of all nodes.
func (l *Lab) NodeStates(ctx context.Context) ([]NodeState, error) {
	nodes, err := l.nodeObjects(ctx)
	if err != nil {
		return nil, err
	}
	podCIDRs := map[string][]string{}
	for _, n := range nodes {
		podCIDRs[n.Name] = n.Spec.PodCIDRs
		if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
			podCIDRs[n.Name] = []string{n.Spec.PodCIDR}
		}
	}
	var out []NodeState
	for i, name := range l.Nodes() {
		h, _, err := l.node(name)
		if err != nil {
			return nil, err
		}
		s := NodeState{Node: name, PodCIDRs: podCIDRs[name], VswitchdPID: Vswitchd.PID(h), OVSDBPID: OVSDB.PID(h)}
		for _, a := range l.NodeAddrs(i + 1) {
			s.Addresses = append(s.Addresses, a.Addr().String())
		}
		if s.Agent, err = l.AgentState(ctx, name); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// nodeObjects are the Nodes of the cluster, none while the API server is unreachable.
func (l *Lab) nodeObjects(ctx context.Context) ([]*corev1.Node, error) {
	if l.spec.Cluster != Kube {
		return l.Manifests().Nodes()
	}
	client, err := l.Client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second) // can take seconds on a busy machine
	defer cancel()
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return nodes, nil
}

// PartState is the state of one component of the control plane.
type PartState struct {
	Part controlplane.Part `json:"part"`
	// PID is its process, 0 if it is not running.
	PID int `json:"pid"`
	// Problem is why it does not serve; empty if it does.
	Problem string `json:"problem,omitempty"`
}

// PartStates reads the state of the control plane's components. A lab without Kubernetes has none.
func (l *Lab) PartStates(ctx context.Context) ([]PartState, error) {
	if l.spec.Cluster != Kube {
		return nil, nil
	}
	p, err := l.Plane()
	if err != nil {
		return nil, err
	}
	client, err := l.Client()
	if err != nil {
		return nil, err
	}
	var out []PartState
	for _, part := range controlplane.Parts() {
		s := PartState{Part: part, PID: p.PID(part)}
		if err := p.Serves(ctx, client, part); err != nil {
			s.Problem = err.Error()
		}
		out = append(out, s)
	}
	return out, nil
}
