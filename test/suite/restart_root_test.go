package suite

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
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

// An agent that is killed or stopped, is down for a while and starts again costs no packet and changes no flow.
func TestRootAgentRestartIsNotNoticed(t *testing.T) {
	c := up(t, lab.Options{})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	const times = 10
	every := 25 * time.Millisecond
	for range times {
		starving := 20 * every // restartAgents
		starved := c.starved(t, starving)
		lost := restartAgents(t, c, every)
		waited := starved()
		every = min(2*every, 100*time.Millisecond) // the sockets then buffer more of a busy machine's time
		if len(lost) == 0 || t.Failed() {
			return
		}
		if waited < starving*4/5 {
			t.Errorf("lost: %s, and no ovs-vswitchd waited for a processor for longer than %s", strings.Join(lost, "; "), waited)
			return
		}
		t.Logf("lost: %s; an ovs-vswitchd waited %s for a processor", strings.Join(lost, "; "), waited)
	}
	t.Errorf("in each of %d times this machine was too busy for Open vSwitch: nothing can be said of the agents", times)
}

// starved is probe.Starved of all nodes' ovs-vswitchds, on the userspace datapath.
func (c cluster) starved(t *testing.T, within time.Duration) (stop func() time.Duration) {
	t.Helper()
	var pids []int
	for _, node := range c.Nodes() {
		if c.Datapath() == vswitch.Netdev {
			pids = append(pids, lab.Vswitchd.PID(c.host(t, node).host))
		}
	}
	return probe.Starved(within, pids...)
}

// waited is lab.OVSWaited of all nodes together.
func (c cluster) waited(t *testing.T) (all time.Duration) {
	t.Helper()
	for _, node := range c.Nodes() {
		waited, err := c.OVSWaited(labtest.Within(t, time.Minute), node)
		must(t, 0, err)
		all += waited
	}
	return all
}

// restartAgents ends and starts each node's agent in two ways, and returns what streams of packets have lost.
func restartAgents(t *testing.T, c cluster, every time.Duration) (lost []string) {
	t.Helper()
	a, b, far := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	node1, outside := c.host(t, "node1"), c.host(t, underlay.Outside)
	// Eight streams leave the pod a, at first 320 packets a second. Open vSwitch's socket for the pod's port buffers
	// some 200: an ovs-vswitchd that gets no processor for 20 intervals, half a second, loses none by that. In
	// User-Mode Linux a system call takes 100 times as long, and there is one CPU, which the streams need, too.
	streams := map[string]*probe.Stream{}
	start := func(from place, source netip.Addr, to place, addr netip.Addr) {
		t.Helper()
		port, stop, err := probe.Echo(to.netNS(t), addr)
		must(t, 0, err)
		t.Cleanup(stop)
		s, err := probe.Start(from.netNS(t), source, netip.AddrPortFrom(addr, port), every)
		streams[fmt.Sprintf("%s to %s", from.name, addr)] = must(t, s, err)
	}
	for i := range a.ips {
		gateway := gatewayOf(c.family.PodCIDRs(1)[i])
		start(a, a.ips[i], b, b.ips[i])
		start(a, a.ips[i], far, far.ips[i])
		start(far, far.ips[i], b, b.ips[i])
		start(a, a.ips[i], node1, gateway)
		start(a, a.ips[i], outside, c.family.FarAddrs()[i].Addr())
		start(node1, gateway, far, far.ips[i])
	}
	picture := c.picture(t, "node1")
	for _, end := range []struct {
		what string
		end  func(node string) error
	}{
		{"killed", func(node string) error { return c.AgentKill(labtest.Within(t, 10*time.Second), node) }},
		{"stopped", func(node string) error { return c.AgentStop(labtest.Within(t, 10*time.Second), node) }},
	} {
		for _, node := range c.Nodes() {
			ended := time.Now()
			must(t, 0, end.end(node))
			reach(t, a, far.ips[0]) // without an agent
			must(t, 0, c.AgentStart(t.Context(), node))
			must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), node))
			c.checkFlowsAreOlder(t, node, time.Since(ended))
			for _, change := range []string{"added", "modified", "deleted"} {
				if n := c.metric(t, node, `fairlead_flow_changes_total{change="`+change+`"}`); n != 0 {
					t.Errorf("%s, agent %s: %v flows were %s", node, end.what, n, change)
				}
			}
		}
	}
	if now := c.picture(t, "node1"); now != picture {
		t.Errorf("node1 has changed:\n%s", difference(picture, now))
	}
	for way, s := range streams {
		switch r := s.Stop(); {
		case r.Duplicates != 0 || r.Sent < 20: // half a second
			t.Errorf("%s: %s", way, r)
		case r.Lost != 0:
			lost = append(lost, way+": "+r.String())
		default:
			t.Logf("%s: %s", way, r)
		}
	}
	return lost
}

// checkFlowsAreOlder expects all flows of a node to be older than age.
func (c cluster) checkFlowsAreOlder(t *testing.T, node string, age time.Duration) {
	t.Helper()
	dump := c.host(t, node).exec(t, "ovs-ofctl -O OpenFlow15 dump-flows br-int")
	ages := regexp.MustCompile(`duration=([0-9.]+)s`).FindAllStringSubmatch(dump, -1)
	if len(ages) < 20 {
		t.Fatalf("%s has %d flows", node, len(ages))
	}
	for _, m := range ages {
		if s, err := strconv.ParseFloat(m[1], 64); err != nil || s < age.Seconds() {
			t.Errorf("%s has a flow that is %s s old, %v; want all older than %s", node, m[1], err, age)
		}
	}
}

// netNS is the network namespace of a place, for package probe.
func (p place) netNS(t *testing.T) (netNS ns.NetNS) {
	t.Helper()
	must(t, 0, p.do(func() (err error) { netNS, err = ns.GetCurrentNS(); return err }))
	t.Cleanup(func() { netNS.Close() })
	return netNS
}
