package suite

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// mode is a traffic mode and its promises between nodes of one subnet (near) and of two (far).
type mode struct {
	name      string
	near, far desired.Path
	mtu       int
	// TTLs that a pod of the other node sees: each router decrements it, and a tunnel is one hop.
	nearTTL, farTTL byte
}

func modes() []mode {
	return []mode{
		{api.ModeEncap, desired.PathTunnel, desired.PathTunnel, 1450, 63, 63},
		{api.ModeNoEncap, desired.PathDirect, desired.PathRouters, 1500, 62, 61},
		{api.ModeHybrid, desired.PathDirect, desired.PathTunnel, 1450, 62, 63},
	}
}

// between is the path type between two nodes, by their addresses.
func (m mode) between(a, b netip.Prefix) desired.Path {
	if a.Contains(b.Addr()) {
		return m.near
	}
	return m.far
}

// modeLab has node1 and node3 in one subnet and node2 in another, behind a router with routes to the podCIDRs. The
// nodes are configured strictly: reverse path filtering is on, and forwarding is dropped by default.
func modeLab(t *testing.T, m mode) cluster {
	c := up(t, lab.Options{Nodes: 3, Subnets: 2, RoutePods: true, Config: []byte("trafficEncapMode: " + m.name +
		"\nserviceCIDR: 10.96.0.0/16\nserviceCIDRv6: fd00:10:96::/112\n")})
	for _, node := range c.Nodes() {
		h := c.host(t, node)
		h.exec(t, "sysctl -qw net.ipv4.conf.all.rp_filter=1")
		h.exec(t, "iptables -w -P FORWARD DROP")
		h.exec(t, "ip6tables -w -P FORWARD DROP")
	}
	c.addPods(t, "a@node1", "b@node1", "c@node2", "d@node3")
	c.warm(t)
	return c
}

// Each mode with all its promises, and with peers that change but keep their names.
func TestRootModes(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			if m.name == api.ModeEncap {
				ovstest.UserspaceOnly(t, "hybrid has its tunnels, and all other tests its mode")
			}
			start := time.Now()
			c := modeLab(t, m)
			t.Run("ways", func(t *testing.T) { takesTheWay(t, c, m) })
			t.Run("all reach all", func(t *testing.T) { allReachAllInSubnets(t, c) })
			check := func(name string, try func(t *testing.T)) {
				t.Run(name, func(t *testing.T) {
					if m.name == api.ModeNoEncap {
						ovstest.UserspaceOnly(t, "hybrid has these ways as well, and is tried on both")
					}
					try(t)
				})
			}
			check("sources", func(t *testing.T) { sourcesStay(t, c, m) })
			check("Services", func(t *testing.T) { servicesKeepSources(t, c) })
			check("MTU", func(t *testing.T) { fullPackets(t, c, m.mtu) })
			if m.far == desired.PathRouters { // else the router sees tunnel packets only
				check("path MTU", func(t *testing.T) { narrowRouter(t, c, m) })
			}
			check("TTL", func(t *testing.T) { ttlsOfMode(t, c, m) })
			check("lies", func(t *testing.T) { liesBetweenNodes(t, c) })
			if m.near == desired.PathDirect {
				check("firewall", func(t *testing.T) { doctorOpensRouted(t, c) })
			}
			t.Run("peers that change", func(t *testing.T) {
				ovstest.UserspaceOnly(t, "the flows of a peer are the same on both")
				peersChange(t, c, m)
			})
			t.Logf("%s: %s in all", m.name, time.Since(start).Round(time.Second))
		})
	}
}

