// Package controller is the cluster's side of Fairlead: one file per controller.
// Agents work without it; what it writes are statuses and hints, and a finalizer.
//
// Of the objects in the API these are its own: the status of IPPools without
// ipAddresses, conditions of its types, and the finalizer api.PoolFinalizer. It
// keeps nothing elsewhere. Two controllers at once compute the same, and what one
// has written the other need not write.
package controller

import (
	"context"
	"errors"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"

	"github.com/fairlead-cni/fairlead/api"
)

// Options is what a controller works with.
type Options struct {
	Config api.ControllerConfig
	Client dynamic.Interface
	Log    logr.Logger
}

// Run runs all controllers until ctx ends. It returns early when it can't work; the
// error says why.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := newMetrics()
	var running sync.WaitGroup
	running.Go(func() {
		if err := serveHTTP(ctx, o.Config, m.registry); err != nil {
			cancel(err)
		}
	})
	w := newWorld(o.Client, o.Log)
	running.Go(func() { w.follow(ctx) })
	(&poolStatus{client: o.Client.Resource(api.PoolResource), allocations: o.Client.Resource(api.AllocationResource),
		world: w, metrics: m, log: o.Log.WithName("poolstatus")}).run(ctx)
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
