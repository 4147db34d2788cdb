package uplink

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// An interface with an MTU below 1280 has no IPv6. The host's IPv4 configuration is still on br-uplink, and on the NIC
// after a restore; IPv6 returns with the MTU.
func TestRootSmallMTU(t *testing.T) {
	t.Parallel()
	f := setup(t, simple+"\n-6 neigh add fd00::5 lladdr 02:00:00:00:00:55 dev eth0 nud permanent", noDAD()...)
	f.node.IP("link set eth0 mtu 1000")
	if err := f.attach(); err == nil || !strings.Contains(err.Error(), "its MTU is 1000") {
		t.Errorf("attach with an MTU of 1000: %v", err)
	}
	f.reached4("not attached")
	f.node.IP("link set eth0 mtu 1500")
	for _, repaired := range []bool{true, false} {
		f.batch(`-6 addr add fd00::11/64 dev eth0 nodad
-6 route add default via fd00::1 dev eth0 metric 30 proto static
-6 neigh add fd00::5 lladdr 02:00:00:00:00:55 dev eth0 nud permanent
`)
		f.nextAgent()
		if repaired {
			f.node.IP("link set eth0 mtu 1000")
			f.repairs()
			f.reached4("attached")
			f.node.IP("link set eth0 mtu 1500")
			f.repairs()
			f.reached()
		}
		f.node.IP("link set eth0 mtu 1000")
		if repaired {
			f.repairs()
		}
		if err := f.restore(); err != nil {
			t.Errorf("restore: %v", err)
		}
		if j := f.open().Journal(); j.Phase != Detached {
			t.Errorf("%s: %s", j.Phase, j.Reason)
		}
		f.reached4("restored")
		f.node.IP("link set eth0 mtu 1500")
	}
}

// repairs retries the agent's repair, which succeeds soon: Open vSwitch sets MTUs asynchronously.
func (f *fixture) repairs() {
	f.t.Helper()
	nstest.Wait(f.t, time.Minute, "the uplink is as it should be", func() bool {
		var steps []string
		var err error
		f.onNode(func(ctx context.Context, u *Uplink) error { steps, err = u.Repair(ctx); return nil })
		if err != nil {
			f.t.Log(err)
		}
		return err == nil && len(steps) == 0
	})
}

// reached4 checks IPv4 only, with large packets.
func (f *fixture) reached4(when string) {
	f.t.Helper()
	for _, p := range []struct {
		from *nstest.NS
		to   string
	}{{f.outside, hostIP}, {f.node, outIP}} {
		if out, err := p.from.Run("ping", "-c1", "-W15", "-s", fmt.Sprint(1000-28), "-M", "do", p.to); err != nil {
			f.t.Errorf("%s: no answer of %s: %v\n%s%s", when, p.to, err, out, f.describe())
		}
	}
}
