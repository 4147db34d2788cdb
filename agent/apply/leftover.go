package apply

import (
	"context"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
)

// leftover is what conntrack and the datapath may still have of flows that are gone.
type leftover struct {
	// gone are translations that the tables do not make any more, and when their connections are forgotten once more.
	gone map[openflow.Translation]time.Time
	// unseen: there may be others, of which the switch does not tell.
	unseen twice
	// megaflows may be cached of flows that were wrong.
	megaflows bool
}

// due reports whether connections are to be forgotten again.
func (l *leftover) due(now time.Time) bool {
	for _, again := range l.gone {
		if now.After(again) {
			return true
		}
	}
	return l.unseen.due(now)
}

// twice is work to be done now, and once more when the datapath must have followed (staleFor).
type twice struct {
	now   bool
	again time.Time // zero: not
}

// do does the work if there is some; it is done again after an error.
func (t *twice) do(now time.Time, work func() error) error {
	if !t.now && !t.due(now) {
		return nil
	}
	if t.again = (time.Time{}); t.now {
		t.again = now.Add(staleFor)
	}
	t.now = false
	err := work()
	if err != nil {
		t.now, t.again = true, now.Add(staleFor)
	}
	return err
}

// due reports whether it is time for the second time, or for what has failed.
func (t *twice) due(now time.Time) bool { return !t.again.IsZero() && now.After(t.again) }

// flushGone has conntrack forget connections of UDP to endpoints that are gone, now that no others can be made: without
// a connection's end to wait for, a client that goes on sending would be translated to one for ever. It does so again
// when the datapath must have followed: see staleFor.
func (f *Flows) flushGone(ctx context.Context) {
	now := time.Now()
	for _, t := range f.sw.Gone() {
		f.leftover.gone[t] = now.Add(staleFor)
	}
	failed := f.leftover.unseen.do(now, func() error { return f.findGone(ctx, now) })
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
		f.log.Error(failed, "clients of Services may go on to send to endpoints that are gone, trying again", "interval",
			staleFor)
	}
}

// flushUDP has conntrack forget the connections by a translation.
func (f *Flows) flushUDP(ctx context.Context, t openflow.Translation) error {
	for _, zone := range clusterip.Zones(f.view.Pods) {
		if err := f.sw.FlushUDP(ctx, zone, t.Service, t.Endpoint); err != nil {
			return err
		}
	}
	return nil
}

// findGone finds the translations that only conntrack still makes: those that nobody saw go, as while ovs-vswitchd was
// away.
func (f *Flows) findGone(ctx context.Context, now time.Time) error {
	made := f.services.udp()
	for _, zone := range clusterip.Zones(f.view.Pods) {
		all, err := vswitchd.Connections(ctx, f.runDir, f.datapath, zone)
		if err != nil {
			return err
		}
		for _, c := range all {
			t := openflow.Translation{Service: c.To, Endpoint: c.Answers}
			if c.Protocol == clusterip.UDP && c.To != c.Answers && !made[t] {
				f.leftover.gone[t] = now.Add(staleFor)
			}
		}
	}
	return nil
}

// wrong takes note that the switch had flows that were wrong, if a comparison with what it has came to changes. One
// that failed may have done some.
func (f *Flows) wrong(compared bool, c openflow.Changes, err error) {
	f.unsure(err)
	f.leftover.megaflows = f.leftover.megaflows || compared && (err != nil || c != openflow.Changes{})
}

// unsure takes note that the switch may have done what it has not confirmed: it does not tell later what that was.
func (f *Flows) unsure(err error) {
	f.leftover.unseen.now = f.leftover.unseen.now || err != nil && f.services != nil
}

// purgeMegaflows has the userspace datapath forget what it cached of flows that were wrong. The kernel's does so
// itself. What could not be done is done by the next round.
func (f *Flows) purgeMegaflows(ctx context.Context, datapath string) {
	if !f.leftover.megaflows || datapath != api.DatapathNetdev {
		return
	}
	err := vswitchd.PurgeMegaflows(ctx, f.runDir)
	if f.leftover.megaflows = err != nil; err != nil {
		f.log.Error(err, "deleting cached megaflows; some connections may stay cut off while they send")
	}
}
