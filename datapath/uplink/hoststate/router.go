package hoststate

import (
	"bytes"
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// FromRouter reports a route from a router advertisement.
func (o Object) FromRouter() bool { return o.fromRA() }

// AwaitRouter waits until the kernel has added the router advertisement routes on the interface that stand-ins replace
// (see RouteOn), and removes the stand-ins. Stand-ins of a router that does not answer in time stay until they expire,
// or until DropRedundantRoutes is called after its next advertisement.
func AwaitRouter(ctx context.Context, p Iface, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !DropRedundantRoutes(p) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// DropRedundantRoutes removes each router advertisement route for which there is another one that differs only in a
// lower metric. It reports whether there was one: then the kernel has added the routes of an advertisement.
func DropRedundantRoutes(p Iface) bool {
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
