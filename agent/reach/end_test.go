package reach

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
)

// leased fakes Pods, with leases only.
type leased struct {
	taken netip.Addr // by a pod
	own   []netip.Addr
	calls int
}

func (l *leased) Reserve(a netip.Addr, _, _ string) error {
	l.calls++
	if a == l.taken {
		return errors.New("pod shop/cart-1 has it")
	}
	l.own = append(l.own, a)
	return nil
}

func (l *leased) Release(_, _ string) error {
	l.own = nil
	return nil
}

func (l *leased) Add(context.Context, cniserver.Request) (cniserver.Result, error) {
	l.calls++
	return cniserver.Result{}, errors.New("not in this test")
}

func (l *leased) Del(context.Context, cniserver.Request) error { return nil }

// proberOf is a Prober on a node with these podCIDRs.
func proberOf(podCIDRs ...string) *Prober {
	board := status.NewBoard(nil)
	s := &status.Status{}
	for _, c := range podCIDRs {
		s.PodCIDRs = append(s.PodCIDRs, netip.MustParsePrefix(c))
	}
	board.Publish(s)
	return New(Parts{Config: api.AgentConfig{Reachability: api.ReachabilityProbe}, NodeName: "this", Board: board,
		Metrics: status.NewMetrics("test"), Interval: 2 * time.Second, Log: logr.Discard()})
}

// If a pod has the end's address of one family, the end's address of the other remains available to pods.
func TestEndTakesAllAddressesOrNone(t *testing.T) {
	four, six := netip.MustParseAddr("10.77.1.254"), netip.MustParseAddr("fd77::fffe")
	pods := &leased{taken: six}
	if err := reserve(pods, []netip.Addr{four, six}); err == nil || !strings.Contains(err.Error(), "shop/cart-1") || len(pods.own) > 0 {
		t.Errorf("%v, and %v are kept", err, pods.own)
	}
	pods.taken = netip.Addr{}
	if err := reserve(pods, []netip.Addr{four, six}); err != nil || len(pods.own) != 2 {
		t.Errorf("%v, and %v are kept", err, pods.own)
	}
}

// A podCIDR without a spare address gets no end, and the report states it.
func TestSmallPodCIDRMakesNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, pods := proberOf("10.77.1.0/24", "fd77::/125"), &leased{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p.Run(ctx, pods)
		if r := p.Report(); !strings.Contains(r.Problem, "fd77::/125 has no address to spare") || pods.calls > 0 {
			t.Errorf("the report is %+v, after %d calls", r, pods.calls)
		}
	})
}

// An end that cannot be ensured stays in use for half a minute, during which the state of other nodes is kept.
func TestEndIsUnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := proberOf("10.77.1.0/29"), time.Now()
		err := p.maintainEnd(t.Context(), &leased{}, end{})
		if took := time.Since(began); err == nil || took <= 30*time.Second || took > 40*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
	})
}
