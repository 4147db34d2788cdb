package hoststate

import (
	"bytes"
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// FromRouter reports a route that a router advertisement made.
func (o Object) FromRouter() bool { return o.fromRA() }

// AwaitRouter waits until the kernel has made the routes of router advertisements on the interface that stand-ins
// stand for (see RouteOn), and removes those. Stand-ins of a router that does not answer in time stay until they
// expire, or DropStandIns is called after its next advertisement.
func AwaitRouter(ctx context.Context, p Place, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !DropStandIns(p) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// DropStandIns removes each route of a router advertisement for which there is another one that differs by a lower
// metric only. It reports whether no other is left without such a one: then the kernel has made them all.
func DropStandIns(p Place) (all bool) {
	routes, err := RoutesOf(p)
	if err != nil {
		return false
	}
	routes = slices.DeleteFunc(routes, func(o Object) bool { return !o.fromRA() })
	best := 0
	for _, o := range routes {
		better := func(b Object) bool {
			return bytes.Equal(b.attr(unix.RTA_DST), o.attr(unix.RTA_DST)) && bytes.Equal(b.Gateway(), o.Gateway()) &&
				b.header()[1] == o.header()[1] && b.number(unix.RTA_PRIORITY) < o.number(unix.RTA_PRIORITY)
		}
		if slices.ContainsFunc(routes, better) {
			_ = o.remove() // it expires anyway
			best++
		}
	}
	return best > 0
}
