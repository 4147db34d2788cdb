package suite

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// peerLimit is the time limit of a change: the promise is a second; the machine may be slow, and one resync takes
// seconds in User-Mode Linux.
const peerLimit = 20 * time.Second

// moving is a node that changes, as described by its Node.
type moving struct {
	node         string
	cidrs, addrs []string
}

func (p moving) manifest() string {
	return nodeYAML(p.node, strings.Join(p.cidrs, ","), strings.Join(p.addrs, ","))
}

// peersChange changes node2 and node3, which keep their names, and checks node1.
func peersChange(t *testing.T, c cluster, m mode) {
	two := moving{"node2", []string{"10.77.2.0/24", "fd77:0:0:2::/64"}, []string{"192.168.78.12", "fd78::12"}}
	three := moving{"node3", []string{"10.77.3.0/24", "fd77:0:0:3::/64"}, []string{"192.168.77.13", "fd77::13"}}
	followed := func(what string, now []moving, gone ...string) {
		t.Helper()
		took := wait(t, peerLimit, func() (missing string) {
			for _, p := range now {
				for i, cidr := range p.cidrs {
					missing += c.lacksWay(t, m, "node1", netip.MustParsePrefix(cidr), netip.MustParseAddr(p.addrs[i]))
				}
			}
			flows, routes := c.flows(t, "node1"), c.routes(t, "node1")
			for _, g := range gone {
				if p, err := netip.ParsePrefix(g); err == nil {
					missing += c.keepsWay(t, "node1", p)
				} else if strings.Contains(flows, "="+g+",") || strings.Contains(flows, ":"+g+"->") || strings.Contains(routes, " "+g+" ") {
					missing += "node1 still knows " + g + "\n"
				}
			}
			return missing
		})
		t.Logf("%s: node1 followed within %s", what, took.Round(time.Millisecond))
	}
	apply := func(now ...moving) {
		t.Helper()
		var all []string
		for _, p := range now {
			all = append(all, p.manifest())
			for i, cidr := range p.cidrs { // the routers are not Fairlead's
				c.host(t, underlay.Outside).exec(t, fmt.Sprintf("ip route replace %s via %s", cidr, p.addrs[i]))
			}
		}
		c.apply(t, all...)
	}

	// Another address, in the same subnet.
	before := three
	three.addrs = []string{"192.168.77.133", "fd77::133"}
	c.readdress(t, "node3", three.addrs, "192.168.77.1", "fd77::1")
	apply(three)
	followed("address", []moving{two, three}, before.addrs...)
	c.talks(t, "a", "d")

	// Another podCIDR, by delete and create.
	before = three
	three.cidrs = []string{"10.77.33.0/24", "fd77:0:0:33::/64"}
	c.remove(t, before.manifest())
	apply(three)
	followed("podCIDR", []moving{two, three}, before.cidrs...)
	c.renew(t, "d", "e@node3")
	c.talks(t, "a", "e")

	// Both, and back.
	before = three
	three = moving{"node3", []string{"10.77.3.0/24", "fd77:0:0:3::/64"}, []string{"192.168.77.13", "fd77::13"}}
	c.readdress(t, "node3", three.addrs, "192.168.77.1", "fd77::1")
	apply(three)
	followed("address and podCIDR", []moving{two, three}, append(before.addrs, before.cidrs...)...)
	c.renew(t, "e", "d@node3")
	c.talks(t, "a", "d")

	// Two swap their podCIDRs.
	two.cidrs, three.cidrs = three.cidrs, two.cidrs
	apply(two, three)
	followed("swap of podCIDRs", []moving{two, three})
	c.renew(t, "c", "f@node2")
	c.renew(t, "d", "g@node3")
	c.talks(t, "a", "f")
	c.talks(t, "a", "g")

	// Deleted and recreated.
	c.remove(t, three.manifest())
	followed("deleted", []moving{two}, append(three.addrs, three.cidrs...)...)
	apply(three)
	followed("made again", []moving{two, three})
	c.talks(t, "a", "g")

	// From one subnet to the other: the cable, the addresses, the Node.
	a, f := c.pod(t, "a"), c.pod(t, "f")
	var flows []*flow
	for i := range a.ips {
		flows = append(flows, startFlow(t, a, f, f.ips[i]))
	}
	before = two
	two.addrs = []string{"192.168.77.12", "fd77::12"}
	c.host(t, underlay.Hub).exec(t, "ip link set node2 master br0")
	c.readdress(t, "node2", two.addrs, "192.168.77.1", "fd77::1")
	apply(two)
	followed("moved into the subnet", []moving{two, three}, before.addrs...)
	c.talks(t, "a", "f")
	for i := range flows {
		flows[i].check(t, "moved into the subnet", a.ips[i])
	}
	before = two
	two.addrs = []string{"192.168.78.12", "fd78::12"}
	c.host(t, underlay.Hub).exec(t, "ip link set node2 master br1")
	c.readdress(t, "node2", two.addrs, "192.168.78.1", "fd78::1")
	apply(two)
	followed("moved out of it", []moving{two, three}, before.addrs...)
	c.talks(t, "a", "f")
	for i := range flows {
		flows[i].check(t, "moved out of it", a.ips[i])
	}
	c.startsWithNothingToDo(t, "node1")
}

