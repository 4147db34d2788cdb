package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairlead-cni/fairlead/openflow/explain"
)

// Trace describes what Open vSwitch does with an ICMP echo request of a pod to an address or to another pod
// (namespace/name), on the pod's node and, if the packet leaves through the tunnel or the uplink, on the other's. It
// sends no packet: ovs-vswitchd traces it through its flows (ovs-vswitchd(8), ofproto/trace).
func (l *Lab) Trace(ctx context.Context, pod, destination string) ([]string, error) {
	pods, err := l.PodStates()
	if err != nil {
		return nil, err
	}
	from, err := findPod(pods, pod)
	if err != nil {
		return nil, err
	}
	var to PodState
	dst, err := netip.ParseAddr(destination)
	if err != nil {
		if to, err = findPod(pods, destination); err != nil {
			return nil, err
		}
		dst = netip.MustParseAddr(to.IPs[0])
	} else if i := slices.IndexFunc(pods, func(p PodState) bool { return slices.Contains(p.IPs, destination) }); i >= 0 {
		to = pods[i]
	}
	ports, err := l.tracePorts(ctx, from.Node)
	if err != nil {
		return nil, err
	}
	packet, err := explain.Echo(addrs(from.IPs), dst)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod, err)
	}
	out, err := l.trace(ctx, from.Node, ports, ports.FromPod(pod)+","+packet)
	if err != nil || to.Node == "" {
		return out, err
	}
	there, err := l.tracePorts(ctx, to.Node)
	if err != nil {
		return out, err
	}
	arrival := "dl_src=" + ports.Pods[pod].MAC
	var port string
	switch {
	case explain.Leaves(out, explain.TheTunnel):
		port, err = l.outOfTunnel(ctx, there, from.Node)
	case explain.Leaves(out, explain.TheUplink) && there.Pods[to.Pod].Bridged:
		port, err = there.OutOfUplink(to.Pod)
	default:
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w", to.Node, err)
	}
	more, err := l.trace(ctx, to.Node, there, port+","+arrival+","+packet)
	return append(out, more...), err
}

func addrs(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// outOfTunnel is the form in which a packet from another node leaves the tunnel.
func (l *Lab) outOfTunnel(ctx context.Context, ports explain.Ports, from string) (string, error) {
	nodes, err := l.NodeStates(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(nodes, func(n NodeState) bool { return n.Node == from })
	return ports.OutOfTunnel(netip.MustParseAddr(nodes[i].Addresses[0]))
}

func findPod(pods []PodState, name string) (PodState, error) {
	i := slices.IndexFunc(pods, func(p PodState) bool { return p.Pod == name })
	if i < 0 {
		return PodState{}, fmt.Errorf("there is no pod %s, and it is not an IP address (see: lab get pods)", name)
	}
	if len(pods[i].IPs) == 0 {
		return PodState{}, fmt.Errorf("pod %s has no address yet (see: lab get pods)", name)
	}
	return pods[i], nil
}

// tracePorts reads the ports of a node's bridge from the agent's external_ids in OVSDB.
func (l *Lab) tracePorts(ctx context.Context, node string) (explain.Ports, error) {
	p := explain.NewPorts()
	text, err := l.NodeExec(ctx, node, "ovs-vsctl", "-t", "60", "--format=json", "--columns=name,external_ids", "list", "Port")
	if err != nil {
		return p, err
	}
	var table struct {
		Data [][2]json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal([]byte(text), &table); err != nil {
		return p, fmt.Errorf("what ovs-vsctl says: %w", err)
	}
	for _, row := range table.Data {
		var name string
		var ids [2]json.RawMessage // "map" and its pairs
		var pairs [][2]string
		for _, err := range []error{json.Unmarshal(row[0], &name), json.Unmarshal(row[1], &ids),
			json.Unmarshal(ids[1], &pairs)} {
			if err != nil {
				return p, fmt.Errorf("reading ovs-vsctl's output for a port: %w", err)
			}
		}
		if err := addPort(p, name, pairs); err != nil {
			return p, err
		}
	}
	return p, nil
}

func addPort(p explain.Ports, port string, pairs [][2]string) error {
	ids := map[string]string{}
	for _, pair := range pairs {
		ids[pair[0]] = pair[1]
	}
	switch ids["fairlead"] {
	case "gateway":
		p.Add(port, explain.TheNode)
	case "tunnel":
		p.Add(port, explain.TheTunnel)
	case "uplink":
		p.Add(port, explain.TheUplink)
	case "pod":
		pod := explain.Pod{Port: port, MAC: ids["fairlead-mac"]}
		if vlan, bridged := ids["fairlead-vlan"]; bridged {
			n, err := strconv.ParseUint(vlan, 10, 16)
			if err != nil {
				return fmt.Errorf("the VLAN of port %s: %w", port, err)
			}
			pod.Bridged, pod.VLAN = true, uint16(n)
		}
		p.AddPod(ids["fairlead-pod-namespace"]+"/"+ids["fairlead-pod-name"], pod)
	}
	return nil
}

// trace runs one trace.
func (l *Lab) trace(ctx context.Context, node string, ports explain.Ports, packet string) ([]string, error) {
	text, err := l.NodeExec(ctx, node, "ovs-appctl", "-T", "60", "ofproto/trace", "--names", "br-int", packet)
	if err != nil {
		return nil, err
	}
	return append([]string{"On " + node + ":"}, explain.Trace(text, ports.Names)...), nil
}
