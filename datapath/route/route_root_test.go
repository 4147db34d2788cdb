package route

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// fabric is a node whose gateway leads straight to one peer: a veth in place of OVS, whose far end has the virtual MAC
// and the address of a remote pod.
func fabric(t *testing.T) (node, peer *nstest.NS) {
	node, peer = nstest.New(t), nstest.New(t)
	nstest.Veth(node, "gw0", peer, "far")
	peer.IP("link set far address " + VirtualMAC().String())
	peer.IP("addr add 10.0.2.5/24 dev far")
	peer.IP("addr add fd00:2::5/64 dev far nodad")
	peer.IP("route add 10.0.1.0/24 dev far")
	peer.IP("-6 route add fd00:1::/64 dev far")
	node.IP("addr add 10.0.1.1/24 dev gw0")
	node.IP("addr add fd00:1::1/64 dev gw0 nodad")
	return node, peer
}

func mustApply(t *testing.T, node *nstest.NS, d Desired) Changes {
	t.Helper()
	var c Changes
	node.Must(func() (err error) { c, err = Apply(t.Context(), d); return err })
	return c
}

func applyError(ctx context.Context, node *nstest.NS, d Desired) (c Changes, text string) {
	err := node.Do(func() (err error) { c, err = Apply(ctx, d); return err })
	if err != nil {
		text = err.Error()
	}
	return c, text
}

