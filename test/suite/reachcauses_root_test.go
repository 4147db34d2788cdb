package suite

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/api"
	judge "github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// faulty is a fault of the paths between two nodes, by the directions and families that it affects.
type faulty struct {
	name string
	// at is where commands begin and end it, each a shell line.
	at         string
	begin, end string
	from, to   string
	// there and back are what both ends conclude together: "works", or the state and the right cause, as in "fails
	// mtu". The cause not-found is accepted as well, a wrong cause never.
	there, back string
	// family is the only one that fails; empty: both do.
	family string
	// alone are further causes that one end may report from its own view; if the node is cut off, both may until all
	// do.
	alone []string
}

// lost is an nftables table that drops what matches.
func lost(at, family, hook, match string, f faulty) faulty {
	table := strings.NewReplacer(" ", "", "'", "", ",", "").Replace(f.name)
	f.at, f.end = at, fmt.Sprintf("nft delete table %s %s", family, table)
	f.begin = fmt.Sprintf("nft add table %[1]s %[2]s; nft 'add chain %[1]s %[2]s c { type filter hook %[3]s priority 10; }'; "+
		"nft add rule %[1]s %[2]s c '%[4]s drop'", family, table, hook, match)
	return f
}

// spoilt corrupts the UDP checksums inside tunnel packets between nodes' addresses, like a NIC that computes them
// wrongly. Offsets are in bits from the tunnel's UDP header: the inner frame's type, its protocol, and the checksum.
func spoilt(from, to string, f faulty) faulty {
	table := strings.ReplaceAll(f.name, " ", "")
	f.at, f.end = underlay.Hub, "nft delete table bridge "+table
	f.begin = fmt.Sprintf(`nft -f - <<'EOF'
table bridge %[1]s { chain c { type filter hook forward priority 10;
ip saddr %[2]s ip daddr %[3]s udp dport 6081 @th,224,16 0x0800 @th,312,8 17 @th,448,16 set 0xdead
ip saddr %[2]s ip daddr %[3]s udp dport 6081 @th,224,16 0x86dd @th,288,8 17 @th,608,16 set 0xdead
}; }
EOF`, table, from, to)
	return f
}

// ways12 and ways34 are tunnelled, and node1 and node3 are in one subnet, node2 and node4 in another.
const ways12, ways34 = "ip saddr 192.168.77.11 ip daddr 192.168.78.12 ", "ip saddr 192.168.77.13 ip daddr 192.168.78.14 "

// rightWithin is the time limit for the right cause, while no wrong one is named. An agent that does not run for a
// second, on a busy machine, starts over: the limit is twice as long as it takes.
const rightWithin = 80 * time.Second

