package bridged

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// netnsOf opens the network namespace of a place.
func netnsOf(t *testing.T, p place) (netns ns.NetNS) {
	t.Helper()
	must(t, p.do(func() (err error) { netns, err = ns.GetCurrentNS(); return err }))
	t.Cleanup(func() { netns.Close() })
	return netns
}

// stream starts a stream of datagrams between two places at an interval, once requests are answered. Other streams run
// already, and the machine may be slow: what counts is the stream.
func stream(t *testing.T, from, to place, a netip.Addr, every time.Duration) *probe.Stream {
	t.Helper()
	target := serve(t, place{name: to.name, host: to.host, netns: to.netns, ips: []netip.Addr{a}})[0]
	_, err := call(from, target, patience)
	for range 4 {
		if err != nil {
			_, err = call(from, target, patience)
		}
	}
	if err != nil {
		t.Fatalf("%s to %s: %v", from.name, target, err)
	}
	port, stop, err := probe.Echo(netnsOf(t, to), a)
	must(t, err)
	t.Cleanup(stop)
	family := 4
	if a.Is6() {
		family = 6
	}
	s, err := probe.Start(netnsOf(t, from), from.of(family), netip.AddrPortFrom(a, port), every)
	must(t, err)
	return s
}

// agentKilled checks that neither the host nor pods lose a packet when an agent is killed, is down for a while and
// starts. A machine that is busy with something else loses packets by itself: then streams that node1 has no part in
// lose some, too, or node1's ovs-vswitchd, which forwards them in userspace, waits for a processor for longer than the
// socket of the NIC's port, which has most of them, holds packets. Only then the result is inconclusive, and the test
// is repeated.
func (c cluster) agentKilled(t *testing.T, places []place) {
	const times = 10
	every, most := 5*time.Millisecond, 100*time.Millisecond // User-Mode Linux sustains no more on its one processor
	if c.Datapath() == vswitch.System {
		every = most
	}
	for range times {
		// Some 200 packets fit into the socket of a port, and the NIC's has those of 12 streams (killAgent).
		starving := 200 * every / 12
		starved := c.starved(t, starving)
		lost, controls := c.killAgent(t, places, every)
		every = min(2*every, most) // the sockets then buffer more of a busy machine's time
		if waited := starved(); waited > starving*4/5 {
			controls = append(controls, fmt.Sprintf("ovs-vswitchd of node1 waited %s for a processor", waited))
		}
		switch {
		case len(lost) == 0:
			return
		case len(controls) == 0:
			t.Errorf("lost, and nothing where node1 has no part: %s", strings.Join(lost, "; "))
			return
		}
		t.Logf("lost: %s; and where node1 has no part: %s", strings.Join(lost, "; "), strings.Join(controls, "; "))
	}
	t.Errorf("in each of %d times this machine lost packets where node1 has no part: nothing can be said of its agent", times)
}

// starved is probe.Starved of node1's ovs-vswitchd, on the userspace datapath.
func (c cluster) starved(t *testing.T, within time.Duration) (stop func() time.Duration) {
	t.Helper()
	if c.Datapath() == vswitch.System {
		return probe.Starved(within)
	}
	return probe.Starved(within, lab.Vswitchd.PID(c.host(t, "node1").host))
}

// killAgent returns what the streams of node1 lost meanwhile, and what the controls lost, which node1 has no part in.
func (c cluster) killAgent(t *testing.T, places []place, every time.Duration) (lost, controls []string) {
	t.Helper()
	find := func(name string) place {
		for _, p := range places {
			if p.name == name {
				return p
			}
		}
		t.Fatalf("there is no %s", name)
		return place{}
	}
	out, streams, control := find(underlay.Outside), map[string]*probe.Stream{}, map[string]bool{}
	for i := range out.ips {
		for _, way := range [][2]place{
			{out, find("node2")}, {find("a-0-node2"), out}, {find("node2"), find("a-20-node2")},
			{out, find("node1")}, {find("node1"), out},
			{find("a-0-node1"), out}, {out, find("a-10-node1")}, {find("a-10-node1"), find("a-20-node2")},
			{find("a-0-node1"), find("b-0-node1")}, {find("node1"), find("a-10-node1")},
			{find("a-20-node1"), find("a-routed-node2")},
		} {
			a := way[1].ips[i]
			name := way[0].name + " to " + way[1].name + " " + a.String()
			streams[name] = stream(t, way[0], way[1], a, every)
			control[name] = !strings.Contains(name, "node1")
		}
	}
	must(t, c.AgentKill(labtest.Within(t, 10*time.Second), "node1"))
	time.Sleep(500 * time.Millisecond) // the agent is down
	must(t, c.AgentStart(labtest.Within(t, 10*time.Second), "node1"))
	must(t, c.WaitReady(labtest.Within(t, 60*time.Second), "node1"))
	time.Sleep(time.Second) // the agent's work after it becomes ready
	for what, s := range streams {
		r := s.Stop()
		switch {
		case r.Lost == 0 && r.Duplicates == 0:
		case control[what]:
			controls = append(controls, fmt.Sprintf("%s: %s", what, r))
		default:
			lost = append(lost, fmt.Sprintf("%s: %s", what, r))
		}
	}
	return lost, controls
}
