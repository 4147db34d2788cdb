package apply

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// rulesTimeout is how long checking the rules may take before that is reported. iptables waits seconds for other
// programs.
const rulesTimeout = time.Minute

// IPTables applies the node's iptables rules. They are checked in parallel to the rounds: iptables waits for other
// programs that write rules, for seconds if there are many rules, and no pod should wait for that.
type IPTables struct {
	// Finished is notified when a check has ended.
	Finished signal.Signal

	write    func(context.Context, nat.Desired) ([]string, error)
	wanted   nat.Desired     // what the last check was for
	inPlace  bool            // the rules were as wanted
	began    time.Time       // when the running check began; zero: none is running
	results  chan rulesCheck // gets its outcome
	finished []rulesCheck    // not reported yet
	failed   error           // why the last check failed
}

// rulesCheck is the outcome of a check of the rules.
type rulesCheck struct {
	drift   bool // changes revert external ones
	changes []string
	err     error
}

// NewIPTables returns the applier of the rules of this network namespace.
func NewIPTables() *IPTables {
	tables := &nat.Tables{}
	return &IPTables{Finished: signal.New(), write: tables.Apply, results: make(chan rulesCheck, 1)}
}

// Name implements Applier.
func (*IPTables) Name() string { return "iptables" }

// Apply implements Applier. If the desired rules are not in place, it waits as long as ctx allows; otherwise it returns
// the outcome of the last check.
func (t *IPTables) Apply(ctx context.Context, r *Round) (Changes, error) {
	others := func() bool { return !t.inPlace || !reflect.DeepEqual(t.wanted, r.Want.NAT) }
	if others() {
		t.wait(ctx) // the running check may be for these rules
	}
	wait := others()
	if wait {
		t.inPlace = false
	}
	if wait || r.Verify || t.failed != nil {
		t.startCheck(ctx, r.Want.NAT, r.Settled && !wait)
	}
	if wait {
		t.wait(ctx)
	}
	switch took := time.Since(t.began); {
	case t.busy() && took > rulesTimeout:
		return t.takeChanges(), fmt.Errorf("iptables has not finished for %s: it, or another program that writes rules, hangs. "+
			"Stop that program (ps -ef | grep tables)", took.Round(time.Second))
	case t.busy() && wait:
		return t.takeChanges(), fmt.Errorf("the iptables rules are not in place yet: iptables has been running for %s, or is waiting for "+
			"another program that writes rules", took.Round(time.Second))
	}
	return t.takeChanges(), t.failed
}

func (t *IPTables) busy() bool { return !t.began.IsZero() }

// startCheck checks and corrects the rules, unless a check is running. It outlives the round.
func (t *IPTables) startCheck(ctx context.Context, want nat.Desired, drift bool) {
	if t.busy() {
		return
	}
	t.began, t.wanted = time.Now(), want
	go func() {
		changes, err := t.write(context.WithoutCancel(ctx), want)
		t.results <- rulesCheck{drift, changes, err}
		t.Finished.Notify()
	}()
}

// wait waits for the running check.
func (t *IPTables) wait(ctx context.Context) {
	if !t.busy() {
		return
	}
	select {
	case check := <-t.results:
		t.record(check)
	case <-ctx.Done():
	}
}

func (t *IPTables) record(check rulesCheck) {
	t.began = time.Time{}
	t.finished = append(t.finished, check)
	if t.failed = check.err; check.err != nil {
		t.failed = fmt.Errorf("iptables: %w", check.err)
	}
	t.inPlace = t.inPlace || check.err == nil
}

// takeChanges are the changes of the checks that have ended.
func (t *IPTables) takeChanges() (c Changes) {
	for _, check := range t.finished {
		s := sorted(check.changes, check.drift)
		c.Wanted, c.Repaired = append(c.Wanted, s.Wanted...), append(c.Repaired, s.Repaired...)
	}
	t.finished = nil
	return c
}

// NeedsVerify implements Watcher.
func (*IPTables) NeedsVerify(ovsdb.Observed) bool { return false }

// InPlace implements Watcher.
func (*IPTables) InPlace(context.Context, ovsdb.Observed) bool { return true }

// Due implements Watcher: a check has ended, and there is something new to report.
func (t *IPTables) Due() bool {
	failed, late := t.failed != nil, t.busy() && time.Since(t.began) > rulesTimeout
	select {
	case check := <-t.results:
		t.record(check)
		return late || failed != (check.err != nil) || len(check.changes) > 0
	default:
		return false
	}
}

// Close waits for the running check, which would otherwise end half done. Its changes are not reported.
func (t *IPTables) Close() { t.wait(context.Background()) }
