package checks

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// clusterOf returns the reports of n nodes, n0 and so on. fault is what a node reports about its path to another, "from
// to cause", or empty if it works.
func clusterOf(n int, fault func(own, peer int) string, with ...func(own int, p *api.ReachPath)) (sides []reach.Side) {
	for i := range n {
		s := reach.Side{Node: fmt.Sprint("n", i)}
		for j := range n {
			if i == j {
				continue
			}
			p := api.ReachPath{State: "reached", ReachFinding: api.ReachFinding{Node: fmt.Sprint("n", j), Family: "IPv4", FromThere: "works",
				ToThere: "works", Since: time.Unix(int64(1e9+i), 0)}}
			if words := fault(i, j); words != "" {
				p.State = "broken"
				_, _ = fmt.Sscan(words, &p.FromThere, &p.ToThere, &p.Cause)
				for _, w := range with {
					w(i, &p)
				}
			}
			s.Paths = append(s.Paths, p)
		}
		sides = append(sides, s)
	}
	return sides
}

// A fault is one finding, whichever nodes report it, and two faults are two.
func TestFaultsOfSeveralNodes(t *testing.T) {
	toZero := func(own, peer int) string { // nothing arrives at n0
		return map[[2]bool]string{{true, false}: "fails unknown not-found", {false, true}: "works fails not-found"}[[2]bool{own == 0, peer == 0}]
	}
	dropsIn := func(own int, p *api.ReachPath) {
		if own == 0 {
			p.DropsIn = "rule 5"
		}
	}
	for _, c := range []struct {
		name     string
		sides    []reach.Side
		findings []string // kind, and what it is about
		words    string   // in the cause of a single finding
	}{
		{"all is well", clusterOf(5, func(int, int) string { return "" }), nil, ""},
		{"nothing comes to n0", clusterOf(5, toZero), []string{"pods-not-found n0 n1 n2 n3 n4"}, "from n2 to n0 in IPv4"},
		{"n0's firewall", clusterOf(5, toZero, dropsIn), []string{"pods-firewall n0 n1 n2 n3 n4"}, "node n0 drops the tunnel's packets"},
		{"two pairs", clusterOf(5, func(own, peer int) string {
			if own+peer == 1 || own+peer == 7 && own > 2 && peer > 2 {
				return "fails unknown not-found"
			}
			return ""
		}), []string{"pods-not-found n0 n1", "pods-not-found n3 n4"}, "from n1 to n0"},
		{"blocked between all", clusterOf(4, func(int, int) string { return "fails unknown blocked" }),
			[]string{"pods-blocked n0 n1 n2 n3"}, "no packets arrive at either node from pods on any node that it probes"},
		{"n4 is cut off", clusterOf(5, func(own, peer int) string {
			return map[[2]bool]string{{true, false}: "fails unknown cut-off", {false, true}: "fails unknown underlay"}[[2]bool{own == 4, peer == 4}]
		}, func(_ int, p *api.ReachPath) { p.Echo = "no answer" }), []string{"pods-cut-off n0 n1 n2 n3 n4"}, "node n4 reaches none"},
		{"two nodes' underlay, and n0's firewall", clusterOf(4, func(own, peer int) string {
			if own+peer == 5 {
				return "fails unknown underlay"
			}
			return toZero(own, peer)
		}, dropsIn, func(own int, p *api.ReachPath) {
			if own > 1 && p.Cause == "underlay" {
				p.Echo = "no answer"
			}
		}), []string{"pods-firewall n0 n1 n2 n3", "pods-underlay n2 n3"}, "node n0 drops"},
	} {
		for _, sides := range [][]reach.Side{c.sides, reversed(c.sides)} {
			got := Reaches(sides)
			var about []string
			for _, f := range got {
				about = append(about, f.Kind+" "+strings.Join(f.About, " "))
				if f.Severity != report.Failing || len(f.Remedies) == 0 || len(f.Evidence) < 2 || len(f.Evidence) > maxSeen+1 {
					t.Errorf("%s: %+v", c.name, f)
				}
			}
			slices.Sort(about)
			if !slices.Equal(about, c.findings) {
				t.Errorf("%s: %q, want %q", c.name, about, c.findings)
			}
			if len(got) == 1 && !strings.Contains(got[0].Cause, c.words) {
				t.Errorf("%s: %q lacks %q", c.name, got[0].Cause, c.words)
			}
		}
	}
}

func reversed(sides []reach.Side) []reach.Side {
	out := slices.Clone(sides)
	slices.Reverse(out)
	return out
}

// One end's report is enough to find a fault, and a node that was not queried is not blamed.
func TestFaultOfWhichOneEndKnows(t *testing.T) {
	sides := clusterOf(3, func(own, peer int) string {
		return map[[2]int]string{{0, 1}: "works fails not-found"}[[2]int{own, peer}]
	})
	got := Reaches(sides[:1])
	if len(got) != 1 || got[0].Kind != "pods-not-found" || !strings.Contains(fmt.Sprint(got[0].Evidence), "node n1: not queried") {
		t.Errorf("%+v", got)
	}
	sides[2].Paths, sides[2].Idle = nil, "its address is in use"
	got = Reaches(sides)
	if len(got) != 1 || got[0].Kind != "not-probed" || got[0].Severity != report.Warning || !slices.Equal(got[0].About, []string{"n2"}) {
		t.Errorf("n1 hears n0, and n2 does not probe: %+v", got)
	}
	if !strings.Contains(got[0].Cause, "though others are") {
		t.Errorf("n2 alone does not probe: %s", got[0].Cause)
	}
	for i := range sides {
		sides[i].Idle = "it does not probe"
	}
	if all := Reaches(sides); len(all) != 1 || strings.Contains(all[0].Cause, "others are") {
		t.Errorf("no node probes: %+v", all)
	}
}

// A path that one end finds broken is reported even if the other end has no information about it.
func TestBrokenPathOfWhichTheOtherKnowsNothing(t *testing.T) {
	sides := clusterOf(3, func(own, peer int) string {
		return map[[2]int]string{{0, 1}: "fails unknown not-found"}[[2]int{own, peer}]
	})
	sides[1].Paths = sides[1].Paths[1:] // n1 does not probe n0 at present
	found := Reaches(sides)
	if len(found) != 1 || !strings.Contains(found[0].Cause, "node n0 finds the path to node n1 broken") || found[0].Severity != report.Warning {
		t.Errorf("%+v", found)
	}
}

// Drops by two rules of one node's firewall are two faults: fixing one leaves the other.
func TestRulesOfOneFirewallAreDistinguished(t *testing.T) {
	way := func(from, to, rule string) reach.Direction {
		return reach.Direction{From: from, To: to, Family: "IPv4", Is: reach.Fails, Cause: reach.CauseFirewall, At: "a",
			Text: "no IPv4 packets pass from pods on " + from + " to pods on " + to + ": node a drops the tunnel's packets, rule " + rule}
	}
	found := Directions([]reach.Direction{way("b", "a", "5"), way("a", "b", "7"), way("c", "a", "5")})
	if len(found) != 2 || !strings.Contains(found[0].Cause, "rule 5. The same: from c to a in IPv4") ||
		!strings.Contains(found[1].Cause, "rule 7") {
		t.Errorf("%+v", found)
	}
}
