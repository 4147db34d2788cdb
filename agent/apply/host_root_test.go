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

// The host's appliers observe only in a round that verifies. A difference found then is an external change, except
// after a failed round, which may have done only half of its work.
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

// A state that is desired again after a round that failed half-way is applied, even if it was in place before that
// round.
func TestRootHostAfterHalfARound(t *testing.T) {
	ns := nstest.New(t)
	ns.IP("tuntap add dev gw0 mode tap")
	ns.IP("route add unreachable 10.77.4.0/24") // of another program
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
	// The gateway cannot have a multicast address, and one route conflicts with another.
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

// Routes into the tunnel are applied first if nothing else differs. A failure there is retried by Routes in the same
// round, and only Routes reports it.
func TestRootRoutesAhead(t *testing.T) {
	ns := nstest.New(t)
	nstest.Veth(ns, "eth0", nstest.New(t), "far")
	ns.IP("addr add 192.0.2.1/24 dev eth0")
	ns.IP("tuntap add dev gw0 mode tap")
	ns.IP("addr add 10.77.1.1/24 dev gw0")
	ns.IP("link set gw0 up")
	routes := &Routes{}
	gateway := &Gateway{}
	gateway.inPlace.record(link.GatewayLink{}, nil)
	ahead := routes.Ahead(gateway)
	tunnelled, direct := []string{"10.77.2.0/24"}, []string{}
	want := func() (d route.Desired) {
		d = route.Desired{Link: "gw0", Transport: "eth0", Own: []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}}
		for _, dst := range tunnelled {
			d.Routes = append(d.Routes, route.Route{Dst: netip.MustParsePrefix(dst), Src: netip.MustParseAddr("10.77.1.1")})
		}
		for _, dst := range direct {
			d.Routes = append(d.Routes, route.Route{Dst: netip.MustParsePrefix(dst), Via: netip.MustParseAddr("192.0.2.9")})
		}
		return d
	}
	round := func(when string, early, late bool, mend func()) {
		t.Helper()
		before, r := ns.IP("route show proto 102"), &Round{Want: desired.State{Routes: want()}, Settled: true}
		ns.Must(func() error {
			if c, err := ahead.Apply(t.Context(), r); err != nil || len(c.Repaired) > 0 {
				t.Errorf("%s: ahead: %+v, %v", when, c, err)
			}
			return nil
		})
		between := ns.IP("route show proto 102")
		mend()
		var c Changes
		ns.Must(func() (err error) { c, err = routes.Apply(t.Context(), r); return err })
		if after := ns.IP("route show proto 102"); (between != before) != early || (after != between) != late {
			t.Errorf("%s: the routes were\n%s, ahead\n%s, and then\n%s", when, before, between, after)
		}
		if (len(c.Wanted) > 0) != late || len(c.Repaired) > 0 {
			t.Errorf("%s: in its turn: %+v", when, c)
		}
	}
	nothing := func() {}
	round("an agent that has started", false, true, nothing)
	round("the same", false, false, nothing)
	tunnelled = append(tunnelled, "10.77.5.0/24", "10.77.3.0/24")
	round("Nodes came", true, false, nothing)
	tunnelled = nil
	round("all went", true, false, nothing)
	tunnelled = []string{"10.77.5.0/24"}
	round("one came", true, false, nothing)
	tunnelled, direct = nil, []string{"10.77.5.0/24"}
	round("it moved next door", false, true, nothing)
	tunnelled = []string{"10.77.6.0/24"}
	round("another came", true, false, nothing)
	gateway.inPlace.record(link.GatewayLink{MTU: 1400}, nil)
	tunnelled = []string{"10.77.6.0/24", "10.77.7.0/24"}
	round("one came, and the gateway gets another MTU", false, true, nothing)
	gateway.inPlace.record(link.GatewayLink{}, nil)
	tunnelled = []string{"10.77.6.0/24", "10.77.8.0/24"}
	ns.IP("addr del 10.77.1.1/24 dev gw0") // the kernel also removes the routes that have it as source
	ns.IP("addr add 10.77.1.3/24 dev gw0")
	round("it failed once", false, true, func() { ns.IP("addr add 10.77.1.1/24 dev gw0") })
	tunnelled = []string{"10.77.6.0/24"}
	round("after that", true, false, nothing)
}
