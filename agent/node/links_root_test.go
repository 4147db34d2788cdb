package node

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// What could not be read from the node in one round is read in the next, whether or not that one verifies.
func TestRootLinksAreFoundInTheNextRound(t *testing.T) {
	ns := nstest.New(t)
	nstest.Veth(ns, "d0", nstest.New(t), "far0")
	ns.IP("addr add 192.0.2.11/24 dev d0")
	n := newTestNode(t, api.AgentConfig{EnableBridgingMode: true, TransportInterface: "d0"}, nowhere(t))
	fault := errors.New("no buffer space available")
	n.links.forBridged = func(*links, *Node) error { return fault }
	find := func() error { return ns.Do(func() error { return n.links.find(n, false) }) }
	if err := find(); !errors.Is(err, fault) {
		t.Errorf("the first round: %v, want %v", err, fault)
	}
	n.links.forBridged = (*links).findForBridged
	if err := find(); err != nil {
		t.Error(err)
	}
	if n.links.vlanDevices == nil || len(n.links.nodeAddrs) != 1 {
		t.Errorf("the second round has VLAN interfaces %v and addresses %v", n.links.vlanDevices, n.links.nodeAddrs)
	}
}

// After the kernel has ended a subscription, the loop is woken up once there is a new one: what it then reads is not
// older than the first notifications.
func TestRootKernelIsFollowedAgain(t *testing.T) {
	ns := nstest.New(t)
	nstest.Veth(ns, "d0", nstest.New(t), "far0")
	dst := netip.MustParsePrefix("10.0.2.0/24")
	ns.IP("route add 10.0.2.0/24 dev d0 proto 102")
	k := kernel{changed: signal.New()}
	k.routes.Store(&[]route.Route{{Dst: dst}})
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- ns.Do(func() error { return k.follow(ctx, true) }) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	woken := func(when string) {
		t.Helper()
		select {
		case <-k.changed:
		case <-time.After(time.Minute):
			t.Errorf("%s: the loop sleeps", when)
		}
	}
	woken("subscribed again")
	ns.IP("route del 10.0.2.0/24")
	woken("a route was deleted right then")
}

// A route that the agent has replaced by another does not wake the loop; an externally deleted one does, whether it is
// a desired route or covers several.
func TestRootDeletedRouteIsMissing(t *testing.T) {
	ns := nstest.New(t)
	nstest.Veth(ns, "d0", nstest.New(t), "far0")
	p := netip.MustParsePrefix
	k := kernel{log: logr.Discard()}
	k.routes.Store(&[]route.Route{{Dst: p("10.0.2.0/24")}, {Dst: p("10.0.3.0/24")}, {Dst: p("10.0.5.0/24")}, {Dst: p("fd00:2::/64")}})
	for _, c := range []struct {
		have    string // Fairlead's routes, beside a foreign one
		deleted string
		want    bool
	}{
		{"10.0.2.0/23 10.0.5.0/24 fd00:2::/64", "10.0.2.0/24", false}, // a Node was added
		{"10.0.2.0/24 10.0.3.0/24 10.0.5.0/24", "10.0.2.0/23", false}, // foreign routes were added
		{"10.0.2.0/23 fd00:2::/64", "10.0.9.0/24", false},
		{"10.0.2.0/24", "10.0.2.0/23", true},
		{"10.0.5.0/24 fd00:2::/64", "10.0.2.0/23", true},
		{"10.0.2.0/23", "10.0.5.0/24", true},
		{"10.0.2.0/23 10.0.5.0/24", "fd00:2::/64", true},
		{"10.0.3.0/24 10.0.2.128/25", "10.0.2.0/24", true},
	} {
		ns.IP("route flush proto 102")
		ns.IP("-6 route flush proto 102")
		ns.IP("route replace 10.0.0.0/16 dev d0 proto static")
		for dst := range strings.FieldsSeq(c.have) {
			ns.IP("route add " + dst + " dev d0 proto 102")
		}
		ns.Must(func() error {
			if got := k.missesRoute([]netip.Prefix{p(c.deleted)}); got != c.want {
				t.Errorf("%s was deleted, and there are %s: the loop is woken up: %v", c.deleted, c.have, got)
			}
			return nil
		})
	}
}
