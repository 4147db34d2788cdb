package checks

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/diagnose/firewall"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// firewall checks whether nftables rules drop the tunnel's packets, or those that pods on this node and on others
// exchange without a tunnel. The agent's own ACCEPT is in iptables, and ends only that base chain: firewalld and others
// have their own.
func (n *NodeProbe) firewall(ctx context.Context) ([]report.Finding, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("this needs root (sudo)")
	}
	s, err := nodestate.Agent(ctx, n.Config)
	if err != nil {
		return nil, err
	}
	// The userspace datapath's tunnel does not meet the host's netfilter.
	tunnelled := s.Overhead != 0 && n.Config.OVSDatapathType != api.DatapathNetdev
	routed := slices.ContainsFunc(s.Peers, func(p api.AgentPeer) bool { return len(p.Routed) > 0 })
	if !tunnelled && !routed {
		return nil, nil
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, nil // without the program there are no such rules
	}
	rules, err := firewall.Read(ctx)
	if err != nil {
		return nil, err
	}
	tunnel := nat.TunnelOf(n.Config.TunnelType, n.Config.TunnelPort)
	var ofTunnel, ofPods drops
	for _, p := range s.Peers {
		if tunnelled {
			if in, out, ok := firewall.TunnelPackets(tunnel, s.Transport, p.Address); ok {
				ofTunnel.add(rules, p, in, out)
			}
		}
		for _, there := range p.Routed {
			if in, out, ok := routedPackets(n.Config.HostGateway, s, there); ok {
				ofPods.add(rules, p, in, out)
			}
		}
	}
	return slices.Concat(ofTunnel.ofTunnel(s, tunnel), ofPods.ofPods(s)), nil
}

// routedPackets are the packets by which agents probe a podCIDR that this node routes to; false: there are none, or
// they use another interface.
func routedPackets(gateway string, s api.AgentState, there netip.Prefix) (in, out firewall.Packet, ok bool) {
	i := slices.IndexFunc(s.PodCIDRs, func(own netip.Prefix) bool { return own.Addr().Is4() == there.Addr().Is4() })
	if i < 0 {
		return in, out, false
	}
	here, end := reach.End(s.PodCIDRs[i]), reach.End(there)
	if !here.IsValid() || !end.IsValid() || !firewall.Leaves(end.Addr(), s.Transport) {
		return in, out, false
	}
	in, out = firewall.RoutedPackets(gateway, s.Transport, here.Addr(), end.Addr(), reach.Port)
	return in, out, true
}

// drops are what drops packets from or to other nodes.
type drops []drop

// drop is what drops packets from or to these nodes. packet is one of them.
type drop struct {
	by     firewall.Drop
	packet firewall.Packet
	in     bool // they come to this node
	nodes  []string
	routed []netip.Prefix // of these nodes
}

// add adds what drops these packets from or to a node.
func (all *drops) add(rules firewall.Ruleset, peer api.AgentPeer, in, out firewall.Packet) {
	for _, packet := range []firewall.Packet{in, out} {
		by, dropped := rules.Dropped(packet)
		if !dropped {
			continue
		}
		comes, is4 := packet == in, packet.Dst.Is4()
		i := slices.IndexFunc(*all, func(d drop) bool { return d.by == by && d.in == comes && d.packet.Dst.Is4() == is4 })
		if i < 0 {
			i = len(*all)
			*all = append(*all, drop{by: by, packet: packet, in: comes})
		}
		if d := &(*all)[i]; !slices.Contains(d.nodes, peer.Node) {
			d.nodes = append(d.nodes, peer.Node)
			d.routed = append(d.routed, peer.Routed...)
		}
	}
}

func (all drops) ofTunnel(s api.AgentState, tunnel nat.Tunnel) (found []report.Finding) {
	what := map[bool]string{true: "GRE", false: fmt.Sprintf("%s port %d", tunnel.Protocol, tunnel.Port)}[tunnel.Port == 0]
	for _, d := range all {
		way := map[bool]string{true: "from", false: "to"}[d.in]
		found = append(found, d.finding("tunnel-dropped", fmt.Sprintf("a firewall on this node drops the tunnel's packets (%s) %s %s: "+
			"pods on this node and pods there do not reach each other", what, way, nodeList(d.nodes)), d.openTunnel(s.Transport, tunnel)))
	}
	return found
}

