package apply

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/nat"
)

// Pods do not wait for iptables, so a hanging iptables must be reported, and also its end.
func TestIPTablesThatHangsIsReported(t *testing.T) {
	answer := make(chan struct{})
	a := NewIPTables()
	a.inPlace, a.write = true, func(context.Context, nat.Desired) ([]string, error) { <-answer; return nil, nil }
	verify := &Round{Verify: true, Settled: true}
	if _, err := a.Apply(t.Context(), verify); err != nil {
		t.Errorf("a moment after the request: %v", err)
	}
	a.began = time.Now().Add(-2 * rulesTimeout)
	if _, err := a.Apply(t.Context(), verify); err == nil {
		t.Error("it is not reported")
	}
	close(answer)
	<-a.Finished
	if !a.Due() {
		t.Error("no round is due to report that it has answered")
	}
	if _, err := a.Apply(t.Context(), &Round{}); err != nil {
		t.Errorf("after it has answered: %v", err)
	}
}

// A round waits for changed rules, because routes come after them, but no longer than the maximum duration of a round.
func TestIPTablesWaitsForOtherRules(t *testing.T) {
	answer := make(chan error, 1)
	a := NewIPTables()
	a.write = func(context.Context, nat.Desired) ([]string, error) { return []string{"written"}, <-answer }
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := a.Apply(short, &Round{}); err == nil {
		t.Error("rules that are not in place count as such")
	}
	answer <- nil
	for _, reported := range []int{1, 0} {
		if c, err := a.Apply(t.Context(), &Round{}); err != nil || len(c.Wanted) != reported {
			t.Errorf("the rules are in place, and %v was reported: %v; want %d changes", c, err, reported)
		}
	}
}

// A failed check is repeated by the next round, even if that does not verify.
func TestIPTablesThatFailedIsAskedAgain(t *testing.T) {
	answer := make(chan error, 1)
	a := NewIPTables()
	a.inPlace, a.write = true, func(context.Context, nat.Desired) ([]string, error) { return nil, <-answer }
	round := func(r *Round) (err error) {
		t.Helper()
		if _, err = a.Apply(t.Context(), r); a.busy() {
			<-a.Finished
			a.Due()
		}
		return err
	}
	answer <- errors.New("no such program")
	if err := round(&Round{Verify: true, Settled: true}); err != nil {
		t.Errorf("a moment after the request: %v", err)
	}
	answer <- nil
	if err := round(&Round{Settled: true}); err == nil {
		t.Error("that it failed is not reported")
	}
	if err := round(&Round{Settled: true}); err != nil {
		t.Errorf("it was asked again, and succeeded: %v", err)
	}
}