// readdress gives a node other addresses and a default gateway of each family, as after a move.
func (c cluster) readdress(t *testing.T, node string, addrs []string, gateways ...string) {
	t.Helper()
	h, dev := c.host(t, node), c.underlayDev(t, node)
	h.exec(t, "ip addr flush dev "+dev+" scope global")
	for i, a := range addrs {
		bits, nodad := 24, ""
		if strings.Contains(a, ":") {
			bits, nodad = 64, " nodad"
		}
		h.exec(t, fmt.Sprintf("ip addr add %s/%d dev %s%s", a, bits, dev, nodad))
		h.exec(t, fmt.Sprintf("ip route replace default via %s dev %s", gateways[i], dev))
	}
}

// renew replaces a pod, in the form "name@node", whose address its node no longer has.
func (c cluster) renew(t *testing.T, old, pod string) {
	t.Helper()
	name, node, _ := strings.Cut(pod, "@")
	wait(t, peerLimit, func() string { // the node itself must have its podCIDR first
		ready := c.metric(t, node, "fairlead_degraded") == 1 // it reports a pod outside podCIDR
		if !ready {
			return node + " has not taken its new podCIDR"
		}
		return ""
	})
	c.remove(t, podYAML(old, node))
	c.addPods(t, name+"@"+node)
}

// talks expects two pods to reach each other, each with its own source address. The first packet of a tunnel may be
// lost, see warm.
func (c cluster) talks(t *testing.T, from, to string) {
	t.Helper()
	a, b := c.pod(t, from), c.pod(t, to)
	for i := range a.ips {
		for _, way := range [][2]place{{a, b}, {b, a}} {
			wait(t, 15*time.Second, func() string {
				_, err := way[0].run("ping", "-c1", "-W1", way[1].ips[i].String())
				return errText(err)
			})
			reach(t, way[0], way[1].ips[i])
			if got := peerSeen(t, "tcp", way[0], way[1], way[1].ips[i]); got != way[0].ips[i] {
				t.Errorf("%s to %s: the server sees %s, want %s", way[0].name, way[1].name, got, way[0].ips[i])
			}
		}
	}
}

// state is a node's picture and all its routes: those of a peer may be on the underlay.
func (c cluster) state(t *testing.T, node string) string {
	t.Helper()
	return c.picture(t, node) + strings.Join(sorted(c.routes(t, node)), "")
}

// atRest returns a node's state once it has not changed for longer than the agents' resync interval (labtest).
func (c cluster) atRest(t *testing.T, node string) (state string) {
	t.Helper()
	since := time.Now()
	wait(t, time.Minute, func() string {
		last := state
		if state = c.state(t, node); state != last {
			since = time.Now()
		}
		if time.Since(since) < 2500*time.Millisecond {
			return node + " at rest: last seen to change: " + difference(last, state)
		}
		return ""
	})
	return state
}

