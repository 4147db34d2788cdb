// Package status publishes the state of the node: as one value for CNI requests and health checks, over HTTP, and in
// metrics.
package status

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

// Status is the state of the node after the last round of the loop. It is replaced, never changed.
type Status struct {
	PodCIDRs []netip.Prefix
	// PodMTU and BridgedMTU are the MTUs of routed and of bridged pods, in bytes.
	PodMTU, BridgedMTU int
	// NIC is the interface on which the underlay is probed, NoUplink says why it is not available for bridged pods, and
	// VLANDevices are its VLAN sub-interfaces, by VLAN.
	NIC         string
	NoUplink    error
	VLANDevices map[uint16]string
	Computed
	// AddRefused says why no routed pod may be added, although the rest works.
	AddRefused error
	// NoTunnel says why no packets go through the tunnel to other nodes.
	NoTunnel error
	// OVSStart distinguishes the running ovs-vswitchd from earlier ones (vswitchd.RunningStartID); empty: none runs.
	OVSStart string
	// OVSDown says what is wrong with Open vSwitch when it can do nothing.
	OVSDown error
	// NotReady says what does not work. nil means that the node serves pods.
	NotReady error
	// Degraded says what does not work although pods are served.
	Degraded error
	// Runtime is the node's container runtime, as inputs.Node has it.
	Runtime  string
	Snapshot *inputs.Snapshot
}

// Computed is from the last round that computed the desired state.
type Computed struct {
	Peers     []desired.Peer
	Transport link.Transport
	Overhead  int // of a tunnel, in bytes
	Flows     []openflow.Flow
	Pods      int
	// Unanswered are the podCIDRs of other nodes to which packets were sent while none came back, in order.
	Unanswered []netip.Prefix
}

// MTUOf is the MTU that a's interface would get now, in bytes.
func (s *Status) MTUOf(a api.Attachment) int {
	if a.Bridged {
		return s.BridgedMTU
	}
	return s.PodMTU
}

// Board has the current status. Any number of goroutines may read it.
type Board struct {
	current atomic.Pointer[Status]
	runtime chan struct{} // see OtherRuntime
	serving atomic.Bool
	unknown atomic.Pointer[string] // see RuntimeUses
}

// ErrStarting is the reason of an agent that does not serve pods yet and waits for nothing in particular.
var ErrStarting = errors.New("the agent is starting, and has not configured the node yet")

// NewBoard returns the board of a starting agent.
func NewBoard(snapshot *inputs.Snapshot) *Board {
	b := &Board{runtime: make(chan struct{}, 1)}
	b.Publish(&Status{NotReady: ErrStarting, Snapshot: snapshot})
	return b
}

// Load returns the current status.
func (b *Board) Load() *Status { return b.current.Load() }

// Publish replaces the status and returns the previous one, nil at first.
func (b *Board) Publish(s *Status) (before *Status) {
	before = b.current.Swap(s)
	if before != nil && before.Runtime != s.Runtime {
		select {
		case b.runtime <- struct{}{}:
		default: // the last notification is still pending
		}
	}
	return before
}

// OtherRuntime receives when the node's container runtime has changed. One goroutine may wait for it.
func (b *Board) OtherRuntime() <-chan struct{} { return b.runtime }

// Serving notes that CNI requests are answered, and that the network configuration is installed.
func (b *Board) Serving() { b.serving.Store(true) }

// RuntimeUses notes why the container runtime does not use Fairlead's network; nil: it does.
func (b *Board) RuntimeUses(err error) {
	why := text(err)
	b.unknown.Store(&why)
}

// Ready returns nil when a pod could be added now, else the reason.
func (b *Board) Ready() error {
	if err := b.Load().NotReady; err != nil {
		return err
	}
	if !b.serving.Load() {
		return errors.New("the node is configured; CNI requests are not served yet")
	}
	return nil
}

// State is what the agent reports to fairleadctl on its node. version is the agent's, node the name of the node's Node.
func (b *Board) State(version, node string, bridging bool) api.AgentState {
	s := b.Load()
	out := api.AgentState{Version: version, Node: node, NotReady: text(b.Ready()), Degraded: b.Degraded(),
		PodCIDRs: s.PodCIDRs, PodMTU: s.PodMTU, BridgedMTU: s.BridgedMTU, Overhead: s.Overhead,
		Transport: s.Transport.Name, TransportMTU: s.Transport.MTU, Pods: s.Pods,
		Bridging: bridging, NoUplink: text(s.NoUplink),
		NoTunnel: text(s.NoTunnel)}
	for _, p := range s.Peers {
		peer := api.AgentPeer{Node: p.Name, Address: p.Tunnel}
		for _, c := range p.PodCIDRs {
			if c.Path != desired.PathTunnel {
				peer.Routed = append(peer.Routed, c.Prefix)
			}
			if c.Via.IsValid() {
				peer.Address = c.Via
			}
		}
		if peer.Address.IsValid() {
			out.Peers = append(out.Peers, peer)
		}
	}
	for _, f := range s.Flows {
		out.Flows = append(out.Flows, f.String())
	}
	return out
}

// Degraded is what does not work although pods are served; empty: all works.
func (b *Board) Degraded() string {
	s := b.Load()
	if why := b.unknown.Load(); why != nil && *why != "" {
		return text(errors.Join(errors.New(*why), s.Degraded))
	}
	return text(s.Degraded)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
