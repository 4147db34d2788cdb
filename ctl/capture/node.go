package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/capture"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
)

// Ends are the ends of the captured traffic.
type Ends struct {
	// Pod is namespace/name.
	Pod string
	// To is the other end as a pod, Addrs its addresses; both empty: any.
	To    string
	Addrs []netip.Addr
}

// Node is the node that this runs on.
type Node struct {
	Config  api.AgentConfig
	Journal string // of the uplink
}

// place is an interface of this node, and what is captured there.
type place struct {
	ifName string
	of     Interface
	filter capture.Filter
}

// Open starts capturing on this node. Problems are interfaces that are left out. It needs root.
func (n Node) Open(ctx context.Context, ends Ends, snapLen int) (sources []Source, problems []string, err error) {
	db, err := nodestate.OVS(ctx, n.Config)
	if err != nil {
		return nil, nil, err
	}
	defer db.Close()
	seen, err := db.Observe(n.Config.OVSBridge)
	if err != nil {
		return nil, nil, err
	}
	state, err := nodestate.Agent(ctx, n.Config)
	if err != nil {
		problems = append(problems, err.Error())
	}
	places, err := n.places(ends, seen, state)
	if err != nil {
		return nil, nil, err
	}
	if n.transport(state) == "" {
		problems = append(problems, "the transport interface is not known: only the agent can report it")
	}
	for _, p := range places {
		s, err := capture.Open(p.ifName, p.filter, snapLen)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		sources = append(sources, device{s, p.of})
	}
	if len(sources) == 0 {
		return nil, nil, errors.New("there is no interface to capture from: " + fmt.Sprint(problems))
	}
	return sources, problems, nil
}

// transport is the interface that leads to other nodes; empty if only the agent knows it and does not report it.
func (n Node) transport(state api.AgentState) string {
	if name := n.Config.TransportInterface; state.Transport == "" && !link.IsPattern(name) {
		return name
	}
	return state.Transport
}

// places are the interfaces on the path of the pod's packets.
func (n Node) places(ends Ends, seen ovsdb.Observed, state api.AgentState) ([]place, error) {
	pod, isHere := podHere(seen, ends.Pod)
	if !isHere {
		return nil, fmt.Errorf("pod %s is not on this node", ends.Pod)
	}
	filter := capture.Filter{Of: addrsOf(pod), With: ends.Addrs}
	pods := []ovsdb.PodPort{pod}
	if ends.To != "" {
		to, isHere := podHere(seen, ends.To)
		if !isHere {
			return nil, fmt.Errorf("pod %s is not on this node: give its addresses", ends.To)
		}
		filter.With, pods = addrsOf(to), append(pods, to)
	}
	here := found{node: cmp.Or(state.Node, nodeName())}
	own := filter
	if len(filter.With) == 0 {
		own = capture.Filter{}
	}
	for _, p := range pods {
		here.add(p.Pod(), p.HostIf, "host end "+p.HostIf+" of pod "+p.Pod()+" on %s; inbound is what the pod sends", own)
	}
	here.add("", seen.Gateway.Name, "gateway of %s: between Open vSwitch and the node's own network", filter)
	here.add("", n.tunnel(seen), "tunnel of %s: packets without the outer headers", filter)
	if filter.Tunnel = n.Config.TunnelType; !seen.Tunnel.Present {
		filter.Tunnel = ""
	}
	filter.Port = n.tunnelPort()
	here.add("", n.transport(state), "transport interface of %s", filter)
	here.add("", n.uplink(), "NIC of %s", filter)
	// On the userspace datapath packets go from port to port, not through the node's own network.
	for _, name := range seen.Devices {
		if name != n.Config.OVSBridge && isDevice(name) {
			here.add("", name, "port of Open vSwitch on %s", filter)
		}
	}
	return here.places, nil
}

// found are the interfaces of a node, each once.
type found struct {
	node   string
	places []place
}

// add adds an interface, if there is one. Its name in the file is name, or ifName if that is empty; what has %s for the
// node.
func (f *found) add(name, ifName, what string, filter capture.Filter) {
	if ifName == "" || slices.ContainsFunc(f.places, func(p place) bool { return p.ifName == ifName }) {
		return
	}
	of := Interface{cmp.Or(name, ifName) + "@" + f.node, fmt.Sprintf(what, f.node), filter.String()}
	f.places = append(f.places, place{ifName, of, filter})
}

// nodeName is the node's name, as far as it is known without the agent.
func nodeName() string {
	if name := os.Getenv("NODE_NAME"); name != "" { // in the agent's pod
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "this node"
	}
	return strings.ToLower(name)
}

func isDevice(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

func podHere(seen ovsdb.Observed, name string) (ovsdb.PodPort, bool) {
	i := slices.IndexFunc(seen.Pods, func(p ovsdb.PodPort) bool { return p.Pod() == name })
	if i < 0 {
		return ovsdb.PodPort{}, false
	}
	return seen.Pods[i], true
}

func addrsOf(p ovsdb.PodPort) (out []netip.Addr) {
	for _, a := range p.Addrs {
		out = append(out, a.Addr())
	}
	return out
}

// tunnelPort is the UDP port; 0: the tunnel is not over UDP.
func (n Node) tunnelPort() uint16 {
	return uint16(nat.TunnelOf(n.Config.TunnelType, n.Config.TunnelPort).Port)
}

// tunnel is the kernel's tunnel device, named by Open vSwitch; empty if there is none, as on the userspace datapath.
func (n Node) tunnel(seen ovsdb.Observed) string {
	name := map[string]string{api.TunnelGeneve: fmt.Sprint("genev_sys_", n.tunnelPort()),
		api.TunnelVXLAN: fmt.Sprint("vxlan_sys_", n.tunnelPort()), api.TunnelGRE: "gre_sys"}[n.Config.TunnelType]
	if !seen.Tunnel.Present || !isDevice(name) {
		return ""
	}
	return name
}

// uplink is the NIC that is attached for bridged pods; empty if none is.
func (n Node) uplink() string {
	u, err := uplink.Open(n.Journal, logr.Discard())
	if err != nil || !u.Attached() {
		return ""
	}
	return u.Journal().NIC.Name
}
