package agent

import (
	"context"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/datapath/link"
)

// reaper removes the veths of pods that are gone: those that wait go together, in the time that the kernel takes for
// one. What it can't remove, and what it leaves when it ends, the reconciler does, of this agent or of the next.
type reaper struct {
	waiting chan struct{} // of one: any number may wait
}

func newReaper() reaper { return reaper{make(chan struct{}, 1)} }

// wake tells that a veth was retired.
func (r reaper) wake() {
	select {
	case r.waiting <- struct{}{}:
	default:
	}
}

// run removes until ctx ends.
func (r reaper) run(ctx context.Context, log logr.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.waiting:
		}
		if err := link.Reap(); err != nil {
			log.Error(err, "it is tried again within seconds")
		}
	}
}