// Packets reach a remote pod of each family without any neighbour resolution,
// with the gateway's address as source.
func TestRootPacketsReachPeers(t *testing.T) {
	node, peer := fabric(t)
	d := routes("10.0.2.0/24", "fd00:2::/64")
	if c := mustApply(t, node, d); c != (Changes{Added: 2, Neighbours: 2}) {
		t.Errorf("the first Apply says %+v", c)
	}
	peer.IP("neigh flush dev far")
	node.Exec("ping", "-c3", "-i0.2", "-W15", "10.0.2.5")
	node.Exec("ping", "-c3", "-i0.2", "-W15", "fd00:2::5")
	if got := node.IP("route get 10.0.2.5"); !strings.Contains(got, "src 10.0.1.1") {
		t.Errorf("wrong source: %s", got)
	}
	if got := node.IP("route get fd00:2::5"); !strings.Contains(got, "src fd00:1::1") {
		t.Errorf("wrong source: %s", got)
	}
	if c := mustApply(t, node, d); c != (Changes{}) {
		t.Errorf("the second Apply says %+v, want no change", c)
	}
	if c := mustApply(t, node, Desired{Link: "gw0"}); c != (Changes{Removed: 2, Neighbours: 2}) {
		t.Errorf("an empty Apply says %+v", c)
	}
	if got := node.IP("route show proto 102") + node.IP("-6 route show proto 102") + node.IP("neigh show nud permanent"); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A direct route leads over the transport interface to the peer's own address, with the node's address there as source,
// and needs no neighbour entry of Fairlead's. A change of the path type leaves nothing of the previous one.
func TestRootDirectRoutes(t *testing.T) {
	node, peer := fabric(t)
	nstest.Veth(node, "eth0", peer, "e0")
	node.IP("addr add 192.0.2.1/24 dev eth0")
	node.IP("addr add 2001:db8::1/64 dev eth0 nodad")
	peer.IP("addr add 192.0.2.2/24 dev e0")
	peer.IP("addr add 2001:db8::2/64 dev e0 nodad")
	for _, ns := range []*nstest.NS{node, peer} {
		ns.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
	}
	tunnelled := routes("10.0.2.0/24", "fd00:2::/64")
	direct := routes("10.0.2.0/24 via 192.0.2.2", "fd00:2::/64 via 2001:db8::2")
	mixed := routes("10.0.2.0/24 via 192.0.2.2", "fd00:2::/64")
	mustApply(t, node, tunnelled)
	for _, step := range []struct {
		name string
		d    Desired
		want Changes
		src  map[string]string // by destination
	}{
		{"tunnel to direct", direct, Changes{Replaced: 2, Neighbours: 2},
			map[string]string{"10.0.2.5": "192.0.2.1", "fd00:2::5": "2001:db8::1"}},
		{"once more", direct, Changes{}, nil},
		{"one family back", mixed, Changes{Replaced: 1, Neighbours: 1},
			map[string]string{"10.0.2.5": "192.0.2.1", "fd00:2::5": "fd00:1::1"}},
		{"all back", tunnelled, Changes{Replaced: 1, Neighbours: 1},
			map[string]string{"10.0.2.5": "10.0.1.1", "fd00:2::5": "fd00:1::1"}},
		{"direct again", direct, Changes{Replaced: 2, Neighbours: 2}, nil},
		{"left to routers", Desired{Link: "gw0"}, Changes{Removed: 2}, nil},
	} {
		if c := mustApply(t, node, step.d); c != step.want {
			t.Errorf("%s: Apply says %+v, want %+v", step.name, c, step.want)
		}
		for dst, src := range step.src {
			if got := node.IP("route get " + dst); !strings.Contains(got, " src "+src+" ") {
				t.Errorf("%s: want source %s: %s", step.name, src, got)
			}
			node.Exec("ping", "-c3", "-i0.2", "-W15", dst)
		}
	}
	// The interface goes down and up: the kernel has removed the routes.
	mustApply(t, node, direct)
	node.IP("link set eth0 down")
	node.IP("link set eth0 up")
	node.IP("addr replace 2001:db8::1/64 dev eth0 nodad")
	if c := mustApply(t, node, direct); c != (Changes{Added: 2}) {
		t.Errorf("after down and up Apply says %+v", c)
	}
	direct.Transport = "eth9"
	if _, text := applyError(t.Context(), node, direct); !strings.Contains(text, "transport interface eth9") {
		t.Errorf("without the interface: %q", text)
	}
}

func TestRootDrift(t *testing.T) {
	node, _ := fabric(t)
	d := routes("10.0.2.0/24", "10.0.5.0/24", "fd00:2::/64")
	mustApply(t, node, d)
	for _, c := range []struct {
		drift string
		want  Changes
	}{
		{"route del 10.0.2.0/24", Changes{Added: 1}},
		{"-6 route del fd00:2::/64", Changes{Added: 1}},
		{"route replace 10.0.2.0/24 via 10.0.1.9 proto 102", Changes{Replaced: 1}},
		{"route replace 10.0.2.0/24 via 169.254.0.253 dev gw0 onlink proto 102", Changes{Replaced: 1}}, // no source
		{"-6 route replace fd00:2::/64 via fe80::9 dev gw0 proto 102", Changes{Replaced: 1}},
		{"route add 10.0.2.0/24 via 10.0.1.9 proto 102 metric 50", Changes{Removed: 1}},
		{"-6 route append fd00:2::/64 via fe80::9 dev gw0 proto 102", Changes{Replaced: 1}},
		{"route add 10.7.0.0/16 via 10.0.1.9 proto 102", Changes{Removed: 1}},
		{"neigh del 169.254.0.253 dev gw0", Changes{Neighbours: 1}},
		{"neigh replace " + NextHop6().String() + " lladdr 02:00:00:00:00:01 nud permanent dev gw0", Changes{Neighbours: 1}},
		{"neigh replace 10.0.1.77 lladdr 02:00:00:00:00:01 nud permanent dev gw0", Changes{Neighbours: 1}},
		{"neigh replace 169.254.0.253 lladdr " + VirtualMAC().String() + " nud reachable dev gw0", Changes{Neighbours: 1}},
		{"-4 route flush dev gw0", Changes{Added: 2}},
	} {
		if got := mustApply(t, node, d); got != (Changes{}) {
			t.Fatalf("before %q Apply says %+v", c.drift, got)
		}
		node.IP(c.drift)
		if got := mustApply(t, node, d); got != c.want {
			t.Errorf("after %q Apply says %+v, want %+v", c.drift, got, c.want)
		}
	}
	// Setting the link down and up removes all of it.
	node.IP("link set gw0 down")
	node.IP("link set gw0 up")
	node.IP("addr replace fd00:1::1/64 dev gw0 nodad")
	if got := mustApply(t, node, d); got != (Changes{Added: 3, Neighbours: 2}) {
		t.Errorf("after down and up Apply says %+v", got)
	}
}

// Other programs' routes are reported and left alone; everything else is applied.
func TestRootForeignRoutes(t *testing.T) {
	node, peer := fabric(t)
	nstest.Veth(node, "eth0", peer, "e0")
	node.IP("addr add 10.0.4.1/24 dev eth0")
	node.IP("route add 10.0.2.0/24 via 10.0.4.9 proto static")
	node.IP("-6 route add fd00:2::/64 via fe80::9 dev eth0 proto static metric 5")
	node.IP("route add 10.9.0.0/16 via 10.0.4.9 proto bird")

	d := routes("10.0.2.0/24", "10.0.3.0/24", "10.0.4.0/24", "fd00:2::/64")
	c, text := applyError(t.Context(), node, d)
	if c != (Changes{Added: 1, Neighbours: 2}) {
		t.Errorf("Apply says %+v, want 10.0.3.0/24 added", c)
	}
	for _, want := range []string{"10.0.2.0/24 already has a route", "via 10.0.4.9 dev eth0 proto static", "fd00:2::/64 already has a route",
		"10.0.4.0/24 already has a route", "dev eth0 proto kernel"} {
		if !strings.Contains(text, want) {
			t.Errorf("the error lacks %q: %s", want, text)
		}
	}
	mustApply(t, node, Desired{Link: "gw0"})
	got := node.IP("route show") + node.IP("-6 route show")
	for _, want := range []string{"10.0.2.0/24 via 10.0.4.9", "10.9.0.0/16 via 10.0.4.9", "fd00:2::/64 via fe80::9"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is gone:\n%s", want, got)
		}
	}
	node.IP("route del 10.0.2.0/24")
	node.IP("-6 route del fd00:2::/64")
	d = routes("10.0.2.0/24", "fd00:2::/64")
	if c := mustApply(t, node, d); c != (Changes{Added: 2, Neighbours: 2}) {
		t.Errorf("once the foreign routes are gone Apply says %+v", c)
	}
}