func (all drops) ofPods(s api.AgentState) (found []report.Finding) {
	for _, d := range all {
		family := map[bool]string{true: "IPv4", false: "IPv6"}[d.packet.Dst.Is4()]
		cause := "a firewall on this node drops %s packets from pods on %s to pods on this node, at least those of new UDP connections"
		if !d.in {
			cause = "a firewall on this node drops %s packets from pods on this node to pods on %s, at least those of new UDP connections"
		}
		found = append(found, d.finding("routed-dropped", fmt.Sprintf(cause, family, nodeList(d.nodes)), d.openRouted(s)))
	}
	return found
}

func (d drop) finding(kind, cause string, remedy report.Remedy) report.Finding {
	return report.Finding{Check: CheckFirewall, Kind: kind, Severity: report.Failing, About: d.nodes, Cause: cause,
		Evidence: []string{fmt.Sprintf("%s; nft -a list chain %s %s %s", d.by, d.by.Family, d.by.Table, d.by.Chain)},
		Remedies: []report.Remedy{remedy}}
}

// nodeList names up to three nodes.
func nodeList(nodes []string) string {
	if more := len(nodes) - 3; more > 0 {
		return fmt.Sprintf("the nodes %s and %d more", strings.Join(nodes[:3], ", "), more)
	}
	if len(nodes) == 1 {
		return "node " + nodes[0]
	}
	return "the nodes " + strings.Join(nodes, ", ")
}

// openTunnel makes what dropped the tunnel's packets accept them.
func (d drop) openTunnel(transport string, tunnel nat.Tunnel) report.Remedy {
	option, match := "--add-protocol=gre", "meta l4proto gre"
	if tunnel.Port != 0 {
		option = fmt.Sprintf("--add-port=%d/%s", tunnel.Port, tunnel.Protocol)
		match = fmt.Sprintf("%s dport %d", tunnel.Protocol, tunnel.Port)
	}
	if d.by.Table == firewalld && d.in {
		return report.Remedy{Text: "Open the port in firewalld, on every node", Commands: []string{
			"firewall-cmd --permanent --zone=$(firewall-cmd --get-zone-of-interface=" + transport + ") " + option,
			"firewall-cmd --reload"}}
	}
	iface := "iifname"
	if !d.in {
		iface = "oifname"
	}
	return d.insert(fmt.Sprintf("%s %q %s", iface, transport, match))
}

// openRouted makes what dropped packets between pods accept them.
func (d drop) openRouted(s api.AgentState) report.Remedy {
	of := func(all []netip.Prefix) (text []string) {
		for _, p := range route.Aggregate(all) {
			if p.Addr().Is4() == d.packet.Dst.Is4() {
				text = append(text, p.String())
			}
		}
		return text
	}
	from, to := of(d.routed), of(s.PodCIDRs)
	if !d.in {
		from, to = to, from
	}
	if d.by.Table == firewalld {
		remedy := report.Remedy{Text: "Trust these pods in firewalld, on every node"}
		for _, p := range from {
			remedy.Commands = append(remedy.Commands, "firewall-cmd --permanent --zone=trusted --add-source="+p)
		}
		remedy.Commands = append(remedy.Commands, "firewall-cmd --reload")
		return remedy
	}
	ip := "ip"
	if d.packet.Dst.Is6() {
		ip = "ip6"
	}
	return d.insert(fmt.Sprintf("%s saddr %s %[1]s daddr %[3]s", ip, setOf(from), setOf(to)))
}

// setOf is one value or several in the syntax of nft(8), as a shell word.
func setOf(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return "'{ " + strings.Join(values, ", ") + " }'"
}

// firewalld is the name of firewalld's table.
const firewalld = "firewalld"

// insert makes the chain accept what match matches.
func (d drop) insert(match string) report.Remedy {
	return report.Remedy{Text: "Accept them before that rule, and add that to the file from which the rules are loaded", Commands: []string{
		fmt.Sprintf("nft insert rule %s %s %s %s accept", d.by.Family, d.by.Table, d.by.Chain, match)}}
}
