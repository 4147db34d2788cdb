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
// (namespace/name), on the pod's node and, if the packet leaves through the tunnel or the uplink, on the other's. It
// sends nothing: ovs-vswitchd walks through its flows (ovs-vswitchd(8), ofproto/trace).
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
	source, rest, err := echo(ports, pod, from.IPs, dst)
	if err != nil {
		return nil, err
	}
	out, err := l.trace(ctx, from.Node, ports, source+","+rest)
	if err != nil || to.Node == "" {
		return out, err
	}
	there, err := l.tracePorts(ctx, to.Node)
	if err != nil {
		return out, err
	}
	var arrival string
	switch {
	case slices.Contains(out, "  out of "+theTunnel):
		arrival, err = l.outOfTunnel(ctx, there, from.Node)
	case slices.Contains(out, "  out of "+theUplink) && there.vlans[to.Pod] != "":
		arrival, err = outOfUplink(there, to.Pod)
	default:
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w", to.Node, err)
	}
	more, err := l.trace(ctx, to.Node, there, arrival+","+rest)
	return append(out, more...), err
}

// outOfTunnel is how a packet from another node comes out of the tunnel.
func (l *Lab) outOfTunnel(ctx context.Context, ports tracePorts, from string) (string, error) {
	port, err := ports.called(theTunnel)
	if err != nil {
		return "", err
	}
	nodes, err := l.NodeStates(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(nodes, func(n NodeState) bool { return n.Node == from })
	tunnel := "tun_src=" + nodes[i].Addresses[0]
	if strings.Contains(nodes[i].Addresses[0], ":") {
		tunnel = "tun_ipv6_src=" + nodes[i].Addresses[0]
	}
	return "in_port=" + port + "," + tunnel, nil
}

// outOfUplink is how a packet for a bridged pod comes from the underlay: from its own VLAN, or from a router there.
func outOfUplink(ports tracePorts, pod string) (string, error) {
	port, err := ports.called(theUplink)
	if err != nil {
		return "", err
	}
	packet := "in_port=" + port + ",dl_dst=" + ports.macs[pod]
	if vlan := ports.vlans[pod]; vlan != "0" {
		packet += ",dl_vlan=" + vlan
	}
	return packet, nil
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

// What ports are called in words.
const (
	theTunnel = "the tunnel"
	theUplink = "the uplink"
)

// tracePorts are the ports of one node's bridge.
type tracePorts struct {
	names map[string]string // port -> what people know it by
	macs  map[string]string // pod -> MAC
	of    map[string]string // pod -> port
	vlans map[string]string // pod -> its VLAN, of bridged pods
}

// called returns the port that people know by that name.
func (p tracePorts) called(name string) (string, error) {
	for port, n := range p.names {
		if n == name {
			return port, nil
		}
	}
	return "", fmt.Errorf("there is no port of %s", name)
}

// tracePorts reads them from the marks that the agent leaves in OVSDB.
func (l *Lab) tracePorts(ctx context.Context, node string) (tracePorts, error) {
	p := tracePorts{names: map[string]string{}, macs: map[string]string{}, of: map[string]string{},
		vlans: map[string]string{}}
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
	case "uplink":
		p.names[port] = theUplink
	case "pod":
		pod := ids["fairlead-pod-namespace"] + "/" + ids["fairlead-pod-name"]
		p.names[port], p.macs[pod], p.of[pod] = "pod "+pod, ids["fairlead-mac"], port
		if vlan, bridged := ids["fairlead-vlan"]; bridged {
			p.vlans[pod] = vlan
		}
	}
}

// echo is the packet in the syntax of ovs-fields(7): how it comes from the pod, and the packet itself.
func echo(ports tracePorts, pod string, ips []string, dst netip.Addr) (source, packet string, err error) {
	proto, src, kind := "icmp", "nw_src=%s,nw_dst=%s,nw_ttl=64", "icmp_type=8"
	if dst.Is6() {
		proto, src, kind = "icmp6", "ipv6_src=%s,ipv6_dst=%s,nw_ttl=64", "icmpv6_type=128"
	}
	for _, ip := range ips {
		if netip.MustParseAddr(ip).Is6() == dst.Is6() {
			return "in_port=" + ports.of[pod],
				fmt.Sprintf("dl_src=%s,%s,%s,"+src, ports.macs[pod], proto, kind, ip, dst), nil
		}
	}
	return "", "", fmt.Errorf("pod %s has no address of the same family as %s", pod, dst)
}

// trace runs one trace.
func (l *Lab) trace(ctx context.Context, node string, ports tracePorts, packet string) ([]string, error) {
	text, err := l.NodeExec(ctx, node, "ovs-appctl", "-T", "5", "ofproto/trace", "--names", "br-int", packet)
	if err != nil {
		return nil, err
	}
	return append([]string{"On " + node + ":"}, explain.Trace(text, ports.names)...), nil
}
