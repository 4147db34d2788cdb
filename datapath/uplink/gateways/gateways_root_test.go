package gateways

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// A gateway that answers is found, among those of all routes and next hops, by its interface and on the wire.
func TestRootGateways(t *testing.T) {
	node, router := nstest.New(t), nstest.New(t)
	nstest.Veth(node, "eth0", router, "e0")
	for _, line := range []string{"addr add 10.9.0.2/24 dev eth0", "addr add fd09::2/64 dev eth0 nodad", "link set eth0 up"} {
		node.IP(line)
	}
	for _, line := range []string{"addr add 10.9.0.1/24 dev e0", "addr add fd09::1/64 dev e0 nodad", "link set e0 up"} {
		router.IP(line)
	}
	ask := func(limit time.Duration, ask func(context.Context) error) (err error) {
		node.Must(func() error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err = ask(ctx)
			return nil
		})
		return err
	}
	for _, c := range []struct {
		route   string // none: no route
		answers bool
	}{
		{"", false},
		{"route add default via 10.9.0.1 dev eth0", true},
		{"route add default via 10.9.0.9 dev eth0", false},
		{"route add default nexthop via 10.9.0.9 dev eth0 nexthop via 10.9.0.1 dev eth0", true},
		{"-6 route add default via fd09::1 dev eth0", true},
	} {
		node.IP("route flush default")
		node.IP("-6 route flush default")
		if c.route != "" {
			node.IP(c.route)
		}
		limit := time.Second
		if c.answers {
			limit = time.Minute
		}
		byKernel := ask(limit, func(ctx context.Context) error { return Check(ctx, "eth0") })
		onWire := ask(time.Minute, func(ctx context.Context) error { return OnWire(ctx, "eth0", "eth0") })
		var silent string
		if err := ask(time.Minute, func(ctx context.Context) (err error) {
			silent, err = Silent(ctx, "eth0", time.Second)
			return err
		}); err != nil || (silent != "") != (c.route != "" && !c.answers) {
			t.Errorf("%q: silent are %q, %v", c.route, silent, err)
		}
		for way, err := range map[string]error{"by the kernel": byKernel, "on the wire": onWire} {
			if c.answers != (err == nil) || errors.Is(err, ErrNone) != (c.route == "") {
				t.Errorf("%s: %q: %v", way, c.route, err)
			}
		}
	}
}