// startsWithNothingToDo checks that a restarted agent changes nothing on the node, so nothing is stale.
func (c cluster) startsWithNothingToDo(t *testing.T, node string) {
	t.Helper()
	before := c.atRest(t, node)
	must(t, 0, c.AgentKill(labtest.Within(t, 10*time.Second), node))
	c.restart(t, node)
	if now := c.state(t, node); now != before {
		t.Errorf("%s has changed at the start of an agent:\n%s", node, difference(before, now))
	}
}

// restart starts an agent that does not run and waits until it is ready.
func (c cluster) restart(t *testing.T, node string) {
	t.Helper()
	must(t, 0, c.AgentStart(t.Context(), node))
	must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), node))
}

// The mode changes with a restart of the agents while pods keep running, and nothing of the previous mode is left: back
// in the first mode the nodes are as before.
func TestRootModeChanges(t *testing.T) {
	ovstest.UserspaceOnly(t, "its nodes are too many for a guest's one processor")
	byName := map[string]mode{}
	for _, m := range modes() {
		byName[m.name] = m
	}
	c := modeLab(t, byName[api.ModeEncap])
	first := map[string]string{}
	for _, node := range c.Nodes() {
		first[node] = c.atRest(t, node)
	}
	a := c.pod(t, "a")
	var flows []*flow
	for _, name := range []string{"c", "d"} {
		for _, ip := range c.pod(t, name).ips {
			flows = append(flows, startFlow(t, a, c.pod(t, name), ip))
		}
	}
	for _, name := range []string{api.ModeNoEncap, api.ModeHybrid, api.ModeNoEncap, api.ModeEncap} {
		m := byName[name]
		for _, node := range c.Nodes() {
			must(t, 0, c.AgentStop(labtest.Within(t, 10*time.Second), node))
			file := c.host(t, node).host.Private("/etc/fairlead/agent.conf")
			conf, err := os.ReadFile(file)
			must(t, 0, err)
			var kept []string
			for line := range strings.Lines(string(conf)) {
				if !strings.HasPrefix(line, "trafficEncapMode:") {
					kept = append(kept, line)
				}
			}
			must(t, 0, os.WriteFile(file, []byte(strings.Join(kept, "")+"trafficEncapMode: "+name+"\n"), 0o644))
			c.restart(t, node)
		}
		for _, node := range c.Nodes() {
			// Userspace Open vSwitch 3.1 sometimes keeps forwarding a peer's tunnel packets to the host, as it did
			// while there was no tunnel port, as long as they keep arriving (docs/packet-journey.md).
			c.host(t, node).exec(t, "ovs-appctl revalidator/purge")
		}
		if name != api.ModeEncap {
			t.Run("to "+name, func(t *testing.T) {
				for n := 2; n <= 3; n++ {
					for i, cidr := range c.family.PodCIDRs(n) {
						if lacks := c.lacksWay(t, m, "node1", cidr, c.NodeAddrs(n)[i].Addr()); lacks != "" {
							t.Error(lacks)
						}
					}
				}
				// Pods keep their MTU, and the agent reports if it differs from that of new pods.
				c.awaitMetric(t, "node1", "fairlead_degraded", map[bool]float64{true: 1}[m.mtu != 1450])
				const says = "pods have another MTU than 1500"
				wait(t, 5*time.Second, func() string { // the metric comes first
					if log := c.log(t, "node1"); m.mtu != 1450 && !strings.Contains(log, says) {
						return fmt.Sprintf("the log does not say %q:\n%s", says, log)
					}
					return ""
				})
			})
		}
		for _, to := range []string{"b", "c", "d"} {
			c.talks(t, "a", to)
		}
		for i, f := range flows {
			f.check(t, "to "+name, a.ips[i%len(a.ips)])
		}
	}
	for _, node := range c.Nodes() {
		if now := c.atRest(t, node); now != first[node] {
			t.Errorf("%s differs from what it was in the same mode before:\n%s", node, difference(first[node], now))
		}
	}
}
