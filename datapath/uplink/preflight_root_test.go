package uplink

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
)

// What the kernel reports about real interfaces is parsed, and a refused attach changes nothing.
func TestRootPreflight(t *testing.T) {
	f := setup(t, simple)
	look := func() (r preflight.Report) {
		t.Helper()
		u := f.open()
		f.node.Must(func() (err error) { r, err = u.Preflight(context.Background(), f.plan()); return err })
		return r
	}
	r := look()
	if len(r.Refused) > 0 {
		t.Fatalf("refused: %q", r.Refused)
	}
	for _, want := range []string{"192.0.2.11", "fd00::11", "via 192.0.2.1", "via fd00::1"} {
		if !strings.Contains(strings.Join(r.Moves, "\n"), want) {
			t.Errorf("it would not move %s: %q", want, r.Moves)
		}
	}
	for _, c := range []struct{ do, undo, want string }{
		{"addr change 192.0.2.11/24 dev eth0 valid_lft 3600 preferred_lft 3600",
			"addr change 192.0.2.11/24 dev eth0 valid_lft forever preferred_lft forever", "a DHCP client renews it"},
		{"-6 addr add fd00::99/64 dev eth0 nodad valid_lft 3600 preferred_lft 3600", "-6 addr del fd00::99/64 dev eth0",
			"not by the kernel"},
		{"-6 addr add fd00::99/64 dev eth0 nodad mngtmpaddr valid_lft 3600 preferred_lft 3600",
			"-6 addr del fd00::99/64 dev eth0", "not derived from the MAC"},
		{"link add mv0 link eth0 type macvlan", "link del mv0", "macvlan interface mv0"},
		{"link add br0 type bridge", "", ""},
		{"link set eth0 master br0", "link set eth0 nomaster", "Linux bridge br0"},
		{"link add br-uplink type bridge", "link del br-uplink", "an interface br-uplink"},
		{"nexthop add id 7 via 192.0.2.2 dev eth0", "", ""},
		{"route add 10.9.0.0/16 nhid 7", "route del 10.9.0.0/16", "nexthop object"},
	} {
		if f.node.IP(c.do); strings.HasPrefix(c.do, "-6 addr add") {
			f.settle()
		}
		r := look()
		if (c.want == "") != (len(r.Refused) == 0) || !strings.Contains(strings.Join(r.Refused, "\n"), c.want) {
			t.Errorf("ip %s: refused %q, want %q", c.do, r.Refused, c.want)
		}
		before := f.state()
		if c.want != "" {
			refused := (*preflight.RefusedError)(nil)
			if err := f.attach(); !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ip %s: attach says %v", c.do, err)
			}
			same(t, "refused "+c.do, before, f.state())
		}
		if c.undo != "" {
			f.node.IP(c.undo)
		}
	}
	f.ovs.Ctl("add-port", "br-int", nic)
	if r := look(); !strings.Contains(strings.Join(r.Refused, "\n"), "bridge br-int: remove it") {
		t.Errorf("a port of br-int: refused %q", r.Refused)
	}
}
