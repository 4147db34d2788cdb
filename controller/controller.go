// Package controller is fairlead-controller: one file per controller. Agents work without it.
//
// Of the objects in the API it owns these: the status of IPPools except ipAddresses, conditions of its types, and the
// finalizer api.PoolFinalizer; IPAllocations whose owners are gone, by the rules of package ipam/reclaim, and the
// reservation of IPAllocations; PodCIDRClaims and PodCIDRRanges; the Lease kube-system/fairlead-controller. It has no
// other state. One of several replicas is active at a time. If two are, they compute the same, and what only one may
// have, the API server grants to one.
package controller

import (
	"context"
	"errors"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/forecast"
	"github.com/fairlead-cni/fairlead/controller/poolstatus"
)

// Options is the configuration of a controller.
type Options struct {
	Config api.ControllerConfig
	Client dynamic.Interface
	// Kubernetes is a client of the same API server, for Events and the Lease.
	Kubernetes kubernetes.Interface
	// OtherAllocator returns which other component is configured to assign podCIDRs to Nodes, empty for none; nil: no
	// check.
	OtherAllocator func(context.Context) (who string, err error)
	// Withdraw ends an uninstallation that was interrupted before Fairlead was installed again, and reports whether there
	// was one; nil: never.
	Withdraw func(context.Context) (bool, error)
	// Intervals are those of api.DefaultIntervals, except in tests.
	Intervals api.ControllerIntervals
	// HealthSocket is a unix socket that serves health as well; empty: none. With it apiPort may be in use by another
	// controller on the same node.
	HealthSocket string
	// Version is the version of the program, for fairlead_build_info.
	Version string
	Log     logr.Logger
}

// Component is the controller's name in Events.
const Component = "fairlead-controller"

// recorder writes Events until ctx ends.
func recorder(ctx context.Context, client kubernetes.Interface) record.EventRecorder {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Component})
}

// Run runs all controllers until ctx ends. It returns early if it cannot work, with the reason.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := newMetrics(o.Version)
	var running sync.WaitGroup
	w := newWorld(o)
	events := recorder(ctx, o.Kubernetes)
	pools := &poolStatus{client: o.Client.Resource(api.PoolResource),
		allocations: o.Client.Resource(api.AllocationResource), world: w, news: w.subscribe(), metrics: m, events: events,
		warning: poolstatus.Warning{Percent: o.Config.PoolWarningPercent, Grows: forecast.Growth{}},
		every:   o.Intervals, log: o.Log.WithName("poolstatus")}
	sets := newStatefulSets(o, w, events, m)
	running.Go(func() { sets.follow(ctx) })
	synced, works := sets.synced, []func(context.Context){pools.run, sets.run}
	if o.Withdraw != nil {
		works = append(works, func(ctx context.Context) { withdraw(ctx, o) })
	}
	if o.Config.Reclaim.Enabled {
		works = append(works, newReclaimer(o, w, events, m).run)
	}
	if o.Config.NodeIPAM.Enabled {
		n := newNodeIPAM(o, w, events, m)
		running.Go(func() { n.follow(ctx) })
		synced = func() bool { return sets.synced() && n.synced() }
		works = append(works, n.run)
	} else {
		works = append(works, func(ctx context.Context) { forgetRanges(ctx, o) })
	}
	running.Go(func() { w.follow(ctx) })
	h := handler(o.Config, m, synced)
	running.Go(func() {
		if err := serveHTTP(ctx, o, h); err != nil {
			cancel(err)
		}
	})
	if o.HealthSocket != "" {
		running.Go(func() {
			if err := serveSocket(ctx, o.HealthSocket, h); err != nil {
				cancel(err)
			}
		})
	}
	if err := lead(ctx, o, func(ctx context.Context) {
		m.lead(ctx)
		var working sync.WaitGroup
		for _, work := range works {
			working.Go(func() { work(ctx) })
		}
		working.Wait()
	}); err != nil {
		cancel(err)
	}
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