// separate are faults of different pairs of nodes; those of one list are active at the same time.
func separate() [][]faulty {
	hub := underlay.Hub
	between, dropped := "fails between", []string{"dropped"}
	both34 := "ip saddr { 192.168.77.13, 192.168.78.14 } ip daddr { 192.168.77.13, 192.168.78.14 } "
	return [][]faulty{{
		lost(hub, "bridge", "forward", ways12+"udp dport 6081",
			faulty{name: "the tunnel one way", from: "node1", to: "node2", there: between, back: "works"}),
		lost(hub, "bridge", "forward", both34+"udp dport 6081",
			faulty{name: "the tunnel both ways", from: "node3", to: "node4", there: between, back: between}),
		lost("node3", "inet", "forward", "ip saddr 10.77.1.0/24",
			faulty{name: "dropped by the receiver", from: "node1", to: "node3", there: "fails dropped", back: "works", family: "IPv4",
				alone: dropped}),
		lost(hub, "bridge", "forward", "ip6 saddr fd77:0:0:2::/64 ip6 daddr fd77:0:0:4::/64",
			faulty{name: "IPv6 alone", from: "node2", to: "node4", there: between, back: "works", family: "IPv6"}),
	}, {
		lost(hub, "bridge", "forward", ways12,
			faulty{name: "everything one way", from: "node1", to: "node2", there: between, back: "works", alone: []string{"underlay"}}),
		lost(hub, "bridge", "forward", both34, faulty{name: "everything both ways", from: "node3", to: "node4",
			there: "fails underlay", back: "fails underlay", alone: []string{"underlay"}}),
		lost("node1", "inet", "forward", "ip daddr 10.77.3.0/24",
			faulty{name: "dropped by the sender", from: "node1", to: "node3", there: "fails dropped", back: "works", family: "IPv4",
				alone: dropped}),
		{name: "another's route, and rp_filter", at: "node4", from: "node2", to: "node4", there: "fails route", back: "fails route", family: "IPv4",
			alone: []string{"route"},
			begin: "ip rule add pref 50 to 10.77.2.0/24 blackhole; sysctl -qw net.ipv4.conf.all.rp_filter=1",
			end:   "ip rule del pref 50; sysctl -qw net.ipv4.conf.all.rp_filter=0"},
	}, {
		lost(hub, "bridge", "forward", ways12+"ip length > 1400",
			faulty{name: "an MTU of the underlay", from: "node1", to: "node2", there: "narrow mtu", back: "works", alone: []string{"mtu"}}),
		lost(hub, "bridge", "forward", ways34+"udp dport 6081 ip length > 1400",
			faulty{name: "full-size packets of the tunnel", from: "node3", to: "node4", there: "narrow between", back: "works"}),
		lost(hub, "bridge", "forward", "ether saddr 02:77:00:00:00:01 ether daddr 02:77:00:00:00:03 ip length > 1400",
			faulty{name: "an MTU without a tunnel", from: "node1", to: "node3", there: "narrow mtu", back: "works", family: "IPv4",
				alone: []string{"mtu"}}),
		spoilt("{ 192.168.77.13, 192.168.78.12 }", "{ 192.168.77.13, 192.168.78.12 }", faulty{name: "checksums both ways", from: "node2",
			to: "node3", there: "fails checksum", back: "fails checksum", alone: []string{"checksum"}}),
	}, {
		lost(hub, "bridge", "forward", ways12+"udp dport 6081 numgen random mod 10 < 4",
			faulty{name: "loss", from: "node1", to: "node2", there: "lossy lossy", back: "works", alone: []string{"lossy"}}),
		lost(hub, "bridge", "forward", "ip saddr 192.168.77.13 ip daddr 192.168.78.12 udp dport 6081 udp sport & 1 == 1",
			faulty{name: "one of two ways", from: "node3", to: "node2", there: "lossy multipath", back: "works",
				alone: []string{"lossy", "multipath"}}),
		spoilt("192.168.77.11", "192.168.78.14", faulty{name: "checksums one way", from: "node1", to: "node4",
			there: "fails checksum", back: "works", alone: []string{"checksum"}}),
		{name: "another source address", at: underlay.Outside, from: "node3", to: "node4", there: "fails source", back: "works",
			alone: []string{"source"},
			begin: "nft add table ip faked; nft 'add chain ip faked c { type nat hook postrouting priority srcnat; }'; " +
				"nft add rule ip faked c " + ways34 + "udp dport 6081 snat to 192.168.78.1; conntrack -F 2>/dev/null || true",
			end: "nft delete table ip faked; conntrack -F 2>/dev/null || true"},
	}}
}

// Faults of the paths between nodes are found, in the direction and the family that they affect, with the right cause:
// both ends together may miss the cause of one in twenty at most. What each end reports alone is right as well. Nothing
// is reported about other paths.
func TestRootReachCauses(t *testing.T) {
	ovstest.UserspaceOnly(t, "TestRootProbe has the kernel's firewall, and a guest is too slow for so many nodes")
	c := &causes{cluster: up(t, lab.Options{Nodes: 4, Subnets: 2, RoutePods: true,
		Config: []byte("trafficEncapMode: hybrid\n")})}
	c.allReached(t, "at the start")
	for _, at := range separate() {
		c.named(t, at...)
	}
	c.differentTunnel(t)
	c.nodeFaults(t)
	c.withoutEncapsulation(t)
	if c.faults < 20 || 20*len(c.unnamed) > c.faults {
		t.Errorf("of %d faults the cause of more than 5 %% was not found out: %v", c.faults, c.unnamed)
	}
}

// causes is a lab with faults.
type causes struct {
	cluster
	faults  int
	unnamed []string // whose cause was not found
}

// allReached waits until each node has reached all others.
func (c cluster) allReached(t *testing.T, when string) {
	t.Helper()
	wait(t, labtest.Patience(t, time.Minute), func() (missing string) {
		for _, node := range c.Nodes() {
			if r := c.reach(t, node); r == nil || r.Reached != len(c.Nodes())-1 || len(r.Findings) > 0 {
				missing += fmt.Sprintf("\n%s: %s has %+v", when, node, r)
			}
		}
		return missing
	})
}

// sh runs a shell line on a host.
func (c cluster) sh(t *testing.T, host, line string) {
	t.Helper()
	_, err := c.host(t, host).run("sh", "-ec", line)
	must(t, 0, err)
}

// named begins the faults, waits until each is named, and ends them.
func (c *causes) named(t *testing.T, at ...faulty) {
	t.Helper()
	for _, f := range at {
		c.sh(t, f.at, f.begin)
	}
	c.found(t, at)
	for _, f := range at {
		c.sh(t, f.at, f.end)
	}
	c.allReached(t, "after "+at[0].name)
}

