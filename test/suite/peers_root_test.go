package suite

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// lacksPeer lists what a node lacks to reach podCIDRs on another node: flows, and its own routes.
func (c cluster) lacksPeer(t *testing.T, node string, podCIDRs ...string) string {
	t.Helper()
	flows := c.flows(t, node)
	for _, cidr := range podCIDRs {
		if n := strings.Count(flows, "="+cidr); n != 3 {
			return fmt.Sprintf("%s has %d flows for %s, want 3:\n%s", node, n, cidr, flows)
		}
		if !strings.Contains(c.routeTo(t, node, cidr), " via ") {
			return fmt.Sprintf("%s has no route for %s:\n%s", node, cidr, c.routes(t, node))
		}
	}
	return ""
}

// keepsPeer lists what a node still has of podCIDRs of another node.
func (c cluster) keepsPeer(t *testing.T, node string, podCIDRs ...string) string {
	t.Helper()
	flows := c.flows(t, node)
	for _, cidr := range podCIDRs {
		if strings.Contains(flows, "="+cidr) {
			return fmt.Sprintf("%s has flows for %s:\n%s", node, cidr, flows)
		}
		if route := c.routeTo(t, node, cidr); route != "" {
			return fmt.Sprintf("%s has a route for %s:\n%s", node, cidr, route)
		}
	}
	return ""
}

// routeTo is Fairlead's route for a podCIDR, which may cover others, too; empty if there is none.
func (c cluster) routeTo(t *testing.T, node, cidr string) string {
	t.Helper()
	family := "-4"
	if strings.Contains(cidr, ":") {
		family = "-6"
	}
	return c.host(t, node).exec(t, "ip "+family+" route show match "+cidr+" proto 102")
}

func (c cluster) routes(t *testing.T, node string) string {
	t.Helper()
	h := c.host(t, node)
	return h.exec(t, "ip -4 route") + h.exec(t, "ip -6 route")
}

