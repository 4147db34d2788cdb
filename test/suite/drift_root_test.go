package suite

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// External changes are reverted within 30 s: the agent resyncs every 15 s. One node per kind of change, so that one
// wait covers all and no repair hides a missing one.
func TestRootDriftIsRepaired(t *testing.T) {
	ovstest.UserspaceOnly(t, "its nodes are too many for a guest's one processor; external changes are among the random faults")
	t.Parallel()
	c := up(t, lab.Options{Nodes: 7, ProductIntervals: true})
	c.addPods(t, "a@node1", "b@node1", "c@node2", "d@node3", "e@node4", "f@node5", "g@node6", "h@node7")
	c.warm(t)
	var before []string
	for _, node := range c.Nodes() {
		before = append(before, c.picture(t, node))
	}
	kinds := c.damage(t)
	start, waited := time.Now(), c.waited(t)
	for i, node := range c.Nodes() {
		wait(t, max(30*time.Second-time.Since(start), time.Second), func() string {
			if now := c.picture(t, node); now != before[i] {
				return fmt.Sprintf("%s differs from before the damage:\n%s", node, difference(before[i], now))
			}
			return ""
		})
		took := c.repaired(t, node, start)
		t.Logf("%s: repaired %s after the damage", node, took.Round(time.Second))
		if took > 30*time.Second+c.waited(t)-waited {
			t.Errorf("%s: repaired only after %s", node, took)
		}
		for _, kind := range kinds[i] {
			wait(t, 5*time.Second, func() string { return c.uncounted(t, node, kind) }) // counted after the repair
		}
	}
	all := []place{c.pod(t, "a"), c.pod(t, "c"), c.pod(t, "d"), c.pod(t, "e"), c.pod(t, "f"),
		c.pod(t, "g"), c.pod(t, "h")}
	for i := range all[0].ips {
		for n, p := range all {
			reach(t, p, all[(n+1)%len(all)].ips[i])
			reach(t, p, c.family.FarAddrs()[i].Addr())
			reach(t, c.host(t, p.host.Name), all[(n+1)%len(all)].ips[i])
		}
		reach(t, all[0], c.pod(t, "b").ips[i])
	}
}

// repaired is the time from the damage to the last repair on a node so far, by its agent's log: a test that polls one
// node after the other sees it late.
func (c cluster) repaired(t *testing.T, node string, damaged time.Time) (after time.Duration) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^I(\d{4} [\d:.]+) .*"reverted external change" `)
	for _, m := range line.FindAllStringSubmatch(c.log(t, node), -1) {
		at, err := time.ParseInLocation("2006 0102 15:04:05.000000", fmt.Sprint(damaged.Year(), " ", m[1]), time.Local)
		must(t, 0, err)
		after = max(after, at.Sub(damaged))
	}
	return after
}

// uncounted returns what is missing in the agent's report of such a repair: in a metric and in the log.
func (c cluster) uncounted(t *testing.T, node, kind string) string {
	t.Helper()
	metrics, name := c.metrics(t, node), `fairlead_drift_repaired_total{kind="`+kind+`"}`
	if !strings.Contains(metrics, name) || strings.Contains(metrics, name+" 0\n") {
		return fmt.Sprintf("%s: no repair of kind %s is counted", node, kind)
	}
	line := regexp.MustCompile(`"reverted external change" .*kind="` + kind + `" changes="`)
	if !line.MatchString(c.log(t, node)) {
		return fmt.Sprintf("%s: the log does not report the repair of kind %s", node, kind)
	}
	return ""
}

