package suite

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
)

// takesTheWay checks flows, routes, rules, ports and the agent's report.
func takesTheWay(t *testing.T, c cluster, m mode) {
	count := map[desired.Path]float64{}
	for n := 2; n <= 3; n++ {
		for i, cidr := range c.family.PodCIDRs(n) {
			count[m.between(c.NodeAddrs(1)[i], c.NodeAddrs(n)[i])]++
			if lacks := c.lacksWay(t, m, "node1", cidr, c.NodeAddrs(n)[i].Addr()); lacks != "" {
				t.Error(lacks)
			}
		}
	}
	node1 := c.host(t, "node1")
	tunnel := strings.Contains(node1.exec(t, "ovs-vsctl list-ports br-int"), "fairlead-tun0")
	if want := m.name != api.ModeNoEncap; tunnel != want {
		t.Errorf("there is a tunnel port: %v, want %v", tunnel, want)
	}
	if m.name == api.ModeNoEncap {
		if got := node1.exec(t, "ip neigh show nud permanent dev fairlead-gw0"); got != "" {
			t.Errorf("neighbours that no pod needs: %s", got)
		}
	}
	for _, w := range []desired.Path{desired.PathTunnel, desired.PathDirect, desired.PathRouters} {
		c.awaitMetric(t, "node1", fmt.Sprintf("fairlead_peer_podcidrs{path=%q}", w), count[w])
	}
	for _, metric := range []string{"fairlead_degraded", "fairlead_peers_refused"} {
		c.awaitMetric(t, "node1", metric, 0)
	}
	logged, want := strings.Count(c.log(t, "node1"), "the underlay's routers must have routes to"), 0
	if m.far == desired.PathRouters {
		want = 1
	}
	if logged < want || logged > 3*want { // once for each change: Nodes are read one after the other
		t.Errorf("the log says %d times what routers need routes to:\n%s", logged, c.log(t, "node1"))
	}
}

// lacksWay lists what a node lacks, or has in excess, to reach a podCIDR at a node with this address.
func (c cluster) lacksWay(t *testing.T, m mode, node string, cidr netip.Prefix, addr netip.Addr) string {
	t.Helper()
	way := m.far
	for i := range c.family.NodeAddrs(1) {
		if c.NodeAddrs(c.number(node))[i].Masked().Contains(addr) {
			way = m.near
		}
	}
	wantFlows, wantRoute := 0, ""
	switch {
	case way == desired.PathTunnel:
		wantFlows, wantRoute = 3, " via "+virtualNextHop(cidr)+" dev fairlead-gw0 "
	case way == desired.PathDirect:
		wantRoute = " via " + addr.String() + " dev " + c.underlayDev(t, node) + " "
		if m.name == api.ModeHybrid {
			wantFlows = 1 // accepted from the tunnel
		}
	}
	if n := strings.Count(c.flows(t, node), "="+cidr.String()); n != wantFlows {
		return fmt.Sprintf("%s has %d flows for %s, want %d (%s)\n", node, n, cidr, wantFlows, way)
	}
	route := c.routeTo(t, node, cidr.String())
	if wantRoute != "" && !strings.Contains(route, wantRoute) || wantRoute == "" && route != "" {
		return fmt.Sprintf("%s reaches %s by %s, want the route %q:\n%s%s", node, cidr, way, wantRoute, route, c.routes(t, node))
	}
	if want := m.name != api.ModeEncap; c.unmasked(t, node, cidr) != want {
		return fmt.Sprintf("%s exempts %s from masquerade: %v, want %v\n", node, cidr, !want, want)
	}
	return ""
}

// keepsWay lists what a node still has of a podCIDR without a node.
func (c cluster) keepsWay(t *testing.T, node string, cidr netip.Prefix) string {
	t.Helper()
	if kept := c.keepsPeer(t, node, cidr.String()); kept != "" {
		return kept
	}
	if c.unmasked(t, node, cidr) {
		return fmt.Sprintf("%s still exempts %s from masquerade\n", node, cidr)
	}
	return ""
}

func virtualNextHop(cidr netip.Prefix) string {
	if cidr.Addr().Is4() {
		return "169.254.0.253"
	}
	return "fe80::66:6cff:fe00:fe"
}

// number is a node's number in its name.
func (c cluster) number(node string) (n int) {
	fmt.Sscanf(node, "node%d", &n)
	return n
}

// underlayDev is the interface with the node's address.
func (c cluster) underlayDev(t *testing.T, node string) string {
	t.Helper()
	return strings.Fields(c.host(t, node).exec(t, "ip -o route show default"))[4]
}

// unmasked reports whether pods of a node keep their source address to all of cidr.
func (c cluster) unmasked(t *testing.T, node string, cidr netip.Prefix) bool {
	t.Helper()
	program := "iptables"
	if cidr.Addr().Is6() {
		program = "ip6tables"
	}
	for line := range strings.Lines(c.host(t, node).exec(t, program+" -w -t nat -S FAIRLEAD-POSTROUTING")) {
		if w := strings.Fields(line); len(w) > 5 && w[2] == "-d" && w[5] == "RETURN" {
			if p := netip.MustParsePrefix(w[3]); p.Overlaps(cidr) && p.Bits() <= cidr.Bits() {
				return true
			}
		}
	}
	return false
}
