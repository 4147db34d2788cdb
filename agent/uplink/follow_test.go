package uplink

import (
	"context"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/api"
	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// If notifications of either kind end, they are requested again, and missed changes are checked.
func TestFollowAgain(t *testing.T) {
	n := &Uplink{check: signal.New(), every: api.DefaultIntervals().Agent}
	n.state.Store(&state{})
	subscriptions := make(chan notifications)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.followInterfaces(ctx, func(context.Context) (notifications, error) {
			s := notifications{make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate)}
			subscriptions <- s
			return s, nil
		})
	}()
	next := func() (s notifications) {
		select {
		case s = <-subscriptions:
		case <-time.After(time.Minute):
			t.Fatal("it does not subscribe again")
		}
		return s
	}
	looks := func(after string) {
		t.Helper()
		select {
		case <-n.check:
		case <-time.After(time.Minute):
			t.Fatalf("no look at the uplink after %s", after)
		}
	}
	changed := func(s notifications) {
		s.links <- netlink.LinkUpdate{Link: &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: datapath.BridgeName, Index: 7}}}
		looks("a change of br-uplink")
	}
	first := next()
	changed(first)
	close(first.links)
	second := next()
	looks("the end of those of interfaces")
	changed(second)
	close(second.addrs)
	third := next()
	looks("the end of those of addresses")
	changed(third)
	cancel()
	<-ended
}

// More changes than the kernel buffers for a reader end the notifications of either kind.
func TestRootNotificationsEnd(t *testing.T) {
	node := nstest.New(t)
	var s notifications
	node.Must(func() (err error) { s, err = subscribe(t.Context()); return err })
	node.Exec("sh", "-ec", `ip link add d0 type veth peer name d1; for i in $(seq 3000); do
		echo "addr add 10.0.0.1/24 dev d0"; echo "addr del 10.0.0.1/24 dev d0"; echo "link set d0 mtu $((1400 + i % 2))"
		done | ip -batch -`)
	ended := make(chan struct{})
	go func() {
		for range s.links { //nolint:revive // until they end
		}
		for range s.addrs { //nolint:revive // likewise
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("they go on")
	}
}
