package apply

import (
	"context"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
)

// leftover is what conntrack and the datapath may still have from removed flows.
type leftover struct {
	// gone are translations that the tables no longer make, and when their connections are removed from conntrack once
	// more.
	gone map[openflow.Translation]time.Time
	// unseen: there may be others that the switch does not report.
	unseen scan
}

// due reports whether connections are to be removed from conntrack again.
func (l *leftover) due(now time.Time) bool {
	for _, again := range l.gone {
		if now.After(again) {
			return true
		}
	}
	return l.unseen.due(now)
}

// flushGone removes UDP connections to endpoints that are gone from conntrack, now that no new ones can be created: as
// UDP has no end of a connection, a client that keeps sending would be translated to such an endpoint for ever. It does
// so again when the datapath must have caught up: see staleFor.
func (f *Flows) flushGone(ctx context.Context) {
	now := time.Now()
	for _, t := range f.sw.Gone() {
		f.leftover.gone[t] = now.Add(staleFor)
	}
	f.findUnseen(ctx, now)
	f.flushKnown(ctx, now)
}

// findUnseen begins to search for connections by translations whose removal went unseen, if that is due.
func (f *Flows) findUnseen(ctx context.Context, now time.Time) {
	f.leftover.unseen.start(ctx, now, clusterip.Zones(f.view.Pods), f.translatedUDP)
}

// flushKnown removes connections by the translations that are known to be gone.
func (f *Flows) flushKnown(ctx context.Context, now time.Time) {
	var failed error
	for t, again := range f.leftover.gone {
		err := f.flushUDP(ctx, t)
		switch {
		case err != nil:
			failed, f.leftover.gone[t] = err, now.Add(staleFor)
		case now.After(again):
			delete(f.leftover.gone, t)
		}
	}
	if failed != nil {
		f.log.Error(failed, staleEndpoints, "interval", staleFor)
	}
}

const staleEndpoints = "clients of Services may still send to endpoints that are gone, will retry"

// flushUDP removes the connections by a translation from conntrack.
func (f *Flows) flushUDP(ctx context.Context, t openflow.Translation) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, zone := range clusterip.Zones(f.view.Pods) {
		if err := f.sw.FlushUDP(ctx, zone, t.Service, t.Endpoint); err != nil {
			return err
		}
	}
	return nil
}

// translatedUDP lists UDP connections to Services.
func (f *Flows) translatedUDP(ctx context.Context, zone uint16, yield func(vswitchd.Connection) error) error {
	return vswitchd.EachConnection(ctx, f.runDir, f.datapath, zone, func(c vswitchd.Connection) error {
		if c.Protocol != clusterip.UDP || c.To == c.Answers {
			return nil
		}
		return yield(c)
	})
}

// flushUnseen finds, in a part of them, the translations that only conntrack still makes: those whose removal went
// unseen, as while ovs-vswitchd was down.
func (f *Flows) flushUnseen(ctx context.Context, now time.Time, p part) error {
	if f.sw == nil {
		return ErrNoSwitch
	}
	made := f.services.udp()
	for _, c := range p.all {
		t := openflow.Translation{Service: c.To, Endpoint: c.Answers}
		if _, known := f.leftover.gone[t]; known || made[t] {
			continue // ovs-vswitchd scans all connections for each flush
		}
		if err := f.flushUDP(ctx, t); err != nil {
			return err
		}
		f.leftover.gone[t] = now.Add(staleFor)
	}
	return nil
}

// markUnconfirmed notes that the switch may have applied changes without confirming them: it does not report later
// which.
func (f *Flows) markUnconfirmed(err error) {
	f.leftover.unseen.now = f.leftover.unseen.now || err != nil && f.services != nil
}