// Peers are added, changed and removed, and the others apply it: the promise is within a second; the machine may be
// slow.
func TestRootPeersComeAndGo(t *testing.T) {
	t.Setenv(api.IntervalsVariable, "agent.resync=10m,inputs.reread=10m") // no resync may find a change by chance
	limit, c := 5*time.Second, up(t, lab.Options{Nodes: 3})
	if c.Datapath() == vswitch.System {
		limit = 15 * time.Second // three nodes on the one slow CPU of User-Mode Linux
	}
	c.addPods(t, "a@node1", "b@node2", "c@node3")
	c.warm(t)
	a, b, third := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	old, addrs := "10.77.3.0/24,fd77:0:0:3::/64", "192.168.77.13,fd77::13"
	followed := func(t *testing.T, what string, state func(t *testing.T, node string) string) {
		t.Helper()
		took := wait(t, limit, func() string {
			return state(t, "node1") + state(t, "node2")
		})
		t.Logf("%s: flows and routes of both other nodes followed within %s", what, took.Round(time.Millisecond))
	}
	has := func(podCIDRs string) func(t *testing.T, node string) string {
		return func(t *testing.T, node string) string { return c.lacksPeer(t, node, strings.Split(podCIDRs, ",")...) }
	}
	hasNot := func(podCIDRs string) func(t *testing.T, node string) string {
		return func(t *testing.T, node string) string { return c.keepsPeer(t, node, strings.Split(podCIDRs, ",")...) }
	}
	everybody := func(t *testing.T, third place) {
		t.Helper()
		for i := range a.ips {
			reach(t, a, b.ips[i]) // the others are not affected
			reach(t, a, third.ips[i])
			reach(t, third, b.ips[i])
			reach(t, c.host(t, "node1"), third.ips[i])
		}
	}
	everybody(t, third)

	c.remove(t, nodeYAML("node3", "", ""))
	followed(t, "Node deleted", hasNot(old))
	c.datapathFollows(t)
	for i := range a.ips {
		noReach(t, a, third.ips[i])
		noReach(t, c.host(t, "node2"), third.ips[i])
		reach(t, a, b.ips[i])
	}

	c.apply(t, nodeYAML("node3", old, addrs))
	followed(t, "Node added", has(old))
	everybody(t, third)

	// Delete and create under the same name: that is how a podCIDR is changed in Kubernetes.
	moved := "10.77.33.0/24,fd77:0:0:33::/64"
	c.remove(t, nodeYAML("node3", "", ""))
	c.apply(t, nodeYAML("node3", moved, addrs))
	followed(t, "podCIDR changed", func(t *testing.T, node string) string { return has(moved)(t, node) + hasNot(old)(t, node) })
	wait(t, limit, func() string {
		if got := c.host(t, "node3").exec(t, "ip -4 addr show fairlead-gw0"); !strings.Contains(got, " 10.77.33.1/24 ") {
			return "node3's own gateway has " + got
		}
		return ""
	})
	c.addPods(t, "d@node3")
	fourth := c.pod(t, "d")
	for i, p := range []string{"10.77.33.0/24", "fd77:0:0:33::/64"} {
		if !netip.MustParsePrefix(p).Contains(fourth.ips[i]) {
			t.Errorf("the new pod has %s, want one of %s", fourth.ips[i], p)
		}
	}
	everybody(t, fourth)

	// The node's own address changes, as after a new DHCP lease.
	node3 := c.host(t, "node3")
	node3.exec(t, "ip addr add 192.168.77.133/24 dev "+c.Transport())
	c.apply(t, nodeYAML("node3", moved, "192.168.77.133,fd77::13"))
	followed(t, "address changed", func(t *testing.T, node string) string {
		if flows := c.flows(t, node); !strings.Contains(flows, "192.168.77.133") || strings.Contains(flows, "192.168.77.13,") {
			return node + " sends to another address:\n" + flows
		}
		return has(moved)(t, node)
	})
	wait(t, limit, func() string {
		if got := node3.exec(t, "ovs-vsctl get Interface fairlead-tun0 options:local_ip"); !strings.Contains(got, "192.168.77.133") {
			return "node3 sends from " + got
		}
		return ""
	})
	answers := func() string { // the datapath's own ARP, see warm
		for _, from := range []place{a, b} {
			if _, err := from.run("ping", "-c1", "-W1", fourth.ips[0].String()); err != nil {
				return err.Error()
			}
		}
		return ""
	}
	wait(t, 15*time.Second, answers)
	everybody(t, fourth)

	// The other order: the Node is first. Not on the userspace datapath: ovs-vswitchd sends one ARP request for the
	// address, which does not exist yet, and drops what follows until that pauses for 10 s.
	address := "192.168.77.133"
	if c.Datapath() == vswitch.System {
		address = "192.168.77.144"
		c.apply(t, nodeYAML("node3", moved, address+",fd77::13"))
		followed(t, "Node's address changed first", func(t *testing.T, node string) string {
			if flows := c.flows(t, node); !strings.Contains(flows, address) || strings.Contains(flows, "192.168.77.133,") {
				return node + " sends to another address:\n" + flows
			}
			return ""
		})
		node3.exec(t, "ip addr add "+address+"/24 dev "+c.Transport())
		node3.exec(t, "ip addr del 192.168.77.133/24 dev "+c.Transport())
	}

	wait(t, limit, func() string { // its own packets to its pods have its address
		if got := node3.exec(t, "ip route show 10.77.33.0/24"); !strings.Contains(got, "src "+address+" ") {
			return "node3's route to its pods is " + got
		}
		return ""
	})

	// A network manager's start deletes routes and addresses that it does not know.
	before := c.routes(t, "node3")
	node3.exec(t, "ip route flush proto 102")
	node3.exec(t, "ip -6 route flush proto 102")
	node3.exec(t, "ip addr flush dev fairlead-gw0 scope global")
	took := wait(t, limit, func() string {
		if got := node3.exec(t, "ovs-vsctl get Interface fairlead-tun0 options:local_ip"); !strings.Contains(got, address) {
			return "node3 sends from " + got
		}
		if now := c.routes(t, "node3"); now != before {
			return "node3 has other routes than before:\n" + difference(before, now)
		}
		return ""
	})
	t.Logf("node3 has its new address and its routes after %s", took.Round(time.Millisecond))
	wait(t, 15*time.Second, answers)
	everybody(t, fourth)
}

// Peers that are added and removed cost no packets between other nodes. Routes of other programs make ovs-vswitchd take
// its time to read them: it drops packets whose route it looks up meanwhile. Between the routes of the two families the
// kernel may wait for another process that changes links, anywhere on the machine (rtnl_lock), which shows as a loss in
// one of eight turns if three processes do nothing else; hence five turns, of which one has to lose nothing. If flows
// were written first, each turn would lose twenty. A turn whose losses the machine may have caused does not count.
func TestRootPeersCostOthersNothing(t *testing.T) {
	ovstest.UserspaceOnly(t, "the kernel's datapath has no routes of its own")
	c := up(t, lab.Options{Nodes: 2})
	c.addPods(t, "a@node1", "b@node2", "c@node1", "d@node1", "e@node2", "f@node2")
	c.warm(t)
	var batch strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&batch, "route add 10.%d.%d.0/24 via 192.168.77.1\n", 200+i/250, i%250)
	}
	file := filepath.Join(t.TempDir(), "routes")
	must(t, 0, os.WriteFile(file, []byte(batch.String()), 0o600))
	for _, node := range c.Nodes() {
		c.host(t, node).exec(t, "ip -batch "+file)
	}
	const turns, most = 5, 20
	for turn, own := 1, 0; own < turns && turn <= most; turn++ {
		reports, controls := c.peersComeAndGo(t)
		if !slices.ContainsFunc(reports, func(r probe.Report) bool { return r.Lost > 0 }) {
			return
		}
		excused := probe.Excused(reports, controls)
		t.Logf("turn %d: %v; on each node: %v; excused: %t", turn, reports, controls, excused)
		if !excused {
			own++
		}
	}
	t.Errorf("packets were lost in each of %d turns, or %d", turns, most)
}

