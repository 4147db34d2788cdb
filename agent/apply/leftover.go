package apply

import (
	"context"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
)

// leftover is what conntrack and the datapath may still have of flows that are gone.
type leftover struct {
	// gone are translations that the tables do not make any more, and when their connections are forgotten once more.
	gone map[openflow.Translation]time.Time
	// unseen: there may be others, of which the switch does not tell.
	unseen survey
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

// flushGone has conntrack forget connections of UDP to endpoints that are gone, now that no others can be made: without
// a connection's end to wait for, a client that goes on sending would be translated to one for ever. It does so again
// when the datapath must have followed: see staleFor.
func (f *Flows) flushGone(ctx context.Context) {
	now := time.Now()
	for _, t := range f.sw.Gone() {
		f.leftover.gone[t] = now.Add(staleFor)
	}
	f.findUnseen(ctx, now)
	f.flushKnown(ctx, now)
}

// findUnseen begins to look for connections by translations that nobody saw go, if that is due.
func (f *Flows) findUnseen(ctx context.Context, now time.Time) {
	f.leftover.unseen.start(ctx, now, clusterip.Zones(f.view.Pods), f.translatedUDP)
}

// flushKnown has conntrack forget connections by the translations that are known to be gone.
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
		f.log.Error(failed, mayGoOn, "interval", staleFor)
	}
}

const mayGoOn = "clients of Services may go on to send to endpoints that are gone, trying again"

// flushUDP has conntrack forget the connections by a translation.
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

// translatedUDP lists connections of UDP to Services.
func (f *Flows) translatedUDP(ctx context.Context, zone uint16, yield func(vswitchd.Connection) error) error {
	return vswitchd.EachConnection(ctx, f.runDir, f.datapath, zone, func(c vswitchd.Connection) error {
		if c.Protocol != clusterip.UDP || c.To == c.Answers {
			return nil
		}
		return yield(c)
	})
}

// takeGone finds, of a part of them, the translations that only conntrack still makes: those that nobody saw go, as
// while ovs-vswitchd was away.
func (f *Flows) takeGone(ctx context.Context, now time.Time, p part) error {
	if f.sw == nil {
		return ErrNoSwitch
	}
	made := f.services.udp()
	for _, c := range p.all {
		t := openflow.Translation{Service: c.To, Endpoint: c.Answers}
		if _, known := f.leftover.gone[t]; known || made[t] {
			continue // ovs-vswitchd looks at all connections for each flush
		}
		if err := f.flushUDP(ctx, t); err != nil {
			return err
		}
		f.leftover.gone[t] = now.Add(staleFor)
	}
	return nil
}

// unsure takes note that the switch may have done what it has not confirmed: it does not tell later what that was.
func (f *Flows) unsure(err error) {
	f.leftover.unseen.now = f.leftover.unseen.now || err != nil && f.services != nil
}
