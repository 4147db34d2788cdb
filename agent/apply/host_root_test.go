package apply

import (
	"net/netip"
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
