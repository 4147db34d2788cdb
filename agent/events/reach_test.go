package events

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube"
)

// An Event is on the Node with the fault, once for each cause, again before the API server forgets it, and again when a
// fault comes back.
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
		now = now.Add(reachEvery)
		r.look(t.Context(), now)
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
	finds("near firewall")
	want("one is well")
	finds("far lossy", "near firewall")
	down = true
	want("it comes back, without the API server")
	down = false
	want("with the API server", "far: ")
}