// found waits until each of the faults, which have begun, is named.
func (c *causes) found(t *testing.T, at []faulty) {
	t.Helper()
	began, left := time.Now(), slices.Clone(at)
	wait(t, labtest.Patience(t, 2*time.Minute), func() string {
		left = slices.DeleteFunc(left, func(f faulty) bool {
			found, right := c.findsOut(t, at, f)
			took := time.Since(began)
			if found == "" || !right && took < labtest.Patience(t, rightWithin) {
				return false
			}
			t.Logf("%s: after %s: %s", f.name, took.Round(100*time.Millisecond), found)
			if c.faults++; !right {
				c.unnamed = append(c.unnamed, f.name)
			}
			return true
		})
		if len(left) > 0 {
			ways, _ := c.known(t)
			return fmt.Sprintf("%s: not found: %v", left[0].name, ways)
		}
		return ""
	})
}

// known returns what both ends conclude together about all paths, "state cause" by "from to family", and what each
// reports alone.
func (c cluster) known(t *testing.T) (ways map[[3]string]string, alone map[string]*api.AgentReach) {
	t.Helper()
	ways, alone = map[[3]string]string{}, map[string]*api.AgentReach{}
	for _, node := range c.Nodes() {
		alone[node] = c.reach(t, node)
	}
	side := func(node, peer string) judge.Side {
		s := judge.Side{Node: node}
		for _, p := range alone[node].Paths {
			if p.Node == peer {
				s.Paths = append(s.Paths, p)
			}
		}
		return s
	}
	for i, a := range c.Nodes() {
		for _, b := range c.Nodes()[i+1:] {
			for _, w := range judge.Join(side(a, b), side(b, a)) {
				ways[[3]string{w.From, w.To, w.Family}] = strings.TrimSpace(fmt.Sprintf("%s %s", w.Is, w.Cause))
			}
		}
	}
	return ways, alone
}

// findsOut returns how a fault is named, once it is in all directions and families, and whether rightly; empty before.
// A wrong cause, and a report about a path without a fault, fail the test.
func (c cluster) findsOut(t *testing.T, all []faulty, f faulty) (how string, right bool) {
	t.Helper()
	ways, alone := c.known(t)
	for w, is := range ways {
		state, cause, _ := strings.Cut(is, " ")
		if slices.Contains([]string{"fails", "narrow", "lossy"}, state) && !may(all, w, cause) {
			t.Errorf("from %s to %s in %s: %q is known", w[0], w[1], w[2], is)
		}
	}
	for node, r := range alone {
		for _, found := range r.Findings {
			if !mayAlone(all, node, found) {
				t.Errorf("%s reports %s of %s in %s: %s", node, found.Cause, found.Node, found.Family, found.Text)
			}
		}
	}
	named, right := map[string]bool{}, true
	for _, family := range []string{"IPv4", "IPv6"} {
		for way, want := range map[[3]string]string{{f.from, f.to, family}: f.there, {f.to, f.from, family}: f.back} {
			if want == "works" || f.family != "" && f.family != family {
				want = "works"
			}
			state, _, _ := strings.Cut(want, " ")
			if got, _, _ := strings.Cut(ways[way], " "); got != state {
				return "", false
			}
			if want != "works" {
				right = right && ways[way] == want
				named[fmt.Sprintf("%s (right: %s)", ways[way], want)] = true
			}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(named)), "; "), right
}

// may reports whether a path may be reported as failing for that cause.
func may(all []faulty, way [3]string, cause string) bool {
	return slices.ContainsFunc(all, func(f faulty) bool {
		right := map[[2]string]string{{f.from, f.to}: f.there, {f.to, f.from}: f.back}[[2]string{way[0], way[1]}]
		_, named, fails := strings.Cut(right, " ")
		known := cause == named || cause == "not-found" || named == "cut-off" && slices.Contains(f.alone, cause) ||
			named == "address" && cause == "source" || // until both ends know
			named == "multipath" && (cause == "lossy" || cause == "between") // several in a row may be lost
		return fails && (f.family == "" || f.family == way[2]) && known
	})
}

// mayAlone reports whether a node may report that about its path to another.
func mayAlone(all []faulty, node string, found api.ReachFinding) bool {
	return slices.ContainsFunc(all, func(f faulty) bool {
		pair := f.from == node && f.to == found.Node || f.to == node && f.from == found.Node
		return pair && (f.family == "" || f.family == found.Family) &&
			(found.Cause == "not-found" || slices.Contains(f.alone, found.Cause))
	})
}