// peersComeAndGo adds and removes a peer six times, and returns what two nodes lose meanwhile of each other's packets,
// and of the packets within each node, which pass the same ovs-vswitchds.
func (c cluster) peersComeAndGo(t *testing.T) (reports, controls []probe.Report) {
	t.Helper()
	var streams, beside []*probe.Stream
	start := func(from, to place, i int) *probe.Stream {
		reach(t, from, to.ips[i])
		port, stop, err := probe.Echo(to.netNS(t), to.ips[i])
		must(t, 0, err)
		t.Cleanup(stop)
		s, err := probe.Start(from.netNS(t), from.ips[i], netip.AddrPortFrom(to.ips[i], port), 10*time.Millisecond)
		return must(t, s, err)
	}
	for i := range 2 { // of the families
		streams = append(streams, start(c.pod(t, "a"), c.pod(t, "b"), i))
	}
	beside = append(beside, start(c.pod(t, "c"), c.pod(t, "d"), 0), start(c.pod(t, "e"), c.pod(t, "f"), 0))
	guest := []string{"10.77.3.0/24", "fd77:0:0:3::/64"}
	followed := func(state func(t *testing.T, node string, podCIDRs ...string) string) {
		t.Helper()
		wait(t, time.Minute, func() string { return state(t, "node1", guest...) + state(t, "node2", guest...) })
	}
	for range 6 {
		c.datapathFollows(t) // lookups caused by the previous change are not under test
		c.apply(t, nodeYAML("guest", strings.Join(guest, ","), "192.168.77.99,fd77::99"))
		followed(c.lacksPeer)
		c.datapathFollows(t)
		c.remove(t, nodeYAML("guest", "", ""))
		followed(c.keepsPeer)
	}
	for _, s := range streams {
		r := s.Stop()
		if t.Log(r); r.Sent < 100 {
			t.Errorf("not enough was sent: %s", r)
		}
		reports = append(reports, r)
	}
	for _, s := range beside {
		controls = append(controls, s.Stop())
	}
	return reports, controls
}

// A Node without podCIDRs, before a controller has assigned some, is no peer and no problem; nor is one whose address
// is added later.
func TestRootPeerIsBornInSteps(t *testing.T) {
	c := up(t, lab.Options{Nodes: 1})
	cidrs := []string{"10.77.9.0/24", "fd77:0:0:9::/64"}
	for _, step := range []string{nodeYAML("late", "", ""), nodeYAML("late", "", "192.168.77.99")} {
		c.apply(t, step)
		settled(t, c, "node1")
		if refused := c.metric(t, "node1", "fairlead_peers_refused"); refused != 0 {
			t.Errorf("with %s: %v peers are refused", step, refused)
		}
		if kept := c.keepsPeer(t, "node1", cidrs...); kept != "" {
			t.Error(kept)
		}
	}
	c.apply(t, nodeYAML("late", strings.Join(cidrs, ","), "192.168.77.99"))
	wait(t, 5*time.Second, func() string { return c.lacksPeer(t, "node1", cidrs...) })
	c.awaitMetric(t, "node1", "fairlead_peers", 1)
}

// settled waits until a node's agent has applied all manifests so far. It adds another Node after them: snapshots are
// in order.
func settled(t *testing.T, c cluster, node string) {
	t.Helper()
	const marker = "10.99.99.0/24"
	c.apply(t, nodeYAML("marker", marker, "192.168.77.98"))
	wait(t, 10*time.Second, func() string {
		if !strings.Contains(c.flows(t, node), marker) {
			return node + " has not seen the last manifest"
		}
		return ""
	})
	c.remove(t, nodeYAML("marker", "", ""))
	wait(t, 10*time.Second, func() string { return c.keepsPeer(t, node, marker) })
}

// write writes a file of any content to the manifests, as by mistake.
func (c cluster) write(t *testing.T, name, content string) (path string) {
	t.Helper()
	path = c.Manifests().Dir() + "/" + name
	must(t, 0, os.WriteFile(path, []byte(content), 0o644))
	return path
}
