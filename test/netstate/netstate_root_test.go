package netstate

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// rich configures eth0 of a new namespace with one item of every kind.
func rich(t *testing.T) *nstest.NS {
	t.Helper()
	n, out := nstest.New(t), nstest.New(t)
	nstest.Veth(n, "eth0", out, "far0")
	nstest.Veth(n, "eth1", out, "far1")
	configure(n, `link property add dev eth0 altname enp1s0-an-alternative-name
addr add 192.0.2.11/24 brd + dev eth0
addr add 192.0.2.12/24 dev eth0 label eth0:vip
addr add 198.51.100.1 peer 198.51.100.2/32 dev eth0 scope link
addr add 203.0.113.5/24 dev eth0 metric 77 noprefixroute
addr add 203.0.113.6/28 dev eth0 valid_lft 5000 preferred_lft 4000
addr add 192.0.2.21/24 dev eth1
-6 addr add fd00::11/64 dev eth0 nodad
-6 addr add fd00::12/64 dev eth0 nodad home noprefixroute
-6 addr add fd00:1::11/64 dev eth0 nodad valid_lft 5000 preferred_lft 4000
-6 addr add fd00::21/64 dev eth1 nodad
route add default via 192.0.2.1 dev eth0 metric 50 src 192.0.2.12 proto static
route add 10.1.0.0/16 via 192.0.2.2 dev eth0 mtu lock 1400 advmss 1300 initcwnd 20 realm 3
route add 10.2.0.0/16 nexthop via 192.0.2.2 dev eth0 weight 3 nexthop via 192.0.2.22 dev eth1 weight 1
route add 10.3.0.0/16 via 169.254.9.9 dev eth0 onlink table 200
route add 10.4.0.0/16 dev eth0 tos 0x10 scope link table 1000
route add unreachable 10.5.0.0/16
-6 route add default via fe80::1 dev eth0 metric 30 pref high proto static
-6 route add fd01::/64 via fd00::2 dev eth0 mtu 1400 expires 5000
-6 route add fd02::/64 nexthop via fd00::2 dev eth0 weight 2 nexthop via fd00::22 dev eth1
-6 route add fd03::/64 dev eth0 table 200
rule add from 192.0.2.12 lookup 200 priority 100
rule add iif eth0 fwmark 0x1/0xff lookup 200 priority 101
rule add oif eth0 to 10.3.0.0/16 lookup 1000 priority 102
-6 rule add iif eth0 lookup 200 priority 101
neigh add 192.0.2.99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent
neigh add proxy 192.0.2.98 dev eth0
-6 neigh add fd00::99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent`)
	n.Exec("sysctl", "-q", "-w", "net.ipv4.conf.eth0.rp_filter=2", "net.ipv6.conf.eth0.accept_ra=0",
		"net.ipv4.neigh.eth0.gc_stale_time=99")
	nstest.Wait(t, time.Minute, "duplicate address detection", func() bool {
		return !strings.Contains(n.IP("-6 addr show tentative"), "inet6")
	})
	return n
}

func configure(n *nstest.NS, lines string) {
	for line := range strings.Lines(lines) {
		n.IP(line)
	}
}

func readNode(n *nstest.NS) (node Node) {
	n.Must(func() (err error) { node, err = Read(); return err })
	return node
}