// damage changes each node in its own ways, and returns the kinds of changes by node.
func (c cluster) damage(t *testing.T) (kinds [][]string) {
	t.Helper()
	host := func(pod string) string {
		rec, err := c.Records().Load("default/" + pod)
		must(t, 0, err)
		return link.HostName(rec.ContainerID, "eth0")
	}
	for i, d := range []struct {
		kinds  string
		damage []string
	}{
		{"flows", damagedFlows(c.flows(t, "node1"))},
		{"gateway forwarding", []string{
			"ip addr del 10.77.2.1/24 dev fairlead-gw0", "ip addr del fd77:0:0:2::1/64 dev fairlead-gw0",
			"ip addr add 10.9.9.9/24 dev fairlead-gw0",
			"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv6.conf.all.forwarding=0",
			"sysctl -qw net.ipv4.conf.fairlead-gw0.rp_filter=1"}},
		{"routes veth", []string{
			"ip route del 10.77.1.0/24", "ip -6 route del fd77:0:0:1::/64", "ip neigh flush nud permanent",
			"ip route add 10.9.9.0/24 dev fairlead-gw0 proto 102",
			"ip link set " + host("d") + " down"}},
		{"iptables", []string{
			"iptables -w -t nat -F FAIRLEAD-POSTROUTING", "iptables -w -t nat -D POSTROUTING -j FAIRLEAD-POSTROUTING",
			"iptables -w -t nat -X FAIRLEAD-POSTROUTING",
			"ip6tables -w -t nat -F FAIRLEAD-POSTROUTING", "iptables -w -F FAIRLEAD-FORWARD",
			"iptables -w -t mangle -F FAIRLEAD-FORWARD", "ip6tables -w -t mangle -D POSTROUTING -j FAIRLEAD-POSTROUTING"}},
		{"gateway ovsdb", []string{
			"ip link set fairlead-gw0 down", "ip link set fairlead-gw0 mtu 1300",
			"ip link set fairlead-gw0 address 02:00:00:00:00:77",
			"sysctl -qw net.ipv4.conf.fairlead-gw0.forwarding=0",
			"ovs-vsctl set Bridge br-int fail_mode=standalone", "ovs-vsctl clear Bridge br-int external_ids",
			"ovs-vsctl clear Port " + host("f") + " external_ids",
			"ovs-vsctl set Interface fairlead-tun0 options:remote_ip=192.0.2.1"}},
		// ovs-vswitchd flushes flows for a new controller, unless the agent removes it before ovs-vswitchd sees it.
		{"flows ovsdb", []string{"ovs-vsctl set-controller br-int tcp:127.0.0.1:9", "ovs-ofctl del-flows br-int"}},
		{"veth", []string{"ip link add theirs type bridge", "ip link set " + host("h") + " master theirs"}},
	} {
		node := c.host(t, c.Nodes()[i])
		for _, line := range d.damage {
			if _, err := node.run(strings.Fields(line)...); err != nil {
				t.Log(err) // the kernel's datapath refuses a port in a second bridge
			}
		}
		kinds = append(kinds, strings.Fields(d.kinds))
	}
	return kinds
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
		damage = append(damage, "false") // nothing would be tested
	}
	return damage
}

// picture is all that the agent reconciles on a node, without what changes by itself.
func (c cluster) picture(t *testing.T, node string) string {
	t.Helper()
	h := c.host(t, node)
	// The link of the probed end is recreated when its MTU changes.
	ends := regexp.MustCompile(`(?m:^\d+: (\S+)@if\d+(: .*)link/ether \S+( .* link-netns fairlead-reach))`)
	var lines []string
	for _, cmd := range []string{
		"ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-int",
		"ip -o addr show dev fairlead-gw0", "ip -o link show dev fairlead-gw0",
		"ip -4 route show dev fairlead-gw0", "ip -6 route show dev fairlead-gw0",
		"ip neigh show nud permanent dev fairlead-gw0",
		"ovs-vsctl --columns=name,fail_mode,datapath_type,protocols,external_ids,controller list Bridge br-int",
		"ovs-vsctl --columns=name,external_ids list Port", "ip -o link show group 26220",
		"ovs-vsctl --columns=name,type,mac,mtu_request,options,ofport list Interface",
		"sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.fairlead-gw0",
		"iptables -w -t nat -S", "ip6tables -w -t nat -S", "iptables -w -S", "ip6tables -w -S",
	} {
		out := h.exec(t, cmd)
		out = regexp.MustCompile(`(valid_lft|expires) \S+( preferred_lft \S+)?| state \w+| tentative|qlen \d+|(?m:^.*priority=65535,pkt_mark=.*\n?)`).ReplaceAllString(out, "")
		out = ends.ReplaceAllString(out, "$1$2$3")
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