// allReachAllInSubnets checks pods, nodes and the outside, in the subnet and beyond the router.
func allReachAllInSubnets(t *testing.T, c cluster) {
	a, b, far, near := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c"), c.pod(t, "d")
	node1, outside := c.host(t, "node1"), c.host(t, underlay.Outside)
	for i := range a.ips {
		for _, to := range []place{b, near, far} { // same node, same subnet, another subnet
			reach(t, a, to.ips[i])
			reach(t, to, a.ips[i])
			reach(t, node1, to.ips[i])
			reach(t, outside, to.ips[i]) // the router has a route
		}
		reach(t, near, far.ips[i])
		for n := 1; n <= 3; n++ {
			reach(t, a, c.NodeAddrs(n)[i].Addr())
			reach(t, a, gatewayOf(c.family.PodCIDRs(n)[i]))
		}
		for _, p := range []place{a, far, near} {
			reach(t, p, c.family.FarAddrs()[i].Addr())
		}
		noReach(t, a, unusedOf(c.family.PodCIDRs(2)[i]))
		noReach(t, a, unusedOf(c.family.PodCIDRs(3)[i]))
	}
}

// doctorOpensRouted checks that doctor finds a firewall that drops packets between pods without a tunnel, in one
// direction at a time, and that the command which it prints opens it.
func doctorOpensRouted(t *testing.T, c cluster) {
	node, a, near := c.host(t, "node1"), c.pod(t, "a"), c.pod(t, "d")
	doctor := func() (string, error) { return node.run(filepath.Join(binDir, "fairleadctl"), "doctor", "firewall") }
	if out, err := doctor(); err != nil {
		t.Errorf("nothing is dropped, and doctor says %v\n%s", err, out)
	}
	for i, ip := range a.ips {
		for _, rule := range []string{"saddr", "daddr"} {
			node.exec(t, "nft add table inet theirs")
			node.exec(t, "nft add chain inet theirs through { type filter hook forward priority 10; }")
			node.exec(t, fmt.Sprintf("nft add rule inet theirs through %s %s %s drop",
				map[bool]string{true: "ip", false: "ip6"}[ip.Is4()], rule, c.family.PodCIDRs(1)[i]))
			noReach(t, a, near.ips[i])
			out, err := doctor()
			want := map[string]string{"saddr": "from pods on this node to pods on", "daddr": "to pods on this node"}[rule]
			if err == nil || !strings.Contains(out, want) || !strings.Contains(out, "node3") || !strings.Contains(out, "chain through") {
				t.Errorf("doctor says %v\n%s", err, out)
			}
			for _, command := range regexp.MustCompile(`nft insert rule .*`).FindAllString(out, -1) {
				if out, err := node.run("sh", "-c", command); err != nil {
					t.Errorf("the remedy %q: %v %s", command, err, out)
				}
			}
			reach(t, a, near.ips[i])
			if out, err := doctor(); err != nil {
				t.Errorf("behind the remedy doctor says %v\n%s", err, out)
			}
			node.exec(t, "nft delete table inet theirs")
		}
	}
}

// sourcesStay checks that pods see pods' addresses, the outside and other nodes see the node's, and streams arrive.
func sourcesStay(t *testing.T, c cluster, m mode) {
	a, far, near := c.pod(t, "a"), c.pod(t, "c"), c.pod(t, "d")
	for i := range a.ips {
		node := func(n int) netip.Addr { return c.NodeAddrs(n)[i].Addr() }
		gateway := gatewayOf(c.family.PodCIDRs(1)[i])
		fromNode := map[desired.Path]netip.Addr{desired.PathTunnel: gateway, desired.PathDirect: node(1),
			desired.PathRouters: node(1)}
		for _, way := range []struct {
			from, to place
			at, want netip.Addr
		}{
			{a, near, near.ips[i], a.ips[i]}, {near, a, a.ips[i], near.ips[i]},
			{a, far, far.ips[i], a.ips[i]}, {far, a, a.ips[i], far.ips[i]},
			{a, c.host(t, "node1"), node(1), a.ips[i]},
			{a, c.host(t, "node2"), node(2), node(1)}, {a, c.host(t, "node3"), node(3), node(1)},
			{c.host(t, "node1"), near, near.ips[i], fromNode[m.near]},
			{c.host(t, "node1"), far, far.ips[i], fromNode[m.far]},
			{a, c.host(t, underlay.Outside), c.family.FarAddrs()[i].Addr(), node(1)},
			{far, c.host(t, underlay.Outside), c.family.FarAddrs()[i].Addr(), node(2)},
		} {
			for _, network := range []string{"udp", "tcp"} {
				if got := peerSeen(t, network, way.from, way.to, way.at); got != way.want {
					t.Errorf("%s: %s to %s: the server sees %s, want %s", network, way.from.name, way.at, got, way.want)
				}
			}
		}
		stream(t, a, near, near.ips[i], 1<<20)
		stream(t, far, a, a.ips[i], 1<<20)
	}
}

