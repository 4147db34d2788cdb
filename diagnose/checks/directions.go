package checks

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// maxSeen is how much evidence a finding has, for faults that many nodes see.
const maxSeen = 12

// Directions are findings about directions between nodes that do not work, or about which nothing is known: one for
// each fault. A fault at a node is one, whichever nodes have seen it. If the place is not known, all faults that have a
// node in common are one, and if what carries the packets of all nodes is blocked, all are.
func Directions(directions []reach.Direction) []report.Finding {
	var groups [][]reach.Direction
	well := func(w reach.Direction) bool { return w.Is == reach.Works && w.Cause == reach.CauseNone }
	rest := slices.DeleteFunc(slices.Clone(directions), well)
	for len(rest) > 0 {
		first, common := rest[0], rest[0].At
		if common == "" {
			common = commonNode(rest, first)
		}
		same := func(w reach.Direction) bool {
			return w.Cause == first.Cause && w.At == first.At && w.Is == first.Is && ruleOf(w) == ruleOf(first) &&
				(first.At != "" || first.Cause == reach.CauseBlocked || w.From == common || w.To == common)
		}
		group := slices.DeleteFunc(slices.Clone(rest), func(w reach.Direction) bool { return !same(w) })
		rest = slices.DeleteFunc(rest, same)
		groups = append(groups, group)
	}
	var out []report.Finding
	for _, g := range groups {
		out = append(out, directionsFinding(g))
	}
	slices.SortStableFunc(out, func(a, b report.Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return out
}

// ruleOf is the rule of a firewall: a node may have several, and each is a separate fault.
func ruleOf(w reach.Direction) string {
	if w.Cause != reach.CauseFirewall {
		return ""
	}
	_, rule, _ := strings.Cut(w.Text, ": ")
	return rule
}

// commonNode is the end of first that has more peers with the same cause and without a known place.
func commonNode(directions []reach.Direction, first reach.Direction) string {
	peers := map[string]map[string]bool{first.From: {}, first.To: {}}
	for _, w := range directions {
		if w.Cause != first.Cause || w.At != "" {
			continue
		}
		for node, of := range peers {
			switch node {
			case w.From:
				of[w.To] = true
			case w.To:
				of[w.From] = true
			}
		}
	}
	if len(peers[first.To]) > len(peers[first.From]) {
		return first.To
	}
	return first.From
}

// Reaches are the findings from the combined reports of all agents. A pair of nodes is judged if either reports that a
// path between them is broken.
func Reaches(sides []reach.Side) []report.Finding {
	known := map[string]reach.Side{}
	for _, s := range sides {
		known[s.Node] = s
	}
	seen, directions := map[[2]string]bool{}, []reach.Direction{}
	idle, why := []string{}, []string{}
	for _, s := range sides {
		if s.Idle != "" {
			idle, why = append(idle, s.Node), append(why, "node "+s.Node+": "+s.Idle)
		}
		for _, p := range s.Paths {
			pair := [2]string{min(s.Node, p.Node), max(s.Node, p.Node)}
			if p.State != "broken" || seen[pair] {
				continue
			}
			seen[pair] = true
			joined := reach.Join(about(known, pair[0], pair[1]), about(known, pair[1], pair[0]))
			directions = append(directions, broken(joined, s.Node, known[pair[0]], known[pair[1]])...)
		}
	}
	out := Directions(directions)
	if len(idle) > 0 {
		others := ""
		if len(idle) < len(sides) {
			others = ", although others are probed"
		}
		out = append(out, report.Finding{Check: CheckReach, Kind: "not-probed", Severity: report.Warning, About: idle,
			Cause: "other nodes are not probed from " + report.Some(idle) + ", nor in the opposite direction" + others + ": the ends of paths " +
				"there are not known", Evidence: distinct(why[:min(len(why), maxSeen)]), Remedies: idleRemedy(why)})
	}
	return out
}

// broken are a pair's directions that do not work. If both ends combined show none, although one has found the path to
// the other broken, it is the direction in which that one hears nothing.
func broken(directions []reach.Direction, by string, a, b reach.Side) []reach.Direction {
	bad := slices.DeleteFunc(slices.Clone(directions), func(w reach.Direction) bool { return !w.Bad() })
	works := slices.ContainsFunc(directions, func(w reach.Direction) bool { return w.Is == reach.Works })
	if len(bad) > 0 || works || a.Idle != "" || b.Idle != "" {
		return bad
	}
	for _, w := range directions {
		if w.To == by {
			w.Text = fmt.Sprintf("node %s finds the path to node %s broken: %s", by, w.From, w.Text)
			bad = append(bad, w)
		}
	}
	return bad
}

// idleRemedy is for agents that do not probe.
func idleRemedy(why []string) []report.Remedy {
	if !slices.ContainsFunc(why, func(w string) bool { return strings.Contains(w, reach.IdleByConfig) }) {
		return nil
	}
	return []report.Remedy{{Text: "With reachability: probe in the agents' config, nodes probe each other (docs/reachability.md)"}}
}

// about is what a node reports about another.
func about(known map[string]reach.Side, node, peer string) reach.Side {
	s, queried := known[node]
	if !queried {
		return reach.Side{Node: node, NotQueried: "its agent is not among those that were queried"}
	}
	s.Paths = slices.DeleteFunc(slices.Clone(s.Paths), func(p api.ReachPath) bool { return p.Node != peer })
	return s
}

func directionsFinding(directions []reach.Direction) report.Finding {
	first := directions[0]
	f := report.Finding{Check: CheckReach, Kind: "pods-" + string(cmp.Or(first.Cause, "not-known")), Severity: report.Warning,
		Cause: first.Text, Remedies: directionsRemedy(directions)}
	if first.Bad() {
		f.Severity = report.Failing
	}
	var seen []string
	for _, w := range directions {
		f.About = append(f.About, w.From, w.To)
		seen = append(seen, w.Seen...)
	}
	slices.Sort(f.About)
	f.About = slices.Compact(f.About)
	if len(directions) > 1 {
		f.Cause += fmt.Sprintf(". The same: %s", report.Some(directionTexts(directions[1:])))
	}
	if since := earliest(directions); !since.IsZero() {
		f.Evidence = append(f.Evidence, "found by probing, at "+since.UTC().Format(time.DateTime)+" UTC")
	}
	f.Evidence = append(f.Evidence, distinct(seen)...)
	if more := len(f.Evidence) - maxSeen; more > 1 {
		f.Evidence = append(f.Evidence[:maxSeen], fmt.Sprintf("and %d more (fairleadctl reach of two nodes lists all)", more))
	}
	return f
}

func directionTexts(directions []reach.Direction) (out []string) {
	for _, w := range directions {
		out = append(out, strings.TrimSuffix(fmt.Sprintf("from %s to %s in %s", w.From, w.To, w.Family), " in "))
	}
	return out
}

func earliest(directions []reach.Direction) (t time.Time) {
	for _, w := range directions {
		if !w.Since.IsZero() && (t.IsZero() || w.Since.Before(t)) {
			t = w.Since
		}
	}
	return t
}

// distinct leaves out repetitions.
func distinct(list []string) (out []string) {
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// directionsRemedy is what to do, and on which node.
func directionsRemedy(directions []reach.Direction) []report.Remedy {
	w := directions[0]
	on := func(node, text, command string) []report.Remedy {
		return []report.Remedy{{Text: text, Commands: []string{"sudo fairleadctl " + command + "   # on node " + node}}}
	}
	switch w.Cause {
	case reach.CauseFirewall:
		return on(w.At, "Let doctor name the rule, and the command that opens the firewall", "doctor firewall")
	case reach.CauseDropped:
		return on(w.At, "Check what the node's firewall drops, and which packets Open vSwitch's tables drop", "doctor firewall")
	case reach.CauseRoute, reach.CauseAddress, reach.CauseSource, reach.CauseBetween, reach.CauseChecksum:
		return underlayRemedy(w)
	case reach.CauseMultipath:
		return []report.Remedy{{Text: multipathRemedy, Commands: multipathCommands()}}
	case reach.CauseTCP, reach.CauseSegments:
		return []report.Remedy{transferRemedy(w.Cause, w.From, "INTERFACE", w.To)}
	case reach.CauseNoTunnel:
		return on(w.At, "Let doctor say what the tunnel lacks", "doctor agent")
	case reach.CauseTunnelDiffers:
		return []report.Remedy{{Text: "Give all agents the same tunnelType and tunnelPort in their config"}}
	case reach.CauseMTU:
		return on(w.From, "Let doctor find the size that passes, and give the underlay or the pods that MTU", "doctor mtu")
	case reach.CauseBlocked:
		return on(cmp.Or(w.At, w.To), "Let doctor show what opens the tunnel on the node, and check the underlay's network policies, security groups and "+
			"access lists between the nodes", "doctor firewall")
	case reach.CauseAlone:
		return []report.Remedy{{Text: fmt.Sprintf("Check the network of node %s: its NIC, cable and switch port", w.At)}}
	case reach.CauseAgentAway:
		return []report.Remedy{{Text: "Find out why the agent does not run or answer", Commands: []string{
			"kubectl -n kube-system get pods -o wide -l app.kubernetes.io/name=fairlead-agent   # the one on node " + w.At}}}
	case reach.CauseNodeAway:
		return []report.Remedy{{Text: fmt.Sprintf("Check whether node %s runs", w.At), Commands: []string{"kubectl describe node " + w.At}}}
	case reach.CauseNotProbed:
		return idleRemedy([]string{w.Text})
	case reach.CauseNone:
		return nil
	}
	return []report.Remedy{{Text: "Find out on both nodes how far the packets get", Commands: []string{
		fmt.Sprintf("sudo fairleadctl doctor --node-local   # on nodes %s and %s: what each has found, and its firewall", w.From, w.To),
		fmt.Sprintf("tcpdump -ni INTERFACE host ADDRESS   # on both, with the other's address: which packets leave %s and which arrive at %s",
			w.From, w.To)}}}
}

// underlayRemedy is for faults in the nodes' addresses and routes, and between the nodes.
func underlayRemedy(w reach.Direction) []report.Remedy {
	switch w.Cause {
	case reach.CauseRoute:
		return []report.Remedy{{Text: "Correct the route or the filter on node " + w.At, Commands: []string{
			"ip rule; ip route show table all   # on node " + w.At}}}
	case reach.CauseAddress:
		return []report.Remedy{{Text: "Give node " + w.At + " the address of its Node, or its Node the address of the node (kubelet's --node-ip)",
			Commands: []string{"kubectl get node -o wide " + w.At, "ip addr   # on node " + w.At}}}
	case reach.CauseChecksum:
		return []report.Remedy{{Text: checksumRemedy, Commands: []string{"ethtool -K INTERFACE tx off   # on node " + w.From + ", until the next reboot"}}}
	case reach.CauseSource:
		return []report.Remedy{{Text: "Make sure that nothing between nodes translates their addresses, and give the sender the address of its Node: tunnel " +
			"packets must come from the Nodes' addresses"}}
	}
	return []report.Remedy{{Text: "Check the underlay's security groups, access lists, routers and switches between nodes " +
		w.From + " and " + w.To + ". Where packets are routed, routers must have routes to the podCIDRs", Commands: []string{
		"fairleadctl doctor firewall   # what must be open between nodes"}}}
}
