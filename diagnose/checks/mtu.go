package checks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
	"github.com/fairlead-cni/fairlead/datapath/wire"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// maxPeers is how many other nodes are pinged: the paths within a cluster are similar.
const maxPeers = 8

// smallest is the size in bytes of a packet that fits through any path.
const smallest = 576

// echoWait is how long to wait for the reply to one ping.
const echoWait = 500 * time.Millisecond

// gatewayWait is how long to wait for the default gateway: the kernel probes it by unicast for 3 s, then by broadcast.
const gatewayWait = 5 * time.Second

// mtu checks whether pods' largest packets reach other nodes.
func (n *NodeProbe) mtu(ctx context.Context) (found []report.Finding, notKnown []string, err error) {
	if os.Geteuid() != 0 {
		return nil, nil, fmt.Errorf("this needs root (sudo)")
	}
	s, err := nodestate.Agent(ctx, n.Config)
	if err != nil {
		return nil, nil, err
	}
	if s.NoTunnel != "" {
		return nil, nil, fmt.Errorf("no packets go through the tunnel: see the check %s", CheckAgent)
	}
	if s.PodMTU == 0 {
		return nil, nil, fmt.Errorf("the agent has not determined the pods' MTU yet: %s", s.NotReady)
	}
	if largest := s.TransportMTU - s.Overhead; s.PodMTU > largest {
		return []report.Finding{{Check: CheckMTU, Kind: "mtu-too-large", Severity: report.Failing, About: []string{s.Node},
			Cause:    fmt.Sprintf("pods have an MTU of %d, but %s carries %d bytes, and the tunnel needs %d of them: packets of more than %d bytes to other nodes are lost", s.PodMTU, s.Transport, s.TransportMTU, s.Overhead, largest),
			Evidence: []string{"reported by this node's agent"},
			Remedies: []report.Remedy{{Text: fmt.Sprintf("Set defaultMTU to 0 or %d in the agents' config, and recreate the pods", largest)}}}}, nil, nil
	}
	var mu sync.Mutex
	var probing sync.WaitGroup
	probed := s.Peers[:min(len(s.Peers), maxPeers)]
	for _, p := range probed {
		probing.Go(func() {
			f, unknown := path(ctx, s, p)
			mu.Lock()
			defer mu.Unlock()
			found = append(found, f...)
			notKnown = append(notKnown, unknown...)
		})
	}
	probing.Wait()
	if len(notKnown) == len(probed) {
		found = append(found, cutOff(ctx, s, len(probed))...)
	}
	if more := len(s.Peers) - maxPeers; more > 0 {
		notKnown = append(notKnown, fmt.Sprintf("the paths to %d more nodes: %d were checked", more, maxPeers))
	}
	return found, notKnown, nil
}

// cutOff finds a node that is off the network. Nodes that answer no ping may be behind a firewall, so the default
// gateway has to be silent, too.
func cutOff(ctx context.Context, s api.AgentState, probed int) []report.Finding {
	ctx, cancel := context.WithTimeout(ctx, gatewayWait)
	defer cancel()
	err := gateways.Check(ctx, s.Transport)
	if err == nil || errors.Is(err, gateways.ErrNone) {
		return nil
	}
	return []report.Finding{{Check: CheckMTU, Kind: "cut-off", Severity: report.Failing, About: []string{s.Node},
		Cause:    fmt.Sprintf("this node is off the network: the default gateway does not answer (%v), and neither does any of %d other nodes", err, probed),
		Evidence: []string{"pings from " + s.Transport + ", and ARP or neighbour discovery on it"},
		Remedies: []report.Remedy{
			{Text: "Check the NIC, its cable, and the switch port with its VLANs", Commands: []string{"ip -s link show " + s.Transport}},
			{Text: "If the NIC is attached to Open vSwitch, restore it, and check whether that helps",
				Commands: []string{"fairlead-agent uplink status", "fairlead-agent uplink restore"}}}}}
}

// path pings one node with packets as large as the pods'.
func path(ctx context.Context, s api.AgentState, p api.AgentPeer) (found []report.Finding, notKnown []string) {
	size := s.PodMTU + s.Overhead
	arrives := func(size int) bool { return wire.Echo(ctx, p.Address, size, echoWait) == nil }
	if arrives(size) {
		return nil, nil
	}
	if !arrives(smallest) {
		return nil, []string{fmt.Sprintf("the path to node %s: %s does not answer pings", p.Node, p.Address)}
	}
	low, high := smallest, size // the largest known to arrive, the smallest known not to
	for high-low > 1 {
		if mid := (low + high) / 2; arrives(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return []report.Finding{{Check: CheckMTU, Kind: "path-mtu", Severity: report.Failing, About: []string{p.Node},
		Cause: fmt.Sprintf("packets of up to %d bytes are sent to node %s (%s), but the largest that arrives has %d: larger ones are lost, and connections hang once they carry data", size, p.Node, p.Address, low),
		Evidence: []string{fmt.Sprintf("pings with the DF flag; %s has an MTU of %d, pods of %d", s.Transport,
			s.TransportMTU, s.PodMTU)},
		Remedies: []report.Remedy{
			{Text: fmt.Sprintf("Configure switches and routers between the nodes for packets of %d bytes", size)},
			{Text: fmt.Sprintf("Set defaultMTU: %d in the agents' config of all nodes, and recreate the pods", low-s.Overhead)}}}}, nil
}
