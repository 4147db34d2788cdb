package lab

import (
	"context"
)

// NodeState is one node as the lab sees it.
type NodeState struct {
	Node string `json:"node"`
	// Addresses are its own; PodCIDRs are those of its manifest, which may be gone.
	Addresses []string   `json:"addresses"`
	PodCIDRs  []string   `json:"podCIDRs"`
	Agent     AgentState `json:"agent"`
	// VswitchdPID and OVSDBPID are 0 if the daemon does not run.
	VswitchdPID int `json:"vswitchdPID"`
	OVSDBPID    int `json:"ovsdbPID"`
}

// NodeStates asks after all nodes.
func (l *Lab) NodeStates(ctx context.Context) ([]NodeState, error) {
	manifests, err := l.Manifests().Nodes()
	if err != nil {
		return nil, err
	}
	podCIDRs := map[string][]string{}
	for _, m := range manifests {
		podCIDRs[m.Name] = m.Spec.PodCIDRs
		if len(m.Spec.PodCIDRs) == 0 && m.Spec.PodCIDR != "" {
			podCIDRs[m.Name] = []string{m.Spec.PodCIDR}
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