// Each change is detected, and so is its removal.
func TestRootDifferences(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	n := rich(t)
	before := readNode(n)
	for _, c := range []struct{ change, undo, what string }{
		{"link set eth0 promisc on", "link set eth0 promisc off", "promisc"},
		{"link set eth0 allmulticast on", "link set eth0 allmulticast off", "allmulti"},
		{"link set eth0 mtu 1499", "link set eth0 mtu 1500", "mtu"},
		{"link set eth1 alias x", "", "alias"},
		{"link set eth1 txqueuelen 99", "", "txqueuelen"},
		{"link set eth1 group 9", "link set eth1 group 0", "group"},
		{"link set eth1 address 02:00:00:00:00:77", "", "mac"},
		{"link property del dev eth0 altname enp1s0-an-alternative-name", "", "altname"},
		{"addr change 203.0.113.6/28 dev eth0 valid_lft 6000 preferred_lft 4000", "", "valid"},
		{"addr change 203.0.113.6/28 dev eth0 valid_lft 6000 preferred_lft 5500", "", "preferred"},
		{"addr change 203.0.113.6/28 dev eth0 valid_lft forever preferred_lft 5500", "", "forever"},
		{"-6 addr change fd00::12/64 dev eth0 nodad noprefixroute", "", "flag home"},
		{"-6 addr change fd00::12/64 dev eth0 nodad home", "", "flag noprefixroute"},
		{"addr add 192.0.2.50/24 dev eth0", "addr del 192.0.2.50/24 dev eth0", "another address"},
		{"addr add 192.0.2.51/25 dev eth1 scope host", "", "scope"},
		{"route replace default via 192.0.2.2 dev eth0 metric 50 src 192.0.2.12 proto static", "", "gateway"},
		{"route replace default via 192.0.2.2 dev eth0 metric 50 src 192.0.2.11 proto static", "", "source"},
		{"route replace default via 192.0.2.2 dev eth0 metric 50 src 192.0.2.11 proto boot", "", "protocol"},
		{"route add 10.1.0.0/16 via 192.0.2.2 dev eth0 metric 7", "", "metric"},
		{"route replace 10.1.0.0/16 via 192.0.2.2 dev eth0 mtu 1400 advmss 1300 initcwnd 20 realm 3", "", "lock"},
		{"route replace 10.1.0.0/16 via 192.0.2.2 dev eth0 mtu 1400 advmss 1300 initcwnd 20", "", "realm"},
		{"route replace 10.2.0.0/16 nexthop via 192.0.2.2 dev eth0 weight 3 nexthop via 192.0.2.22 dev eth1 weight 2", "", "weight"},
		{"route replace 10.3.0.0/16 via 192.0.2.9 dev eth0 table 200", "", "onlink"},
		{"route add 10.3.0.0/16 via 192.0.2.9 dev eth0 table 201", "", "table"},
		{"route del 10.4.0.0/16 dev eth0 tos 0x10 table 1000", "", "tos"},
		{"route del unreachable 10.5.0.0/16", "", "type"},
		{"-6 route replace default via fe80::1 dev eth0 metric 30 pref low proto static", "", "pref"},
		{"-6 route replace fd01::/64 via fd00::2 dev eth0 mtu 1400 expires 4000", "", "expires"},
		{"-6 route replace fd02::/64 nexthop via fd00::2 dev eth0 weight 1 nexthop via fd00::22 dev eth1", "", "weight of IPv6"},
		{"rule del priority 101", "rule add iif eth0 fwmark 0x1/0xff lookup 200 priority 101", "rule"},
		{"rule add iif eth0 fwmark 0x1/0xfe lookup 200 priority 101", "", "mask of a rule"},
		{"-6 rule del priority 101", "", "rule of IPv6"},
		{"neigh change 192.0.2.99 lladdr 02:00:00:00:00:98 dev eth0 nud permanent", "", "neighbour"},
		{"neigh del proxy 192.0.2.98 dev eth0", "", "proxy"},
		{"addr del 192.0.2.12/24 dev eth0", "", "missing address"},
		{"link set eth1 down", "", "down"},
	} {
		n.IP(c.change)
		after := readNode(n)
		if len(before.Differences(after)) == 0 {
			t.Errorf("%s: ip %s is not seen", c.what, c.change)
		}
		if c.undo == "" {
			before = after
			continue
		}
		n.IP(c.undo)
		if d := before.Differences(readNode(n)); len(d) > 0 && c.what != "mtu" {
			t.Errorf("%s: after ip %s there still is %q", c.what, c.undo, d)
		}
		before = readNode(n)
	}
	for _, s := range []string{"net.ipv4.conf.eth0.rp_filter=1", "net.ipv6.conf.eth0.accept_ra=2",
		"net.ipv6.conf.eth0.addr_gen_mode=1", "net.ipv4.neigh.eth0.gc_stale_time=98"} {
		n.Exec("sysctl", "-q", "-w", s)
		if after := readNode(n); len(before.Differences(after)) == 0 {
			t.Errorf("sysctl -w %s is not seen", s)
		} else {
			before = after
		}
	}
}

// Lifetimes that differ by a few seconds are alike, and no other part of a line is.
func TestAlike(t *testing.T) {
	for _, c := range []struct {
		a, b    string
		elapsed int
		want    bool
	}{
		{"address x valid=100s preferred=50s", "address x valid=81s preferred=31s", 0, true},
		{"address x valid=100s preferred=50s", "address x valid=79s preferred=50s", 0, false},
		{"address x valid=100s preferred=50s", "address y valid=100s preferred=50s", 0, false},
		{"address x valid=forever preferred=forever", "address x valid=100s preferred=50s", 0, false},
		{"address x", "address x valid=3s", 0, false},
		{"address x valid=100s", "address x valid=60s", 40, true},
		{"address x valid=100s", "address x valid=100s", 40, false},
	} {
		if alike(c.a, c.b, c.elapsed) != c.want || alike(c.b, c.a, -c.elapsed) != c.want {
			t.Errorf("%q and %q: want %v", c.a, c.b, c.want)
		}
	}
}