// configure kills a node's agent, and starts it with another config.
func (c cluster) configure(t *testing.T, node, edit string) {
	t.Helper()
	must(t, 0, c.AgentKill(labtest.Within(t, 20*time.Second), node)) // SIGTERM would announce that it leaves
	c.sh(t, node, fmt.Sprintf("sed -i '%s' /etc/fairlead/agent.conf", edit))
	must(t, 0, c.AgentStart(labtest.Within(t, 10*time.Second), node))
	must(t, 0, c.WaitReady(labtest.Within(t, 30*time.Second), node))
}

// differentTunnel gives one node a tunnel of another type, on the same port.
func (c *causes) differentTunnel(t *testing.T) {
	c.configure(t, "node4", `$atunnelType: vxlan\ntunnelPort: 6081`)
	var at []faulty
	for _, other := range []string{"node1", "node3"} {
		at = append(at, faulty{name: "the tunnel of node4 differs from " + other + "'s",
			from: other, to: "node4", there: "fails tunnel-differs", back: "fails tunnel-differs", alone: []string{"dropped"}})
	}
	c.found(t, at)
	c.configure(t, "node4", "/^tunnelType/d; /^tunnelPort/d")
	c.allReached(t, "node4 has the others' tunnel again")
}

// nodeFaults are faults of one node's paths to several others.
func (c *causes) nodeFaults(t *testing.T) {
	underlayToo := []string{"underlay", "route"}
	var routeless []faulty
	for _, other := range []string{"node1", "node3"} {
		routeless = append(routeless, faulty{name: "node2 has a wrong route to " + other, at: "node2", begin: "true", end: "true",
			from: "node2", to: other, there: "fails route", back: "works", alone: underlayToo})
	}
	routeless[0].begin = "ip route replace default via 192.168.78.250"
	routeless[0].end = "ip route replace default via 192.168.78.1"
	c.named(t, routeless...)
	c.cutOff(t, "the cable is out", "ip link set node4 down", "ip link set node4 up")
	// The gateway does not answer either, so the fault is reported as soon.
	c.cutOff(t, "the switch port passes nothing", "ip link set node4 nomaster", "ip link set node4 master br1")
	t.Run("a wrong address", func(t *testing.T) { c.wrongAddress(t) })
}

// cutOff drops all packets between node4 and the others.
func (c *causes) cutOff(t *testing.T, why, begin, end string) {
	var at []faulty
	for _, other := range []string{"node1", "node2", "node3"} {
		at = append(at, faulty{name: "node4 is cut off from " + other + ", " + why, at: underlay.Hub, begin: "true", end: "true",
			from: other, to: "node4", there: "fails cut-off", back: "fails cut-off", alone: []string{"cut-off", "underlay", "route"}})
	}
	at[0].begin, at[0].end = begin, end
	c.named(t, at...)
}

// wrongAddress gives a Node an address that no node has.
func (c *causes) wrongAddress(t *testing.T) {
	address := func(v4 string) {
		c.apply(t, nodeYAML("node4", "10.77.4.0/24,fd77:0:0:4::/64", v4+",fd78::14"))
	}
	address("192.168.78.99")
	var at []faulty
	for _, other := range []string{"node1", "node2", "node3"} {
		at = append(at, faulty{name: "node4 has another address than its Node, " + other,
			from: other, to: "node4", there: "fails address", back: "fails address", alone: []string{"underlay", "source", "address"}})
	}
	at[1].family, at[1].back = "IPv4", "works" // the path is direct, and the IPv6 address is right
	c.found(t, at)
	address("192.168.78.14")
	c.allReached(t, "the Node has its node's address")
}

// withoutEncapsulation has pods' packets routed, between the subnets by a router with routes to the podCIDRs.
func (c *causes) withoutEncapsulation(t *testing.T) {
	for _, node := range c.Nodes() {
		c.configure(t, node, "s/hybrid/noEncap/")
	}
	c.allReached(t, "without encapsulation")
	var at []faulty
	for _, other := range []string{"node1", "node3"} {
		at = append(at, faulty{name: "the router has no route to node2, " + other, at: underlay.Outside, begin: "true", end: "true",
			from: other, to: "node2", there: "fails between", back: "works", family: "IPv4"})
	}
	at[0].begin, at[0].end = "ip route del 10.77.2.0/24", "ip route add 10.77.2.0/24 via 192.168.78.12"
	c.named(t, at...)
	// A node that is down behind a router is no path fault; this is checked for longer than a node takes to be not
	// ready.
	must(t, 0, c.AgentKill(labtest.Within(t, 10*time.Second), "node4"))
	c.sh(t, underlay.Hub, "ip link set node4 down")
	c.setReady(t, "node4", corev1.ConditionFalse)
	for _, node := range c.Nodes()[:3] {
		c.neverBroken(t, node, 3*time.Second)
	}
}