// servicesKeepSources checks that an endpoint of a Service sees its client's own address, on the client's node, in its
// subnet and in another one.
func servicesKeepSources(t *testing.T, c cluster) {
	a, d := c.pod(t, "a"), c.pod(t, "d")
	endpoints := []place{c.pod(t, "b"), c.pod(t, "c"), d}
	var services []string
	for n, to := range endpoints {
		answerAll(t, to, 8080)
		services = append(services, serviceYAML("of-"+to.name, 1+n, "", 8080, to))
	}
	c.apply(t, services...)
	for n, to := range endpoints {
		for i := range a.ips {
			for _, network := range []string{"tcp", "udp"} {
				for _, from := range []place{a, d} {
					vip, want := netip.AddrPortFrom(clusterIPs(1 + n)[i], 80), to.name+" "+from.ips[i].String()
					if from.name == to.name {
						continue // it sees the gateway
					}
					wait(t, labtest.Patience(t, 10*time.Second), func() string { // until the Service is known
						if got, err := asked(t, from, network, vip); err != nil || got != want {
							return fmt.Sprintf("%s from %s to %s: %q, %v; want %q", network, from.name, vip, got, err, want)
						}
						return ""
					})
				}
			}
		}
	}
	c.remove(t, services...)
}

// narrowRouter checks that a router with a smaller MTU reports it to pods, whose own packets it forwards, and that
// streams adapt.
func narrowRouter(t *testing.T, c cluster, m mode) {
	outside, a, far := c.host(t, underlay.Outside), c.pod(t, "a"), c.pod(t, "c")
	outside.exec(t, "ip link set eth1 mtu 1400")
	for _, to := range far.ips {
		wait(t, 10*time.Second, func() string { // ping does not wait long for the ICMP error about its last packet
			out, err := a.run("ping", "-c2", "-i0.2", "-W1", "-Mdo", "-s", fmt.Sprint(m.mtu-headers(to)), to.String())
			if err == nil || !strings.Contains(out, "mtu=1400") && !strings.Contains(out, "mtu = 1400") {
				return fmt.Sprintf("a packet that is too big for the router: %v\n%s", err, out)
			}
			return ""
		})
		stream(t, a, far, to, 1<<20)
	}
	outside.exec(t, "ip link set eth1 mtu 1500")
	for _, p := range []place{a, far} { // learned path MTUs are valid for minutes
		p.exec(t, "ip route flush cache")
		p.exec(t, "ip -6 route flush cache")
	}
}

