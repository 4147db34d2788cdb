package apply

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// The host's appliers look only in a round that verifies. What they then have to do reverts an external change, but
// after a round that failed, whose own half may be missing.
func TestRootHostIsVerified(t *testing.T) {
	ns := nstest.New(t)
	ns.IP("tuntap add dev gw0 mode tap")
	cidr := netip.MustParsePrefix("10.77.1.0/24")
	want := desired.State{
		Gateway: link.GatewayLink{Name: "gw0", MAC: api.MAC{2, 0, 0, 0, 1, 1}, MTU: 1410,
			Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.1.1/24")}},
		NAT: nat.Desired{PodCIDRs: []netip.Prefix{cidr}},
		Routes: route.Desired{Link: "gw0", Own: []netip.Prefix{cidr}, Routes: []route.Route{
			{Dst: netip.MustParsePrefix("10.77.2.0/24"), Src: netip.MustParseAddr("10.77.1.1")}}},
	}
	for _, c := range []struct {
		applier Applier
		drift   func()
	}{
		{&Gateway{}, func() { ns.IP("link set gw0 mtu 1500") }},
		{&Forwarding{}, func() { ns.Exec("sysctl", "-qw", "net.ipv4.ip_forward=0") }},
		{&Routes{}, func() { ns.IP("route del 10.77.2.0/24") }},
	} {
		round := func(when string, verify, settled bool, wanted, repaired int) {
			t.Helper()
			var got Changes
			ns.Must(func() (err error) {
				got, err = c.applier.Apply(t.Context(), &Round{Want: want, Verify: verify, Settled: settled})
				return err
			})
			if (len(got.Wanted) > 0) != (wanted > 0) || (len(got.Repaired) > 0) != (repaired > 0) {
				t.Errorf("%s, %s: wanted %q, repaired %q", c.applier.Name(), when, got.Wanted, got.Repaired)
			}
		}
		round("for the first time", false, true, 1, 0)
		round("again", true, true, 0, 0)
		c.drift()
		round("not verified", false, true, 0, 0)
		round("verified", true, true, 0, 1)
		c.drift()
		round("after a round that failed", true, false, 1, 0)
	}
}

// What is wanted again after a round that failed half-way is put in place, though it was so before that round.
func TestRootHostAfterHalfARound(t *testing.T) {
	ns := nstest.New(t)
	ns.IP("tuntap add dev gw0 mode tap")
	ns.IP("route add unreachable 10.77.4.0/24") // of somebody else
	addr, own := netip.MustParsePrefix("10.77.1.1/24"), netip.MustParsePrefix("10.77.1.0/24")
	gateway := link.GatewayLink{Name: "gw0", MAC: api.MAC{2, 0, 0, 0, 1, 1}, MTU: 1410, Addrs: []netip.Prefix{addr}}
	routes := func(to ...string) (d route.Desired) {
		d = route.Desired{Link: "gw0", Own: []netip.Prefix{own}}
		for _, dst := range to {
			d.Routes = append(d.Routes, route.Route{Dst: netip.MustParsePrefix(dst), Src: addr.Addr()})
		}
		return d
	}
	before := desired.State{Gateway: gateway, Routes: routes("10.77.2.0/24")}
	// The gateway cannot have an address of multicast, and one route is in the way of another.
	fails := desired.State{Gateway: gateway, Routes: routes("10.77.3.0/24", "10.77.4.0/24")}
	fails.Gateway.MTU, fails.Gateway.Addrs = 1400, []netip.Prefix{addr, netip.MustParsePrefix("ff02::5/64")}
	for _, c := range []struct {
		applier    Applier
		show, want string
	}{
		{&Gateway{}, "link show gw0", "mtu 1410"},
		{&Routes{}, "route show proto 102", "10.77.2.0/24"},
	} {
		apply := func(want desired.State) (err error) {
			ns.Must(func() error {
				_, err = c.applier.Apply(t.Context(), &Round{Want: want, Settled: true})
				return nil
			})
			return err
		}
		if err := apply(before); err != nil {
			t.Fatal(err)
		}
		if err := apply(fails); err == nil || strings.Contains(ns.IP(c.show), c.want) {
			t.Fatalf("%s: half a round: %v\n%s", c.applier.Name(), err, ns.IP(c.show))
		}
		if err := apply(before); err != nil || !strings.Contains(ns.IP(c.show), c.want) {
			t.Errorf("%s: after half a round: %v\n%s", c.applier.Name(), err, ns.IP(c.show))
		}
	}
}
