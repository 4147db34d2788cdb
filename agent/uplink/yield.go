package uplink

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/api"
	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

const (
	// deadInUserspace and deadInKernel are how long ovs-vswitchd may be dead until the NIC is returned to the host:
	// nothing passes a userspace datapath from then on, while the kernel datapath continues with the flows that it has.
	// Both are longer than a restart of the process takes.
	deadInUserspace, deadInKernel = 4 * time.Second, 10 * time.Second
	// hangTimeout is how long ovs-vswitchd may hang before that: a large configuration keeps it busy for seconds.
	hangTimeout = 20 * time.Second
	// hangCheckEvery is how often it is checked whether it hangs.
	hangCheckEvery = 2 * time.Second
)

// watch is what RunYield remembers about ovs-vswitchd between two checks.
type watch struct {
	start         string    // of the one that runs; empty: none does
	since         time.Time // of that start, or death
	hangCheckedAt time.Time // when it was last checked whether it hangs
	silent        time.Time // since when it hangs; zero: it does not
	yielded       bool      // the NIC was returned to the host for that
}

// check finds out whether ovs-vswitchd runs, and, every hangCheckEvery, whether it hangs.
func (w *watch) check(ctx context.Context, runDir string) {
	if now := vswitchd.RunningStartID(runDir); now != w.start {
		*w = watch{start: now, since: time.Now()}
	}
	if w.start == "" || time.Since(w.hangCheckedAt) < hangCheckEvery {
		return
	}
	w.hangCheckedAt = time.Now()
	if hangs := vswitchd.Hangs(ctx, runDir); !hangs {
		w.silent, w.yielded = time.Time{}, false
	} else if w.silent.IsZero() {
		w.silent = w.hangCheckedAt
	}
}

// why is the reason to return the NIC to the host; empty: there is none. dead is how long ovs-vswitchd may be dead.
func (w *watch) why(dead time.Duration) string {
	switch {
	case w.start == "" && time.Since(w.since) >= dead:
		return datapath.VswitchdDead
	case !w.silent.IsZero() && time.Since(w.silent) >= hangTimeout:
		return datapath.VswitchdHangs
	}
	return ""
}

// RunYield returns the NIC to the host when ovs-vswitchd stays dead or hangs, and makes Run check the uplink while
// ovs-vswitchd is back and the NIC is not attached, until ctx ends. It needs nothing over the network.
func (n *Uplink) RunYield(ctx context.Context) {
	if n.uplink == nil || !n.cfg.EnableBridgingMode {
		return
	}
	dead := deadInKernel
	if n.cfg.OVSDatapathType == api.DatapathNetdev {
		dead = deadInUserspace
	}
	w := watch{start: vswitchd.RunningStartID(n.cfg.OVSRunDir), since: time.Now()}
	signal.Loop(ctx, n.every.Vswitchd, nil, func(ctx context.Context) {
		w.check(ctx, n.cfg.OVSRunDir)
		if w.start != "" && w.silent.IsZero() && n.away.Load() {
			n.check.Notify()
		}
		if why := w.why(dead); why != "" && !w.yielded {
			w.yielded = n.yield(ctx, why)
			n.check.Notify()
		}
	})
}

// yield returns the NIC to the host, and reports whether there is nothing more to do.
func (n *Uplink) yield(ctx context.Context, why string) bool {
	// It opens one of its own: n.uplink may be busy, or waiting for Open vSwitch.
	u, err := datapath.Open(n.journal, n.log)
	did := false
	if err == nil {
		did, err = u.Yield(ctx, why)
	}
	if err != nil {
		n.log.Error(err, "the NIC could not be returned to the host", "reason", why)
		return errors.Is(err, datapath.ErrNotRecorded)
	}
	if did {
		n.log.Error(errors.New(why), "the host has its NIC back until that changes", "nic", u.Journal().NIC.Name)
	}
	return true
}

// Leave is called by an agent that ends, after it has unlocked its node: it returns the NIC to the host if Open vSwitch
// has ended first. If Open vSwitch ends later, as when all pods of a node are deleted, fairlead-ovs does so: it checks
// for an agent once ovs-vswitchd has ended, so whichever ends last returns the NIC.
func Leave(ctx context.Context, journal string, cfg api.AgentConfig, log logr.Logger) {
	if vswitchd.Running(cfg.OVSRunDir) {
		return
	}
	n := Uplink{journal: journal, log: log.WithName("uplink")}
	n.yield(context.WithoutCancel(ctx), datapath.VswitchdDead)
}
