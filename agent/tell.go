package agent

import (
	"github.com/fairlead-cni/fairlead/api"
)

// tell is what the agent says to people on its node (fairleadctl).
func (l *loop) tell(version string) api.AgentState {
	s := l.state.Load()
	out := api.AgentState{Version: version, Node: l.nodeName, NotReady: text(l.ready()), Degraded: text(s.degraded),
		PodCIDRs: s.podCIDRs, PodMTU: s.podMTU, BridgedMTU: s.bridgedMTU, Overhead: s.overhead,
		Transport: s.transport.Name, TransportMTU: s.transport.MTU, Pods: s.pods,
		Bridging: l.cfg.EnableBridgingMode, NoUplink: text(s.noUplink)}
	for _, p := range s.peers {
		peer := api.AgentPeer{Node: p.Name, Address: p.Tunnel}
		for _, c := range p.PodCIDRs {
			if c.Via.IsValid() {
				peer.Address = c.Via
			}
		}
		if peer.Address.IsValid() {
			out.Peers = append(out.Peers, peer)
		}
	}
	for _, f := range s.flows {
		out.Flows = append(out.Flows, f.String())
	}
	return out
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
