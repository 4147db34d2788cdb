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

// rulesTimeout is how long a look at the rules may take before that is reported. iptables waits for others for seconds.
const rulesTimeout = time.Minute

// IPTables applies the node's iptables rules. Whether they are still there is looked at beside the rounds: iptables
// waits for other programs that write rules, for seconds where there are many, and no pod is to wait for that.
type IPTables struct {
	// Finished is notified when a look has ended.
	Finished signal.Signal

	write    func(context.Context, nat.Desired) ([]string, error)
	wanted   nat.Desired    // what the last look was for
	inPlace  bool           // it has been so
	began    time.Time      // when the look began that is on its way; zero: none is
	results  chan rulesLook // gets how it went
	finished []rulesLook    // not reported yet
	failed   error          // how the last look failed
}

// rulesLook is how a look at the rules went.
type rulesLook struct {
	drift   bool // changes revert external ones
	changes []string
	err     error
}

// NewIPTables returns the applier of the rules of this network namespace.
func NewIPTables() *IPTables {
	tables := &nat.Tables{}
	return &IPTables{Finished: signal.New(), write: tables.Apply, results: make(chan rulesLook, 1)}
}

// Name implements Applier.
func (*IPTables) Name() string { return "iptables" }

// Apply implements Applier. It waits, as long as ctx allows, where other rules are wanted than are in place; otherwise
// it returns how the rules were when they were last looked at.
func (t *IPTables) Apply(ctx context.Context, r *Round) (Changes, error) {
	others := func() bool { return !t.inPlace || !reflect.DeepEqual(t.wanted, r.Want.NAT) }
	if others() {
		t.wait(ctx) // the look that is on its way may be for these
	}
	wait := others()
	if wait {
		t.inPlace = false
	}
	if wait || r.Verify || t.failed != nil {
		t.look(ctx, r.Want.NAT, r.Settled && !wait)
	}
	if wait {
		t.wait(ctx)
	}
	switch took := time.Since(t.began); {
	case t.busy() && took > rulesTimeout:
		return t.reported(), fmt.Errorf("iptables has not answered for %s: it hangs, or another program that writes rules does. "+
			"End that one (ps -ef | grep tables)", took.Round(time.Second))
	case t.busy() && wait:
		return t.reported(), fmt.Errorf("the iptables rules are not in place yet: iptables has been at work for %s, or waits for "+
			"another program that writes rules", took.Round(time.Second))
	}
	return t.reported(), t.failed
}

func (t *IPTables) busy() bool { return !t.began.IsZero() }

// look has the rules made what want says, unless a look is on its way. It outlives the round.
func (t *IPTables) look(ctx context.Context, want nat.Desired, drift bool) {
	if t.busy() {
		return
	}
	t.began, t.wanted = time.Now(), want
	go func() {
		changes, err := t.write(context.WithoutCancel(ctx), want)
		t.results <- rulesLook{drift, changes, err}
		t.Finished.Notify()
	}()
}

// wait waits for the look that is on its way.
func (t *IPTables) wait(ctx context.Context) {
	if !t.busy() {
		return
	}
	select {
	case look := <-t.results:
		t.take(look)
	case <-ctx.Done():
	}
}

func (t *IPTables) take(look rulesLook) {
	t.began = time.Time{}
	t.finished = append(t.finished, look)
	if t.failed = look.err; look.err != nil {
		t.failed = fmt.Errorf("iptables: %w", look.err)
	}
	t.inPlace = t.inPlace || look.err == nil
}

// reported are the changes of the looks that have ended.
func (t *IPTables) reported() (c Changes) {
	for _, look := range t.finished {
		s := sorted(look.changes, look.drift)
		c.Wanted, c.Repaired = append(c.Wanted, s.Wanted...), append(c.Repaired, s.Repaired...)
	}
	t.finished = nil
	return c
}

// Doubts implements Watcher.
func (*IPTables) Doubts(ovsdb.Observed) bool { return false }

// InPlace implements Watcher.
func (*IPTables) InPlace(context.Context, ovsdb.Observed) bool { return true }

// Due implements Watcher: a look has ended, and there is something new to be said of it.
func (t *IPTables) Due() bool {
	failed, late := t.failed != nil, t.busy() && time.Since(t.began) > rulesTimeout
	select {
	case look := <-t.results:
		t.take(look)
		return late || failed != (look.err != nil) || len(look.changes) > 0
	default:
		return false
	}
}

// Close waits for the look that is on its way: it would end half done. Its changes are not reported.
func (t *IPTables) Close() { t.wait(context.Background()) }
