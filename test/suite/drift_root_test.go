package suite

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// What somebody changes by hand is put right within 30 s: the agent looks every 15 s. One node per kind of damage, so
// that one wait serves all and no repair hides another's absence.
func TestRootDriftIsRepaired(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 5})
	c.addPods(t, "a@node1", "b@node1", "c@node2", "d@node3", "e@node4", "f@node5")
	c.warm(t)
	var before, damaged []string
	for _, node := range c.Nodes() {
		before = append(before, c.picture(t, node))
	}
	for i, damage := range [][]string{
		damagedFlows(c.flows(t, "node1")),
		{"ip addr del 10.77.2.1/24 dev fairlead-gw0", "ip addr del fd77:0:0:2::1/64 dev fairlead-gw0",
			"ip addr add 10.9.9.9/24 dev fairlead-gw0"},
		{"ip route del 10.77.1.0/24", "ip -6 route del fd77:0:0:1::/64", "ip neigh flush nud permanent",
			"ip route add 10.9.9.0/24 dev fairlead-gw0 proto 102"},
		{"iptables -w -t nat -F FAIRLEAD-POSTROUTING", "iptables -w -t nat -D POSTROUTING -j FAIRLEAD-POSTROUTING",
			"ip6tables -w -t nat -F FAIRLEAD-POSTROUTING", "iptables -w -F FAIRLEAD-FORWARD"},
		{"ip link set fairlead-gw0 down", "ip link set fairlead-gw0 mtu 1300"},
	} {
		node := c.host(t, c.Nodes()[i])
		for _, line := range damage {
			node.exec(t, line)
		}
	}
	start := time.Now()
	for i, node := range c.Nodes() {
		damaged = append(damaged, c.picture(t, node))
		if damaged[i] == before[i] {
			t.Errorf("%s has not been damaged", node) // or the agent was faster, which it is not
		}
	}
	for i, node := range c.Nodes() {
		wait(t, max(30*time.Second-time.Since(start), time.Second), func() string {
			if now := c.picture(t, node); now != before[i] {
				return fmt.Sprintf("%s differs from before the damage:\n%s", node, difference(before[i], now))
			}
			return ""
		})
		t.Logf("%s: repaired %s after the damage", node, time.Since(start).Round(time.Second))
	}
	all := []place{c.pod(t, "a"), c.pod(t, "c"), c.pod(t, "d"), c.pod(t, "e"), c.pod(t, "f")}
	for i := range all[0].ips {
		for n, p := range all {
			reach(t, p, all[(n+1)%len(all)].ips[i])
			reach(t, p, c.family.FarAddrs()[i].Addr())
			reach(t, c.host(t, p.host.Name), all[(n+1)%len(all)].ips[i])
		}
		reach(t, all[0], c.pod(t, "b").ips[i])
	}
}

// damagedFlows adds a flow, deletes those of one address and makes another drop.
func damagedFlows(flows string) []string {
	const ofctl = "ovs-ofctl -O OpenFlow15 "
	damage := []string{
		ofctl + "add-flow br-int table=0,priority=65000,ip,nw_src=198.51.100.1,actions=drop",
		ofctl + "add-flow br-int table=7,priority=1,actions=drop",
		ofctl + "del-flows br-int table=3,ip,nw_dst=10.77.1.3",
		ofctl + "mod-flows br-int table=3,ip,nw_dst=10.77.1.2,actions=drop",
		ofctl + "mod-flows br-int table=3,ipv6,actions=drop",
	}
	if !strings.Contains(flows, "nw_dst=10.77.1.3") {
		damage = append(damage, "false") // the test would not be one
	}
	return damage
}

// picture is all that the agent keeps in order on a node, without what changes by itself.
func (c cluster) picture(t *testing.T, node string) string {
	t.Helper()
	h := c.host(t, node)
	var lines []string
	for _, cmd := range []string{
		"ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-int",
		"ip -o addr show dev fairlead-gw0", "ip -o link show dev fairlead-gw0",
		"ip -4 route show dev fairlead-gw0", "ip -6 route show dev fairlead-gw0",
		"ip neigh show nud permanent dev fairlead-gw0",
		"iptables -w -t nat -S", "ip6tables -w -t nat -S", "iptables -w -S", "ip6tables -w -S",
	} {
		out := h.exec(t, cmd)
		out = regexp.MustCompile(`(valid_lft|expires) \S+( preferred_lft \S+)?| state \w+| tentative|qlen \d+`).ReplaceAllString(out, "")
		lines = append(lines, sorted(out)...)
	}
	return strings.Join(lines, "")
}

// difference is the lines that only one of two texts has.
func difference(before, now string) string {
	var out []string
	a, b := slices.Collect(strings.Lines(before)), slices.Collect(strings.Lines(now))
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out, "")
}
