package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/openflow/explain"
)

// Trace tells in words what Open vSwitch does with an ICMP echo request of a pod to an address or to another pod
// (namespace/name), on the pod's node and, if the packet leaves through the tunnel, on the other pod's. It sends
// nothing: ovs-vswitchd walks through its flows (ovs-vswitchd(8), ofproto/trace).
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
	packet, err := echo(ports, pod, from.IPs, dst)
	if err != nil {
		return nil, err
	}
	out, left, err := l.trace(ctx, from.Node, ports, packet)
	if err != nil || !left || to.Node == "" {
		return out, err
	}
	return l.traceArrival(ctx, from.Node, to.Node, packet, out)
}

// traceArrival goes on where the packet comes out of the tunnel.
func (l *Lab) traceArrival(ctx context.Context, from, to string, packet string, out []string) ([]string, error) {
	ports, err := l.tracePorts(ctx, to)
	if err != nil {
		return out, err
	}
	nodes, err := l.NodeStates(ctx)
	if err != nil {
		return out, err
	}
	i := slices.IndexFunc(nodes, func(n NodeState) bool { return n.Node == from })
	tunnel := "tun_src=" + nodes[i].Addresses[0]
	if strings.Contains(nodes[i].Addresses[0], ":") {
		tunnel = "tun_ipv6_src=" + nodes[i].Addresses[0]
	}
	_, rest, _ := strings.Cut(packet, ",")
	for port, name := range ports.names {
		if name == theTunnel {
			arrival, _, err := l.trace(ctx, to, ports, "in_port="+port+","+tunnel+","+rest)
			return append(out, arrival...), err
		}
	}
	return out, fmt.Errorf("%s has no tunnel port", to)
}

func findPod(pods []PodState, name string) (PodState, error) {
	i := slices.IndexFunc(pods, func(p PodState) bool { return p.Pod == name })
	if i < 0 {
		return PodState{}, fmt.Errorf("there is no pod %s, and it is no IP address either (see: lab get pods)", name)
	}
	if len(pods[i].IPs) == 0 {
		return PodState{}, fmt.Errorf("pod %s has no address yet (see: lab get pods)", name)
	}
	return pods[i], nil
}

// theTunnel is what the tunnel port is called in words.
const theTunnel = "the tunnel"

// tracePorts are the ports of one node's bridge.
type tracePorts struct {
	names map[string]string // port -> what people know it by
	macs  map[string]string // pod -> MAC
	of    map[string]string // pod -> port
}

// tracePorts reads them from the marks that the agent leaves in OVSDB.
func (l *Lab) tracePorts(ctx context.Context, node string) (tracePorts, error) {
	p := tracePorts{names: map[string]string{}, macs: map[string]string{}, of: map[string]string{}}
	text, err := l.NodeExec(ctx, node, "ovs-vsctl", "-t", "5", "--format=json", "--columns=name,external_ids", "list", "Port")
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
				return p, fmt.Errorf("what ovs-vsctl says of a port: %w", err)
			}
		}
		p.add(name, pairs)
	}
	return p, nil
}

func (p tracePorts) add(port string, pairs [][2]string) {
	ids := map[string]string{}
	for _, pair := range pairs {
		ids[pair[0]] = pair[1]
	}
	switch ids["fairlead"] {
	case "gateway":
		p.names[port] = "the gateway, which is the node itself"
	case "tunnel":
		p.names[port] = theTunnel
	case "pod":
		pod := ids["fairlead-pod-namespace"] + "/" + ids["fairlead-pod-name"]
		p.names[port], p.macs[pod], p.of[pod] = "pod "+pod, ids["fairlead-mac"], port
	}
}

// echo is the packet in the syntax of ovs-fields(7), its input port first.
func echo(ports tracePorts, pod string, ips []string, dst netip.Addr) (string, error) {
	proto, src, kind := "icmp", "nw_src=%s,nw_dst=%s,nw_ttl=64", "icmp_type=8"
	if dst.Is6() {
		proto, src, kind = "icmp6", "ipv6_src=%s,ipv6_dst=%s,nw_ttl=64", "icmpv6_type=128"
	}
	for _, ip := range ips {
		if netip.MustParseAddr(ip).Is6() == dst.Is6() {
			return fmt.Sprintf("in_port=%s,dl_src=%s,%s,%s,"+src, ports.of[pod], ports.macs[pod], proto, kind, ip, dst), nil
		}
	}
	return "", fmt.Errorf("pod %s has no address of the same family as %s", pod, dst)
}

// trace runs one trace and reports whether the packet left through the tunnel.
func (l *Lab) trace(ctx context.Context, node string, ports tracePorts, packet string) ([]string, bool, error) {
	text, err := l.NodeExec(ctx, node, "ovs-appctl", "-T", "5", "ofproto/trace", "--names", "br-int", packet)
	if err != nil {
		return nil, false, err
	}
	out := append([]string{"On " + node + ":"}, explain.Trace(text, ports.names)...)
	return out, slices.Contains(out, "  out of "+theTunnel), nil
}
