package underlay

import (
	"net/netip"
	"slices"
	"testing"
)

// All addresses of the largest lab differ, and no podCIDR overlaps another or the underlay.
func TestAddressPlan(t *testing.T) {
	var nets []netip.Prefix
	addrs := map[netip.Addr]bool{}
	add := func(p netip.Prefix) {
		if addrs[p.Addr()] {
			t.Errorf("%s is given twice", p.Addr())
		}
		addrs[p.Addr()] = true
	}
	two := Network{Family: Dual, Subnets: 2}
	for _, p := range slices.Concat(Dual.GatewayAddrs(), Dual.FarAddrs(), Dual.GatewayAddrsIn(2)) {
		add(p)
		nets = append(nets, p.Masked())
	}
	for n := 1; n <= MaxNodes; n++ {
		for _, p := range Dual.NodeAddrs(n) {
			add(p)
			if !nets[0].Contains(p.Addr()) && !nets[1].Contains(p.Addr()) {
				t.Errorf("%s is not on the underlay", p)
			}
		}
		for i, p := range two.NodeAddrs(n) {
			if gw := Dual.GatewayAddrsIn(2 - n%2)[i]; !gw.Masked().Contains(p.Addr()) {
				t.Errorf("%s of node %d has not %s in its subnet", p, n, gw)
			}
		}
		for _, cidr := range Dual.PodCIDRs(n) {
			if cidr != cidr.Masked() {
				t.Errorf("%s has host bits", cidr)
			}
			for _, other := range nets {
				if cidr.Overlaps(other) {
					t.Errorf("%s overlaps %s", cidr, other)
				}
			}
			nets = append(nets, cidr)
		}
	}
}

func TestIPFamily(t *testing.T) {
	for f, want := range map[IPFamily][2]int{IPv4: {1, 0}, IPv6: {0, 1}, Dual: {1, 1}} {
		for _, list := range [][]netip.Prefix{f.NodeAddrs(1), f.PodCIDRs(1), f.GatewayAddrs(), f.FarAddrs()} {
			var got [2]int
			for _, p := range list {
				if p.Addr().Is4() {
					got[0]++
				} else {
					got[1]++
				}
			}
			if got != want {
				t.Errorf("%s: %v", f, list)
			}
		}
	}
}
