package checks

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// Paths that fail alike are one finding.
func TestReachFindings(t *testing.T) {
	path := func(node, family, cause string) api.ReachFinding {
		return api.ReachFinding{Node: node, Family: family, Cause: cause, Text: cause + " of " + node}
	}
	s := api.AgentState{Node: "a", Transport: "eth0", Peers: []api.AgentPeer{{Node: "b"}},
		Reach: &api.AgentReach{Findings: []api.ReachFinding{
			path("b", "IPv4", "not-found"), path("b", "IPv6", "not-found"), path("c", "IPv4", "mtu"), path("d", "IPv4", "not-found"),
			path("e", "IPv4", "cut-off"), path("f", "IPv4", "cut-off")}}}
	var got []string
	for _, f := range reachFindings(s) {
		if len(f.Remedies) == 0 || len(f.Evidence) == 0 || f.Cause == "" {
			t.Errorf("%+v", f)
		}
		for _, node := range f.About {
			got = append(got, f.Kind+" "+node)
		}
	}
	want := []string{"pods-not-found b", "pods-mtu c", "pods-not-found d", "pods-cut-off e", "pods-cut-off f"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.Reach = &api.AgentReach{Problem: "its address is in use"}
	if f := reachFindings(s); len(f) != 1 || f[0].Kind != "not-probed" {
		t.Errorf("%+v", f)
	}
}

// If a node has several addresses, the remedy names the one that the path's packets are sent to.
func TestReachRemedyNamesThePathsAddress(t *testing.T) {
	six, four := netip.MustParseAddr("fd77::12"), netip.MustParseAddr("192.168.77.12")
	s := api.AgentState{Node: "a", Transport: "eth0", Peers: []api.AgentPeer{{Node: "b", Address: six}}}
	for want, addr := range map[string]netip.Addr{"tcpdump -ni eth0 host 192.168.77.12 ": four, "tcpdump -ni eth0 host fd77::12 ": six} {
		r := reachRemedy(s, api.ReachFinding{Node: "b", Family: "IPv4", Cause: "not-found", Address: addr})
		if last := r.Commands[len(r.Commands)-1]; !strings.HasPrefix(last, want) {
			t.Errorf("%q, want %q", last, want)
		}
	}
	r := reachRemedy(s, api.ReachFinding{Node: "b", Family: "IPv4", Cause: "not-found"})
	if all := strings.Join(r.Commands, "\n"); strings.Contains(all, "tcpdump") {
		t.Errorf("of an address that is not known: %s", all)
	}
}
