package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/kube"
)

// An Event is on the Node with the fault, once for each cause, again before the API server deletes it, and again when a
// fault recurs.
func TestPodsNotReached(t *testing.T) {
	var report *api.AgentReach
	var wrote []string
	down := false
	r := NewReach(func() *api.AgentReach { return report }, nil, "me", testr.New(t))
	r.warn = func(_ context.Context, node string, w kube.Warning) error {
		if down {
			return errors.New("the API server is away")
		}
		if w.About.Kind != "Node" || w.Reason != "PodsNotReached" || node != "me" {
			t.Errorf("node %s wrote %+v", node, w)
		}
		wrote = append(wrote, w.About.Name+": "+w.Message)
		return nil
	}
	now := time.Unix(1e9, 0)
	finds := func(findings ...string) {
		report = &api.AgentReach{}
		for _, f := range findings {
			node, cause, _ := strings.Cut(f, " ")
			report.Findings = append(report.Findings, api.ReachFinding{Node: node, Cause: cause, Text: "because of " + cause})
		}
	}
	want := func(what string, parts ...string) {
		t.Helper()
		now = now.Add(eventsIn)
		r.write(t.Context(), now)
		if len(wrote) != len(parts) {
			t.Errorf("%s: wrote %q, want %d Events", what, wrote, len(parts))
		}
		for _, part := range parts {
			if !strings.Contains(strings.Join(wrote, "\n"), part) {
				t.Errorf("%s: wrote %q, want %q", what, wrote, part)
			}
		}
		wrote = nil
	}
	want("nothing is probed")
	finds()
	want("all is well")
	finds("far mtu", "near firewall", "other firewall")
	want("faults here and there", "far: seen from node me: because of mtu", "me: because of firewall; and 1 more")
	finds("far mtu", "near firewall")
	want("the same causes")
	finds("far lossy", "near firewall")
	want("another cause", "far: seen from node me: because of lossy")
	now = now.Add(renewEvents)
	want("after half an hour", "far: ", "me: ")
	finds("a underlay", "b underlay", "c underlay", "near firewall")
	want("many", "me: because of firewall; and pods on this node and on 3 of the 0 nodes that it probes do not reach each other: a, b, c. ")
	finds("a underlay", "b underlay", "c underlay", "d lossy", "e mtu")
	want("some more")
	finds("a underlay", "b underlay", "c underlay", "d lossy", "e mtu", "f mtu")
	want("twice as many", "me: pods on this node and on 6 of")
	finds("near firewall")
	want("one is well", "me: because of firewall")
	finds("far lossy", "near firewall")
	down = true
	want("it comes back, without the API server")
	down = false
	want("with the API server", "far: ")
}

// Recurring causes do not cause a flood of Events, and no Node is neglected for another.
func TestNotReachedIsLimited(t *testing.T) {
	var report api.AgentReach
	wrote := map[string]int{}
	r := NewReach(func() *api.AgentReach { return &report }, nil, "me", testr.New(t))
	r.warn = func(_ context.Context, _ string, w kube.Warning) error { wrote[w.About.Name]++; return nil }
	for i := range 120 { // ten minutes
		cause := []string{"lossy", "not-found"}[i%2]
		report.Findings = []api.ReachFinding{{Node: "a", Cause: cause}, {Node: "b", Cause: cause}, {Node: "c", Cause: "firewall"}}
		r.write(t.Context(), time.Unix(1e9, 0).Add(time.Duration(i)*reachEvery))
	}
	if all := wrote["a"] + wrote["b"] + wrote["me"]; all > 20 || wrote["a"] == 0 || wrote["b"] == 0 || wrote["me"] != 1 {
		t.Errorf("Events in ten minutes: %v, want 20 at most, and one about this node", wrote)
	}
}

// cutInTwo returns the numbers of Events that the agents of a cluster write while it is partitioned into two halves, by
// node and minute. As in package agent/reach, they probe their peers, and up to 8 nodes that were not reached in their
// turn.
func cutInTwo(t *testing.T, nodes, minutes int) (wrote map[string][]int) {
	t.Helper()
	const maxFailing = 8
	var names []string
	half := map[string]int{}
	for i := range nodes {
		names = append(names, fmt.Sprintf("node%03d", i))
		half[names[i]] = i % 2
	}
	wrote = map[string][]int{}
	for _, own := range names {
		var report *api.AgentReach
		now := time.Unix(1e9, 0)
		wrote[own] = make([]int, minutes)
		minute := 0
		r := NewReach(func() *api.AgentReach { return report }, nil, own, testr.New(t))
		r.warn = func(context.Context, string, kube.Warning) error { wrote[own][minute]++; return nil }
		var failing []string
		for step := range minutes * int(time.Minute/reachEvery) {
			minute = step * int(reachEvery/time.Second) / 60
			asked := append(reach.Peers(own, names, now), failing[:min(maxFailing, len(failing))]...)
			slices.Sort(asked)
			asked = slices.Compact(asked)
			failing = slices.DeleteFunc(slices.Clone(asked), func(n string) bool { return half[n] == half[own] })
			report = &api.AgentReach{Asked: len(asked)}
			for _, n := range failing {
				report.Findings = append(report.Findings, api.ReachFinding{Node: n, Cause: "underlay", Text: "no answer"})
			}
			r.write(t.Context(), now)
			now = now.Add(reachEvery)
		}
	}
	return wrote
}

// A cluster that is partitioned causes few Events, at most two a minute from each agent.
func TestPartitionIsOneEvent(t *testing.T) {
	wrote := cutInTwo(t, 60, 10)
	all, first, worst := 0, 0, 0
	for own, minutes := range wrote {
		sum := 0
		for _, n := range minutes {
			worst = max(worst, n)
			sum += n
		}
		if all, first = all+sum, first+minutes[0]; sum == 0 {
			t.Errorf("%s has reported nothing", own)
		}
	}
	t.Logf("60 agents wrote %d Events in 10 minutes, %d in the first, one at most %d in a minute", all, first, worst)
	if worst > 2 || all > 60*5 {
		t.Errorf("60 agents wrote %d Events, one %d in a minute", all, worst)
	}
}
