package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/openflow"
)

// Somebody else's change is what an applier has to set right though what it is
// asked for has not changed since it was last in place, with the same
// ovs-vswitchd running since.

// mended tells of something that somebody else had changed and that is as it
// should be again.
func (l *loop) mended(kind string, changes []string) {
	if len(changes) == 0 {
		return
	}
	l.log.Info("somebody changed this node, and it was set right", "kind", kind, "what", strings.Join(changes, "; "))
	l.metrics.drift.WithLabelValues(kind).Add(float64(len(changes)))
}

// told is for changes of which drift says whether they mend something.
func (l *loop) told(what string, drift bool, changes []string) {
	l.metrics.changed(what, len(changes))
	if drift {
		l.mended(what, changes)
		return
	}
	for _, c := range changes {
		l.log.Info("changed "+what, "change", c)
	}
}

// applyOVSDB puts back first what was there, so that what is missing of that
// can be told.
func (l *loop) applyOVSDB(ctx context.Context, d Desired, settled bool) error {
	if settled {
		changes, err := l.db.Repair(ctx, l.applied.OVSDB)
		l.mended("ovsdb", changes)
		if err != nil {
			return fmt.Errorf("OVSDB: %w", err)
		}
	}
	if err := l.db.Ensure(ctx, d.OVSDB); err != nil {
		return fmt.Errorf("OVSDB: %w", err)
	}
	return nil
}

// mendFlows lists the switch's flows and puts back those that were there.
func (l *loop) mendFlows(ctx context.Context) (openflow.Changes, error) {
	l.flows.Resync()
	c, err := l.flows.Sync(ctx, l.wantFlows)
	l.metrics.flows(len(l.wantFlows), c)
	if c != (openflow.Changes{}) {
		l.mended("flows", []string{fmt.Sprintf("%d were missing, %d altered, %d foreign", c.Added, c.Modified, c.Deleted)})
	}
	return c, err
}
