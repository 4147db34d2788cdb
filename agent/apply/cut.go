package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/policy"
)

// loggedOfPart is how many ended connections of one part are logged individually.
const loggedOfPart = 10

// Found receives when connections that may have to be ended, because of policies or Services, have been found.
func (f *Flows) Found() <-chan struct{} { return f.policies.tightened.found }

// EndFound ends the connections that were found, and reports whether a round has something to report about it.
func (f *Flows) EndFound(ctx context.Context) (due bool) {
	now := time.Now()
	if f.policies.tightened.take(now, func(p part) error { return f.end(ctx, now, p) }) {
		f.cutDone(ctx)
	}
	if f.leftover.unseen.take(now, func(p part) error { return f.takeGone(ctx, now, p) }) && !f.servicesUnread() {
		f.findUnseen(ctx, now)
	}
	f.logTrouble()
	return f.policies.tightened.due(now) || f.leftover.unseen.due(now)
}

// cut begins to end the connections that the rules now deny; all others continue. What counts are the rules at the time
// when a connection is found. A starting agent examines all connections, so a cut that was interrupted by the agent's
// end need not be remembered.
func (f *Flows) cut(ctx context.Context) {
	if f.policies.rules == nil {
		return
	}
	now, s := time.Now(), &f.policies.tightened
	s.now = s.now || f.outlived(now)
	s.start(ctx, now, f.policies.rules.Zones(), func(ctx context.Context, zone uint16,
		yield func(vswitchd.Connection) error) error {
		return vswitchd.EachConnection(ctx, f.runDir, f.datapath, zone, yield)
	})
}

// outlived reports whether it is time to check whether connections that were ended long ago still exist.
func (f *Flows) outlived(now time.Time) bool {
	s := &f.policies.tightened
	return f.policies.rules != nil && s.again.IsZero() && !s.busy() && f.policies.rules.Outlived(now)
}

// cutDone stops dropping connections that conntrack no longer has, and begins with those that have become denied
// meanwhile.
func (f *Flows) cutDone(ctx context.Context) {
	if f.sw == nil {
		return // the next round examines all connections
	}
	f.policies.rules.Seen(f.policies.tightened.last)
	if err := f.syncEnded(ctx); err != nil {
		f.policies.tightened.retry(time.Now())
		return
	}
	f.cut(ctx)
}

// end makes the switch drop the packets of connections that the rules deny, and removes them from conntrack.
func (f *Flows) end(ctx context.Context, now time.Time, p part) error {
	if f.sw == nil {
		return ErrNoSwitch
	}
	forbidden := f.policies.rules.End(p.zone, p.all, now)
	if len(forbidden) == 0 {
		return nil
	}
	if err := f.syncEnded(ctx); err != nil {
		return err
	}
	for i, c := range forbidden {
		from, to := c.From.Addr().String(), c.To.Addr().String()
		if c.HasPorts() {
			if err := f.sw.Flush(ctx, p.zone, c.Protocol, c.From, c.To); err != nil {
				return err
			}
			from, to = c.From.String(), c.To.String()
		}
		if i < loggedOfPart {
			f.log.Info("ended a connection that policies deny", "protocol", protocol(policy.Protocol(c.Protocol)),
				"from", from, "to", to)
		}
	}
	if more := len(forbidden) - loggedOfPart; more > 0 {
		f.log.Info("ended more connections that policies deny", "count", more)
	}
	return nil
}

// syncEnded makes the switch drop the connections that the rules have ended, and no others any more.
func (f *Flows) syncEnded(ctx context.Context) error {
	f.sw.SetPolicies(f.policies.rules.Changed(), false)
	err := f.syncUnits(ctx)
	return err
}

// unended says which connections could not be ended, or not yet; nil if all were.
func (f *Flows) unended() (err error) {
	now := time.Now()
	if why := f.policies.tightened.tell(now); why != nil {
		err = fmt.Errorf("connections that policies deny may continue: %w", why)
	}
	if why := f.leftover.unseen.tell(now); why != nil {
		err = errors.Join(err, fmt.Errorf("clients of Services may still send to endpoints that are gone: %w", why))
	}
	return err
}

// logTrouble logs why connections cannot be ended, when that begins.
func (f *Flows) logTrouble() {
	for s, message := range map[*survey]string{&f.policies.tightened: "connections that policies deny may continue, will retry",
		&f.leftover.unseen: mayGoOn} {
		if s.failed != nil && !s.logged {
			f.log.Error(s.failed, message, "interval", staleFor)
		}
		s.logged = s.failed != nil
	}
}
