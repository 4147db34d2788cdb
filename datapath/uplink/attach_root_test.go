package uplink

import (
	"strings"
	"testing"
)

// There and back.
func TestRootAttachAndRestore(t *testing.T) {
	f := setup(t, simple)
	before := f.state()
	f.reached()
	if err := f.attach(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	attached := f.state()
	if err := f.attach(); err != nil {
		t.Fatal(err)
	}
	same(t, "attached twice", attached, f.state())
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	same(t, "restored", before, f.state())
}

// Whatever a NIC can have moves to br-uplink and back.
func TestRootEverythingMoves(t *testing.T) {
	f := setup(t, rich)
	before := f.state()
	if err := f.attach(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	for _, table := range []string{"ip -4 route show table all dev eth0", "ip -6 route show table all dev eth0", "ip -o addr show dev eth0"} {
		if out := f.node.Exec(strings.Fields(table)...); strings.TrimSpace(out) != "" {
			t.Errorf("%s:\n%s", table, out)
		}
	}
	if testing.Verbose() {
		t.Log(f.describe())
	}
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	same(t, "restored", before, f.state())
}

// rich is one of everything.
const rich = simple + `
link property add dev eth0 altname enp1s0-an-alternative-name
link add eth1 type veth peer name far1
link set eth1 up
link set far1 up
addr add 192.0.2.21/24 dev eth1 metric 500
-6 addr add fd00::21/64 dev eth1 nodad metric 500
addr add 192.0.2.12/24 dev eth0 label eth0:vip
addr add 198.51.100.1 peer 198.51.100.2/32 dev eth0 scope link
addr add 203.0.113.5/24 dev eth0 metric 77 noprefixroute
-6 addr add fd00::12/64 dev eth0 nodad home noprefixroute
-6 addr add fd00:1::ff:fe00:11/64 dev eth0 nodad mngtmpaddr valid_lft 5000 preferred_lft 4000
route add 10.1.0.0/16 via 192.0.2.2 dev eth0 mtu lock 1400 advmss 1300 initcwnd 20 realm 3
route add 10.2.0.0/16 nexthop via 192.0.2.2 dev eth0 weight 3 nexthop via 192.0.2.22 dev eth1 weight 1
route add 10.3.0.0/16 via 169.254.9.9 dev eth0 onlink table 200
route add 10.4.0.0/16 dev eth0 tos 0x10 scope link table 1000
route append 10.6.0.0/16 dev eth1
route append 10.6.0.0/16 dev eth0
-6 route add fd01::/64 via fd00::2 dev eth0 mtu 1400 expires 5000
-6 route add fd02::/64 nexthop via fd00::2 dev eth0 weight 2 nexthop via fd00::22 dev eth1
-6 route add fd03::/64 dev eth0 table 200
rule add from 192.0.2.12 lookup 200 priority 100
rule add iif eth0 fwmark 0x1/0xff lookup 200 priority 101
rule add oif eth0 to 10.3.0.0/16 lookup 1000 priority 102
-6 rule add iif eth0 lookup 200 priority 101
neigh add 192.0.2.99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent
neigh add proxy 192.0.2.98 dev eth0
-6 neigh add fd00::99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent`