func ttlsOfMode(t *testing.T, c cluster, m mode) {
	a := c.pod(t, "a")
	gateway := c.host(t, "node1").macOf(t, "fairlead-gw0")
	for _, way := range []struct {
		to   place
		want byte
		way  desired.Path
	}{{c.pod(t, "b"), 64, ""}, {c.pod(t, "d"), m.nearTTL, m.near}, {c.pod(t, "c"), m.farTTL, m.far}} {
		for i, addr := range way.to.ips {
			p := udp(a.ips[i], addr, "TTL to "+addr.String())
			ear := tap(t, way.to, "eth0")
			tap(t, a, "eth0").send(t, ethernet(gateway, a.mac, p))
			f := ear.expect(t, string(p.mark), p.mark)
			if got := ttlOf(f); got != way.want {
				t.Errorf("%s: TTL %d, want %d", p.mark, got, way.want)
			}
			if of := c.host(t, way.to.host.Name).macOf(t, "fairlead-gw0"); way.way != "" && api.MAC(f[6:12]) != of {
				t.Errorf("%s comes from %s, want the gateway's %s", p.mark, api.MAC(f[6:12]), of)
			}
			// Where the kernel routes, the ICMP error also names the hop, by the address that the node has for its pods.
			expired := func() (answered bool, out string) {
				out, _ = a.run("ping", "-c3", "-i0.2", "-W1", "-t1", addr.String())
				return strings.Contains(out, "From "+c.NodeAddrs(1)[i].Addr().String()+" ") && strings.Contains(out, "xceeded"), out
			}
			if way.way != desired.PathDirect && way.way != desired.PathRouters {
				if answered, out := expired(); answered {
					t.Errorf("a packet with TTL 1 to %s is answered:\n%s", addr, out)
				}
				continue
			}
			wait(t, 10*time.Second, func() string { // Linux limits the rate of such errors
				if answered, out := expired(); !answered {
					return fmt.Sprintf("a packet with TTL 1 to %s is not answered:\n%s", addr, out)
				}
				return ""
			})
		}
	}
}

// liesBetweenNodes checks anti-spoofing across nodes: no pod sends as another pod to pods elsewhere, and no host
// outside sends as a pod to its neighbour.
func liesBetweenNodes(t *testing.T, c cluster) {
	a, b, far, near := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c"), c.pod(t, "d")
	gateway := c.host(t, "node1").macOf(t, "fairlead-gw0")
	ears := map[string]*wire{near.name: tap(t, near, "eth0"), far.name: tap(t, far, "eth0"), a.name: tap(t, a, "eth0")}
	liar, outside := tap(t, a, "eth0"), tap(t, c.host(t, underlay.Outside), "eth0")
	dev := c.underlayDev(t, "node1")
	var lies []packet
	for i := range a.ips {
		for _, to := range []place{near, far} {
			for _, src := range []netip.Addr{b.ips[i], c.NodeAddrs(1)[i].Addr(), gatewayOf(c.family.PodCIDRs(1)[i]),
				unusedOf(c.family.PodCIDRs(1)[i]), unusedOf(c.family.PodCIDRs(3)[i])} {
				p := udp(src, to.ips[i], fmt.Sprintf("lie of a: %s to %s", src, to.name))
				liar.send(t, ethernet(gateway, a.mac, p))
				lies = append(lies, p)
			}
		}
		for _, src := range []netip.Addr{b.ips[i], unusedOf(c.family.PodCIDRs(1)[i])} {
			p := udp(src, a.ips[i], fmt.Sprintf("lie from outside: %s to a", src))
			outside.send(t, ethernet(c.host(t, "node1").macOf(t, dev), c.host(t, underlay.Outside).macOf(t, "eth0"), p))
			lies = append(lies, p)
		}
	}
	for i := range a.ips {
		for _, to := range []place{near, far} {
			p := udp(a.ips[i], to.ips[i], "truth of a to "+to.ips[i].String())
			liar.send(t, ethernet(gateway, a.mac, p))
			ears[to.name].expect(t, string(p.mark), p.mark)
		}
		p := udp(c.family.FarAddrs()[i].Addr(), a.ips[i], "truth from outside to "+a.ips[i].String())
		outside.send(t, ethernet(c.host(t, "node1").macOf(t, dev), c.host(t, underlay.Outside).macOf(t, "eth0"), p))
		ears["a"].expect(t, string(p.mark), p.mark)
	}
	for _, l := range lies {
		for _, ear := range ears {
			if f := ear.find(l.mark); f != nil {
				t.Errorf("%q came to %s", l.mark, ear.name)
			}
		}
	}
}
