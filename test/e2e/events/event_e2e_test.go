package events

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/matrix"
)

// Kinds of traffic that are counted. The control runs between two hosts outside the nodes, through a switch that is
// also an Open vSwitch on this machine: no event affects it, so it suffers only if the machine is too slow.
const (
	ofHost    = "host"
	ofPods    = "pods"
	ofControl = "control"
)

// event is a failure or change in a cluster.
type event struct {
	name string
	do   func(ctx context.Context, c *busy) error
	// free are the kinds of traffic that must not lose packets.
	free []string
	// undo is called before an event that cannot happen twice is repeated; nil for others.
	undo func(ctx context.Context, c *busy) error
}

// attempts is the maximum number of attempts of an event, which is retried while the control suffers as well.
const attempts = 3

// stall is how late the control's answers, one every 20 ms, may be. After a longer gap the queues of other streams may
// have overflowed.
const stall = 100 * time.Millisecond

// slowed reports whether the control shows that the machine was too slow.
func slowed(control matrix.Toll) bool {
	return control.Lost() || max(control.Established.LongestGap, control.New.LongestGap) > stall
}

// backWithin is the time limit after an event for all paths to work again.
const backWithin = time.Minute

// happenAll runs the events one after the other under load. None may lose any traffic of its kinds in free. An event is
// retried only if the control has suffered as well: then it is not known whether the event is the cause. Every attempt
// is recorded in the table.
func (c *busy) happenAll(ctx context.Context, t *testing.T, paths []matrix.Path, events ...event) {
	t.Helper()
	c.happen(ctx, t, paths, event{name: "warm-up", do: nothing}) // the first packet to a node waits for ARP
	for _, e := range events {
		t.Run(e.name, func(t *testing.T) {
			for n := 1; ; n++ {
				cost := c.happen(ctx, t, paths, e)
				if n > 1 {
					cost.Name = fmt.Sprintf("%s, attempt %d", e.name, n)
				}
				c.table = append(c.table, cost)
				wrong := e.wrong(cost)
				if t.Failed() || len(wrong) == 0 {
					return
				}
				slow := slices.ContainsFunc(cost.Of(ofControl), slowed)
				if !slow || n == attempts {
					t.Errorf("attempt %d, the machine was too slow: %t (%v); lost: %v", n, slow, cost.Of(ofControl), wrong)
					return
				}
				t.Logf("once more, since the machine was too slow (%v): %v", cost.Of(ofControl), wrong)
				if e.undo != nil {
					cluster.Must(t, e.undo(ctx, c))
				}
			}
		})
	}
}

// keep logs the table and, if FAIRLEAD_E2E_OUT names a directory, writes it to a file there named after the test.
func (c *busy) keep(t *testing.T) {
	t.Helper()
	table := matrix.Table(c.table, ofHost, ofPods, ofControl)
	t.Logf("What was lost:\n%s", table)
	dir := os.Getenv("FAIRLEAD_E2E_OUT")
	if dir == "" {
		return
	}
	cluster.Must(t, os.MkdirAll(dir, 0o755))
	cluster.Must(t, os.WriteFile(filepath.Join(dir, t.Name()+".txt"), []byte(table), 0o644))
}

// nothing is the baseline with which the events are compared.
func nothing(context.Context, *busy) error { return nil }

// happen runs e while the paths carry traffic.
func (c *busy) happen(ctx context.Context, t *testing.T, paths []matrix.Path, e event) matrix.Event {
	t.Helper()
	m, err := matrix.Start(paths)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Stop()
	if err := m.Flow(backWithin); err != nil {
		t.Fatalf("before the event: %v", err)
	}
	f, err := matrix.StartForbidden(c.forbidden)
	cluster.Must(t, err)
	defer func() {
		if err := f.Stop(); err != nil {
			t.Errorf("policies forbid it: %v", err)
		}
	}()
	if err := e.do(ctx, c); err != nil {
		t.Fatal(err)
	}
	if err := m.Flow(backWithin); err != nil {
		t.Errorf("after the event: %v", err)
	}
	return matrix.Event{Name: e.name, Tolls: m.Stop()}
}

// wrong are the losses that are not allowed.
func (e event) wrong(of matrix.Event) []matrix.Toll {
	return slices.DeleteFunc(slices.Clone(of.Tolls), func(t matrix.Toll) bool {
		return !t.Lost() || !slices.Contains(e.free, t.Kind)
	})
}