// Another program's route inside a merged one, or equal to it, affects no other peer.
func TestRootForeignRouteAmongPeers(t *testing.T) {
	node, _ := fabric(t)
	d := routes("10.0.0.0/24", "10.0.2.0/24", "10.0.3.0/24")
	d.Own = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")} // which is on gw0
	if c := mustApply(t, node, d); c != (Changes{Added: 1, Neighbours: 1}) {
		t.Errorf("Apply says %+v, want one route", c)
	}
	for _, foreign := range []string{"10.0.2.0/23", "10.0.0.0/22"} {
		node.IP("route add blackhole " + foreign + " proto static metric 7")
		if c := mustApply(t, node, d); c != (Changes{Added: 3, Removed: 1}) {
			t.Errorf("with a route to %s Apply says %+v", foreign, c)
		}
		for _, peer := range []string{"10.0.0.5", "10.0.2.5", "10.0.3.5"} {
			if got := node.IP("route get " + peer); !strings.Contains(got, "dev gw0") {
				t.Errorf("with a route to %s: %s", foreign, got)
			}
		}
		node.IP("route del blackhole " + foreign + " metric 7")
		if c := mustApply(t, node, d); c != (Changes{Added: 1, Removed: 3}) {
			t.Errorf("without it again Apply says %+v", c)
		}
	}
}

func TestRootBadInput(t *testing.T) {
	node, _ := fabric(t)
	if _, text := applyError(t.Context(), node, Desired{Link: "gw9"}); !strings.Contains(text, "gateway gw9") {
		t.Errorf("a missing gateway: %q", text)
	}
	// One route that the kernel refuses does not block the others.
	d := routes("10.0.2.0/24", "10.0.3.0/24")
	d.Routes[0].Src = netip.MustParseAddr("10.99.0.1")
	if c, text := applyError(t.Context(), node, d); c.Added != 1 || !strings.Contains(text, "adding 10.0.2.0/24") {
		t.Errorf("a source that is nowhere: %+v, %q", c, text)
	}
}

// A route stays as long as the kernel refuses the one that is to replace and cover it.
func TestRootRefusedInPlaceOfAnother(t *testing.T) {
	node, peer := fabric(t)
	nstest.Veth(node, "eth0", peer, "e0")
	node.IP("addr add 192.0.2.1/24 dev eth0")
	mustApply(t, node, routes("10.0.2.0/24", "10.0.7.0/24"))
	d := routes("10.0.2.0/24", "10.0.3.0/24", "10.0.5.0/24")
	for i := range d.Routes[:2] {
		d.Routes[i].Src = netip.MustParseAddr("10.99.0.1") // not an address of the node
	}
	for range 2 {
		if _, text := applyError(t.Context(), node, d); !strings.Contains(text, "adding 10.0.2.0/23") {
			t.Errorf("a source that is nowhere: %q", text)
		}
		got := node.IP("route show proto 102")
		if !strings.Contains(got, "10.0.2.0/24 via 169.254.0.253 dev gw0 src 10.0.1.1 onlink") ||
			!strings.Contains(got, "10.0.5.0/24") || strings.Contains(got, "10.0.7.0/24") {
			t.Errorf("the routes are\n%s", got)
		}
	}
	node.IP("addr add 10.99.0.1/32 dev gw0")
	if c := mustApply(t, node, d); c != (Changes{Added: 1, Removed: 1}) {
		t.Errorf("once it is there Apply says %+v", c)
	}
}

func TestRootFiveThousand(t *testing.T) {
	node, _ := fabric(t)
	d := Desired{Link: "gw0"} // the IPv4 ranges of 2,500 peers make 6 routes
	for i := range 2500 {
		d.Routes = append(d.Routes,
			Route{Dst: netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 100+i/256, i%256)), Src: netip.MustParseAddr("10.0.1.1")},
			Route{Dst: netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/64", 0x100+i)), Src: netip.MustParseAddr("fd00:1::1")})
	}
	for _, step := range []struct {
		name string
		d    Desired
		want Changes
	}{
		{"add", d, Changes{Added: 2506, Neighbours: 2}},
		{"no change", d, Changes{}},
		{"remove", Desired{Link: "gw0"}, Changes{Removed: 2506, Neighbours: 2}},
	} {
		if c := mustApply(t, node, step.d); c != step.want {
			t.Errorf("%s: %+v, want %+v", step.name, c, step.want)
		}
	}
}
