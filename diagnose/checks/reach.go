package checks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// ErrNotProbed is no failure of the check.
var ErrNotProbed = errors.New("the agent does not probe other nodes (reachability: probe, docs/reachability.md)")

// reach reports what the agent of this node has found by probing others.
func (n *NodeProbe) reach(ctx context.Context) ([]report.Finding, error) {
	s, err := nodestate.Agent(ctx, n.Config)
	if err != nil {
		return nil, err
	}
	if s.Reach == nil {
		return nil, ErrNotProbed
	}
	return reachFindings(s), nil
}

// reachFindings groups paths: both families of a node that fail alike are one finding, and so are all nodes where the
// fault is about them all.
func reachFindings(s api.AgentState) []report.Finding {
	if s.Reach.Problem != "" {
		return []report.Finding{{Check: CheckReach, Kind: "not-probed", Severity: report.Warning, About: []string{s.Node},
			Cause: "other nodes are not probed from here, nor is this node from there: " + s.Reach.Problem}}
	}
	var out []report.Finding
	for _, f := range s.Reach.Findings {
		kind := "pods-" + f.Cause
		same := func(g report.Finding) bool {
			return g.Kind == kind && (slices.Contains(g.About, f.Node) || f.Cause == string(reach.CauseAlone) ||
				f.Cause == string(reach.CauseBlocked))
		}
		if i := slices.IndexFunc(out, same); i >= 0 {
			if slices.Contains(out[i].About, f.Node) {
				out[i].Evidence = append(out[i].Evidence, "the same in "+f.Family)
			} else {
				out[i].About = append(out[i].About, f.Node)
			}
			continue
		}
		out = append(out, report.Finding{Check: CheckReach, Kind: kind, Severity: report.Failing, About: []string{f.Node},
			Cause:    f.Text,
			Evidence: append([]string{"found by probing, at " + f.Since.UTC().Format(time.DateTime) + " UTC"}, f.Seen...),
			Remedies: []report.Remedy{reachRemedy(s, f)}})
	}
	return out
}

const multipathRemedy = "See the counters of each member and each next hop, on both nodes and at the switches between, and take out the one that drops"

func multipathCommands() []string {
	return []string{"cat /proc/net/bonding/*; ip -s link   # members, their errors", "ip route   # next hops of ECMP"}
}

const checksumRemedy = "Have the sender's kernel compute checksums instead of its NIC, and update the NIC's driver and firmware, or the hypervisor"

// transferRemedy is for TCP that is dropped from a node, which sends by the interface, to another, or for its segments.
func transferRemedy(c reach.Cause, from, ifName, to string) report.Remedy {
	if c == reach.CauseTCP {
		return report.Remedy{Text: "See which firewalls, middleboxes and intrusion prevention are between the nodes, and which of their rules are " +
			"about TCP or connections that they saw only one direction of", Commands: []string{
			fmt.Sprintf("nft list ruleset   # on nodes %s and %s", from, to)}}
	}
	return report.Remedy{Text: "Have the sender's kernel cut segments instead of its NIC, and update the NIC's driver and firmware, or the " +
		"hypervisor. If that is not enough, have the receiver's NIC join none", Commands: []string{
		fmt.Sprintf("ethtool -K %s tso off tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off   # on node %s, until the next reboot",
			ifName, from),
		fmt.Sprintf("ethtool -K INTERFACE lro off gro off   # on node %s, until the next reboot", to)}}
}

// reachRemedy is what to do: where the cause was not found out, how to find it.
func reachRemedy(s api.AgentState, f api.ReachFinding) report.Remedy {
	switch reach.Cause(f.Cause) {
	case reach.CauseMTU:
		return report.Remedy{Text: "Let doctor find the size that passes, and give the underlay or the pods that MTU",
			Commands: []string{"fairleadctl doctor mtu"}}
	case reach.CauseBlocked:
		return report.Remedy{Text: "See what opens the tunnel on this node, and which network policies, security groups or access lists " +
			"of the underlay are between the nodes", Commands: []string{"fairleadctl doctor firewall"}}
	case reach.CauseRoute:
		return report.Remedy{Text: "Correct the route or the filter on this node", Commands: []string{"ip rule; ip route show table all"}}
	case reach.CauseAddress:
		return report.Remedy{Text: "Give this node the address of its Node, or its Node this node's address (kubelet's --node-ip)",
			Commands: []string{"ip addr"}}
	case reach.CauseSource:
		return report.Remedy{Text: "Let nothing between nodes translate their addresses, and give the sender the address of its Node: tunnels must " +
			"come from the addresses of the Nodes"}
	case reach.CauseMultipath:
		return report.Remedy{Text: multipathRemedy, Commands: multipathCommands()}
	case reach.CauseChecksum:
		return report.Remedy{Text: checksumRemedy, Commands: []string{
			fmt.Sprintf("fairleadctl reach %s %s   # by which NIC they leave node %s, and its driver", f.Node, s.Node, f.Node),
			fmt.Sprintf("ethtool -K INTERFACE tx off   # on node %s, until the next reboot", f.Node)}}
	case reach.CauseTCP, reach.CauseSegments:
		return transferRemedy(reach.Cause(f.Cause), s.Node, s.Transport, f.Node)
	case reach.CauseDropped:
		return report.Remedy{Text: "See what this node's firewall drops, and which packets the tables of Open vSwitch drop",
			Commands: []string{"fairleadctl doctor firewall", "nft list ruleset"}}
	case reach.CauseFirewall:
		return report.Remedy{Text: "Let doctor name the rule, and what opens it", Commands: []string{"fairleadctl doctor firewall"}}
	}
	commands := []string{fmt.Sprintf("fairleadctl reach %s %s   # what both nodes know together", s.Node, f.Node),
		fmt.Sprintf("fairleadctl doctor --node-local   # on node %s: what it has found, and its firewall", f.Node)}
	if f.Address.IsValid() {
		commands = append(commands, fmt.Sprintf("tcpdump -ni %s host %s   # here, and the same on the other node: which packets "+
			"leave, which arrive", s.Transport, f.Address))
	}
	return report.Remedy{Text: "See on both nodes where the packets end", Commands: commands}
}
