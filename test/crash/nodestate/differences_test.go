package nodestate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

func pod(n byte, port int) (Pod, []string) {
	p := Pod{Name: "default/p", ContainerID: strings.Repeat(string('a'+rune(n)), 4), Netns: "/run/netns/" + string('a'+rune(n)),
		IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, n})}, MAC: api.MAC{2, 0, 0, 0, 0, n}}
	return p, []string{
		specialize("priority=2,in_port={port},dl_src={mac},nw_src={ip0} actions=goto_table:1", p, port),
		specialize("priority=2,nd_target={link-local} actions=output:{port}", p, port),
		specialize("priority=2,nw_dst={ip0} actions=output:{port}", p, port),
		specialize("priority=2,arp_tpa={ip0} actions=output:{port}", p, port),
	}
}

// Every kind of leftover, and of missing state, is reported.
func TestDifferences(t *testing.T) {
	empty := State{Flows: []string{"priority=0 actions=drop", "priority=1,in_port=1 actions=output:2"}}
	one, oneFlows := pod(1, 12)
	two, twoFlows := pod(12, 1) // its numbers are parts of the other's
	state := func() State {
		return State{Leases: map[string]string{"10.0.0.1": one.ContainerID, "10.0.0.12": two.ContainerID},
			Ports: map[string]int{one.HostIf(): 12, two.HostIf(): 1}, Veths: []string{one.HostIf(), two.HostIf()},
			Netns: []string{one.Netns, two.Netns}, Flows: slices.Concat(empty.Flows, oneFlows, twoFlows)}
	}
	withOne := State{Leases: map[string]string{"10.0.0.1": one.ContainerID}, Ports: map[string]int{one.HostIf(): 12},
		Veths: []string{one.HostIf()}, Netns: []string{one.Netns}, Flows: slices.Concat(empty.Flows, oneFlows)}
	r, err := NewReference(empty, withOne, one)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := r.Differences(state(), []Pod{two, one}); len(wrong) > 0 {
		t.Errorf("two pods: %q", wrong)
	}
	for want, change := range map[string]func(*State){
		"lease missing: 10.0.0.1 of bbbb":          func(s *State) { delete(s.Leases, "10.0.0.1") },
		"lease too many: 10.0.0.9 of x":            func(s *State) { s.Leases["10.0.0.9"] = "x" },
		"lease too many: 10.0.0.9 of bbbb":         func(s *State) { s.Leases["10.0.0.9"] = "bbbb" },
		"port missing: " + one.HostIf():            func(s *State) { delete(s.Ports, one.HostIf()) },
		"port too many: fl0123456789abc":           func(s *State) { s.Ports["fl0123456789abc"] = 7 },
		"veth too many: fl0123456789abc":           func(s *State) { s.Veths = append(s.Veths, "fl0123456789abc") },
		"network namespace too many: /run/netns/z": func(s *State) { s.Netns = append(s.Netns, "/run/netns/z") },
		"flow missing: " + twoFlows[3]:             func(s *State) { s.Flows = s.Flows[:len(s.Flows)-1] },
		"flow too many: priority=2,in_port=13":     func(s *State) { s.Flows = append(s.Flows, "priority=2,in_port=13") },
	} {
		s := state()
		change(&s)
		if wrong := r.Differences(s, []Pod{two, one}); !slices.Contains(wrong, want) {
			t.Errorf("got %q, want %q", wrong, want)
		}
	}
	if _, err := NewReference(withOne, state(), two); err == nil {
		t.Error("a node with a pod passes for an empty one")
	}
}
