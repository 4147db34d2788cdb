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
	// deadInUserspace and deadInKernel are how long ovs-vswitchd may be dead until the host gets its NIC back: at once
	// nothing passes the userspace datapath, while the kernel's goes on with the flows that it has. Both are longer
	// than any restart of a process takes.
	deadInUserspace, deadInKernel = 4 * time.Second, 10 * time.Second
	// hung is how long ovs-vswitchd may hang until then: a large configuration keeps it busy for seconds.
	hung = 20 * time.Second
	// askEvery is how often it is asked whether it hangs.
	askEvery = 2 * time.Second
)

// watch is what RunYield remembers of ovs-vswitchd from one look to the next.
type watch struct {
	start   string    // of the one that runs; empty: none does
	since   time.Time // of that start, or death
	asked   time.Time // when it was last asked
	silent  time.Time // since when it hangs; zero: it does not
	yielded bool      // the host has its NIC for that
}

// look looks whether ovs-vswitchd runs, and now and then whether it hangs.
func (w *watch) look(ctx context.Context, runDir string) {
	if now := vswitchd.RunningStartID(runDir); now != w.start {
		*w = watch{start: now, since: time.Now()}
	}
	if w.start == "" || time.Since(w.asked) < askEvery {
		return
	}
	w.asked = time.Now()
	if hangs := vswitchd.Hangs(ctx, runDir); !hangs {
		w.silent, w.yielded = time.Time{}, false
	} else if w.silent.IsZero() {
		w.silent = w.asked
	}
}

// why is the reason to return the NIC to the host; empty: there is none. dead is how long it may be dead.
func (w *watch) why(dead time.Duration) string {
	switch {
	case w.start == "" && time.Since(w.since) >= dead:
		return datapath.VswitchdDead
	case !w.silent.IsZero() && time.Since(w.silent) >= hung:
		return datapath.VswitchdHangs
	}
	return ""
}

// RunYield returns the NIC to the host when ovs-vswitchd stays dead or hangs, and has Run look while it is back and the
// NIC is not, until ctx ends. It needs nothing that comes over the network.
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
		w.look(ctx, n.cfg.OVSRunDir)
		if w.start != "" && w.silent.IsZero() && n.away.Load() {
			n.look.Notify()
		}
		if why := w.why(dead); why != "" && !w.yielded {
			w.yielded = n.yield(ctx, why)
			n.look.Notify()
		}
	})
}

// yield reports whether there is no more to be done about it.
func (n *Uplink) yield(ctx context.Context, why string) bool {
	// One of its own: n.uplink may be at work, or wait for Open vSwitch.
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

// Leave is for an agent that ends, after it has unlocked its node: it returns the NIC to the host if Open vSwitch has
// ended before it. If that ends after, as on a node from which all pods are taken, fairlead-ovs does so, which looks
// for an agent once ovs-vswitchd has ended: one of both is the last.
func Leave(ctx context.Context, journal string, cfg api.AgentConfig, log logr.Logger) {
	if vswitchd.Running(cfg.OVSRunDir) {
		return
	}
	n := Uplink{journal: journal, log: log.WithName("uplink")}
	n.yield(context.WithoutCancel(ctx), datapath.VswitchdDead)
}
