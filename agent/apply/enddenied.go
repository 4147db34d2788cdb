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
	if f.policies.tightened.take(now, func(p part) error { return f.endDenied(ctx, now, p) }) {
		f.deniedScanned(ctx)
	}
	if f.leftover.unseen.take(now, func(p part) error { return f.flushUnseen(ctx, now, p) }) && !f.servicesUnread() {
		f.findUnseen(ctx, now)
	}
	f.logScanErrors()
	return f.policies.tightened.due(now) || f.leftover.unseen.due(now)
}

// scanDenied begins to find and end the connections that the rules now deny; all others continue. What counts are the
// rules at the time when a connection is found. A starting agent examines all connections, so a scan that was
// interrupted by the agent's end need not be remembered.
func (f *Flows) scanDenied(ctx context.Context) {
	if f.policies.rules == nil {
		return
	}
	now, s := time.Now(), &f.policies.tightened
	s.now = s.now || f.recheckDue(now)
	s.start(ctx, now, f.policies.rules.Zones(), func(ctx context.Context, zone uint16,
		yield func(vswitchd.Connection) error) error {
		return vswitchd.EachConnection(ctx, f.runDir, f.datapath, zone, yield)
	})
}

// recheckDue reports whether it is time to check whether connections that were ended long ago still exist.
func (f *Flows) recheckDue(now time.Time) bool {
	s := &f.policies.tightened
	return f.policies.rules != nil && s.again.IsZero() && !s.busy() && f.policies.rules.RecheckDue(now)
}

// deniedScanned stops dropping connections that conntrack no longer has, and begins with those that have become denied
// meanwhile.
func (f *Flows) deniedScanned(ctx context.Context) {
	if f.sw == nil {
		return // the next round examines all connections
	}
	f.policies.rules.ScanDone(f.policies.tightened.last)
	if err := f.syncEnded(ctx); err != nil {
		f.policies.tightened.retry(time.Now())
		return
	}
	f.scanDenied(ctx)
}

// endDenied makes the switch drop the packets of connections that the rules deny, and removes them from conntrack.
func (f *Flows) endDenied(ctx context.Context, now time.Time, p part) error {
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

// scanErrors says which connections could not be ended, or not yet; nil if all were.
func (f *Flows) scanErrors() (err error) {
	now := time.Now()
	if why := f.policies.tightened.report(now); why != nil {
		err = fmt.Errorf("connections that policies deny may continue: %w", why)
	}
	if why := f.leftover.unseen.report(now); why != nil {
		err = errors.Join(err, fmt.Errorf("clients of Services may still send to endpoints that are gone: %w", why))
	}
	return err
}

// logScanErrors logs why connections cannot be ended, when that begins.
func (f *Flows) logScanErrors() {
	for s, message := range map[*scan]string{&f.policies.tightened: "connections that policies deny may continue, will retry",
		&f.leftover.unseen: staleEndpoints} {
		if s.failed != nil && !s.logged {
			f.log.Error(s.failed, message, "interval", staleFor)
		}
		s.logged = s.failed != nil
	}
}
