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

// ErrNotProbed is not a failure of the check.
var ErrNotProbed = errors.New("the agent does not probe other nodes (reachability: probe, docs/reachability.md)")

// reach reports what this node's agent has found by probing others.
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

// reachFindings groups paths: both families of a node that fail alike are one finding, and so are all nodes if the
// fault affects all of them.
func reachFindings(s api.AgentState) []report.Finding {
	if s.Reach.Problem != "" {
		return []report.Finding{{Check: CheckReach, Kind: "not-probed", Severity: report.Warning, About: []string{s.Node},
			Cause: "this node does not probe other nodes, and they do not probe it: " + s.Reach.Problem}}
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

const multipathRemedy = "Check the counters of each member and next hop, on both nodes and on the switches between them, and remove the one that drops packets"

func multipathCommands() []string {
	return []string{"cat /proc/net/bonding/*; ip -s link   # members, their errors", "ip route   # ECMP next hops"}
}

const checksumRemedy = "Have the sender's kernel compute checksums instead of its NIC, and update the NIC's driver and firmware, or the hypervisor"

// transferRemedy is for TCP connections, or their segments, that are dropped from a node, which sends through the
// interface, to another.
func transferRemedy(c reach.Cause, from, ifName, to string) report.Remedy {
	if c == reach.CauseTCP {
		return report.Remedy{Text: "Check the firewalls, middleboxes and intrusion prevention systems between the nodes for rules about TCP, or about " +
			"connections of which they see only one direction", Commands: []string{
			fmt.Sprintf("nft list ruleset   # on nodes %s and %s", from, to)}}
	}
	return report.Remedy{Text: "Have the sender's kernel split segments instead of its NIC, and update the NIC's driver and firmware, or the " +
		"hypervisor. If that is not enough, keep the receiver's NIC from merging them", Commands: []string{
		fmt.Sprintf("ethtool -K %s tso off tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off   # on node %s, until the next reboot",
			ifName, from),
		fmt.Sprintf("ethtool -K INTERFACE lro off gro off   # on node %s, until the next reboot", to)}}
}

// reachRemedy is the remedy, or how to find the cause if it is not known.
func reachRemedy(s api.AgentState, f api.ReachFinding) report.Remedy {
	switch reach.Cause(f.Cause) {
	case reach.CauseMTU:
		return report.Remedy{Text: "Let doctor find the size that passes, and give the underlay or the pods that MTU",
			Commands: []string{"fairleadctl doctor mtu"}}
	case reach.CauseBlocked:
		return report.Remedy{Text: "Let doctor show what opens the tunnel on this node, and check the underlay's network policies, security groups and " +
			"access lists between the nodes", Commands: []string{"fairleadctl doctor firewall"}}
	case reach.CauseRoute:
		return report.Remedy{Text: "Correct the route or the filter on this node", Commands: []string{"ip rule; ip route show table all"}}
	case reach.CauseAddress:
		return report.Remedy{Text: "Give this node the address of its Node, or its Node this node's address (kubelet's --node-ip)",
			Commands: []string{"ip addr"}}
	case reach.CauseSource:
		return report.Remedy{Text: "Make sure that nothing between nodes translates their addresses, and give the sender the address of its Node: tunnel " +
			"packets must come from the Nodes' addresses"}
	case reach.CauseMultipath:
		return report.Remedy{Text: multipathRemedy, Commands: multipathCommands()}
	case reach.CauseChecksum:
		return report.Remedy{Text: checksumRemedy, Commands: []string{
			fmt.Sprintf("fairleadctl reach %s %s   # through which NIC they leave node %s, and its driver", f.Node, s.Node, f.Node),
			fmt.Sprintf("ethtool -K INTERFACE tx off   # on node %s, until the next reboot", f.Node)}}
	case reach.CauseTCP, reach.CauseSegments:
		return transferRemedy(reach.Cause(f.Cause), s.Node, s.Transport, f.Node)
	case reach.CauseDropped:
		return report.Remedy{Text: "Check what this node's firewall drops, and which packets Open vSwitch's tables drop",
			Commands: []string{"fairleadctl doctor firewall", "nft list ruleset"}}
	case reach.CauseFirewall:
		return report.Remedy{Text: "Let doctor name the rule, and the command that opens the firewall", Commands: []string{"fairleadctl doctor firewall"}}
	}
	commands := []string{fmt.Sprintf("fairleadctl reach %s %s   # what both nodes report, combined", s.Node, f.Node),
		fmt.Sprintf("fairleadctl doctor --node-local   # on node %s: what it has found, and its firewall", f.Node)}
	if f.Address.IsValid() {
		commands = append(commands, fmt.Sprintf("tcpdump -ni %s host %s   # here, and the same on the other node: which packets "+
			"leave and which arrive", s.Transport, f.Address))
	}
	return report.Remedy{Text: "Find out on both nodes how far the packets get", Commands: commands}
}
