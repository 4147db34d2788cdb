package checks

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/diagnose/firewall"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// firewall checks whether rules of nftables drop the tunnel's packets. The agent's own ACCEPT is in iptables, and ends
// one base chain there: firewalld and others have their own.
func (n *NodeProbe) firewall(ctx context.Context) ([]report.Finding, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("this needs root (sudo)")
	}
	s, err := nodestate.Agent(ctx, n.Config)
	if err != nil {
		return nil, err
	}
	if s.Overhead == 0 || n.Config.OVSDatapathType == api.DatapathNetdev {
		return nil, nil // no tunnel, or one that does not meet the host's netfilter
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, nil // whoever made such rules had the program
	}
	rules, err := firewall.Read(ctx)
	if err != nil {
		return nil, err
	}
	tunnel := nat.TunnelOf(n.Config.TunnelType, n.Config.TunnelPort)
	var drops []tunnelDrop
	for _, p := range s.Peers {
		in, out, ok := firewall.TunnelPackets(tunnel, s.Transport, p.Address)
		if !ok {
			continue
		}
		for _, packet := range []firewall.Packet{in, out} {
			by, dropped := rules.Dropped(packet)
			i := slices.IndexFunc(drops, func(d tunnelDrop) bool { return d.by == by })
			switch {
			case dropped && i < 0:
				drops = append(drops, tunnelDrop{by, packet, []string{p.Node}})
			case dropped && !slices.Contains(drops[i].nodes, p.Node):
				drops[i].nodes = append(drops[i].nodes, p.Node)
			}
		}
	}
	return findings(s, tunnel, drops), nil
}

// tunnelDrop is what drops the tunnel's packets from or to these nodes. packet is one of them.
type tunnelDrop struct {
	by     firewall.Drop
	packet firewall.Packet
	nodes  []string
}

func findings(s api.AgentState, tunnel nat.Tunnel, drops []tunnelDrop) (found []report.Finding) {
	what := map[bool]string{true: "GRE", false: fmt.Sprintf("%s port %d", tunnel.Protocol, tunnel.Port)}[tunnel.Port == 0]
	for _, d := range drops {
		way := "from"
		if d.packet.Out != "" {
			way = "to"
		}
		found = append(found, report.Finding{Check: CheckFirewall, Kind: "tunnel-dropped", Severity: report.Failing, About: d.nodes,
			Cause: fmt.Sprintf("a firewall of this node drops the tunnel's packets (%s) %s %s: no pod here reaches pods there, "+
				"nor is reached from there", what, way, nodesInWords(d.nodes)),
			Evidence: []string{fmt.Sprintf("%s; nft -a list chain %s %s %s", d.by, d.by.Family, d.by.Table, d.by.Chain)},
			Remedies: []report.Remedy{openFirewall(s.Transport, tunnel, d)}})
	}
	return found
}

// nodesInWords names up to three nodes.
func nodesInWords(nodes []string) string {
	if more := len(nodes) - 3; more > 0 {
		return fmt.Sprintf("the nodes %s and %d more", strings.Join(nodes[:3], ", "), more)
	}
	if len(nodes) == 1 {
		return "node " + nodes[0]
	}
	return "the nodes " + strings.Join(nodes, ", ")
}

// openFirewall has what dropped the packets accept them.
func openFirewall(transport string, tunnel nat.Tunnel, d tunnelDrop) report.Remedy {
	option, match := "--add-protocol=gre", "meta l4proto gre"
	if tunnel.Port != 0 {
		option = fmt.Sprintf("--add-port=%d/%s", tunnel.Port, tunnel.Protocol)
		match = fmt.Sprintf("%s dport %d", tunnel.Protocol, tunnel.Port)
	}
	if d.by.Table == "firewalld" && d.packet.In != "" {
		return report.Remedy{Text: "Open the port in firewalld, on every node", Commands: []string{
			"firewall-cmd --permanent --zone=$(firewall-cmd --get-zone-of-interface=" + transport + ") " + option,
			"firewall-cmd --reload"}}
	}
	iface := "iifname"
	if d.packet.Out != "" {
		iface = "oifname"
	}
	return report.Remedy{Text: "Accept them before that rule, and in the file from which the rules are loaded", Commands: []string{
		fmt.Sprintf("nft insert rule %s %s %s %s %q %s accept", d.by.Family, d.by.Table, d.by.Chain, iface, transport, match)}}
}
