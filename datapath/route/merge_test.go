package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// One route for many peers, also across the node's own range; none for the own range alone, and none that covers more
// than was requested.
func TestMerged(t *testing.T) {
	prefixes := func(list string) (out []netip.Prefix) {
		for s := range strings.FieldsSeq(list) {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	for _, c := range []struct{ own, peers, want string }{
		{"10.0.1.0/24", "10.0.0.0/24 10.0.2.0/24 10.0.3.0/24 10.0.4.0/24", "10.0.0.0/22 10.0.4.0/24"},
		{"10.0.1.0/24", "10.0.2.0/24", "10.0.2.0/24"},
		{"10.0.0.0/23", "10.9.0.0/24", "10.9.0.0/24"},
		{"10.0.1.0/24 fd00:0:0:1::/64", "10.0.0.0/24 fd00::/64 fd00:0:0:2::/64 fd00:0:0:3::/64", "10.0.0.0/23 fd00::/62"},
		{"", "10.0.0.0/24 10.0.1.0/24", "10.0.0.0/23"},
		{"10.0.1.0/24", "", ""},
		{"10.0.0.0/24 10.0.1.0/24", "10.9.0.0/24", "10.9.0.0/24"},
	} {
		d := Desired{Own: prefixes(c.own)}
		for _, p := range prefixes(c.peers) {
			d.Routes = append(d.Routes, Route{Dst: p})
		}
		var got []netip.Prefix
		for _, r := range d.merge() {
			got = append(got, r.Dst)
		}
		slices.SortFunc(got, netip.Prefix.Compare)
		if text := strings.Trim(fmt.Sprint(got), "[]"); text != c.want {
			t.Errorf("own %s, peers %s: %s, want %s", c.own, c.peers, text, c.want)
		}
	}
	via := netip.MustParseAddr("192.0.2.1")
	src := netip.MustParseAddr("10.0.9.1")
	d := Desired{Routes: []Route{{Dst: netip.MustParsePrefix("10.0.0.0/24")},
		{Dst: netip.MustParsePrefix("10.0.1.0/24"), Via: via}, {Dst: netip.MustParsePrefix("10.0.2.0/24"), MTU: 1400},
		{Dst: netip.MustParsePrefix("10.0.3.0/24"), Src: src}}}
	if got := d.merge(); len(got) != 4 {
		t.Errorf("routes that are not alike became %v", got)
	}
}

// If another program has a route to all or part of what a merged route covers, the merge is undone into one route per
// peer, also for a peer that is merged with the own range alone.
func TestUnmerged(t *testing.T) {
	for _, c := range []struct{ peers, others, want string }{
		{"10.0.0.0/24", "10.0.0.0/16", "10.0.0.0/23"},
		{"10.0.0.0/24", "10.0.0.0/23", "10.0.0.0/24"},
		{"10.0.0.0/24", "10.0.1.128/25", "10.0.0.0/24"},
		{"10.0.0.0/24 10.0.2.0/23", "10.9.0.0/16", "10.0.0.0/22"},
		{"10.0.0.0/24 10.0.2.0/23", "10.0.2.0/24", "10.0.0.0/24 10.0.2.0/23"},
	} {
		d, others := Desired{Own: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}, taken{}
		for p := range strings.FieldsSeq(c.peers) {
			d.Routes = append(d.Routes, Route{Dst: netip.MustParsePrefix(p)})
		}
		others[netip.MustParsePrefix(c.others)] = netlink.Route{}
		var got []netip.Prefix
		for _, r := range unmerged(d.merge(), others) {
			got = append(got, r.Dst)
		}
		slices.SortFunc(got, netip.Prefix.Compare)
		if text := strings.Trim(fmt.Sprint(got), "[]"); text != c.want {
			t.Errorf("peers %s, others %s: %s, want %s", c.peers, c.others, text, c.want)
		}
	}
}
