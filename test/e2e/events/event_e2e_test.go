package events

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/matrix"
)

// Kinds of traffic that are counted.
const (
	ofHost = "host"
	ofPods = "pods"
)

// event is a failure or change in a cluster.
type event struct {
	name string
	do   func(ctx context.Context, c *busy) error
	// free are the kinds of traffic that must not lose packets.
	free []string
}

// attempts is how often an event may be repeated: a machine that is busy with something else loses packets by itself.
const attempts = 3

// backWithin is the time limit after an event for all paths to work again.
const backWithin = time.Minute

// happenAll runs the events one after the other under load, and prints what each cost.
func (c *busy) happenAll(ctx context.Context, t *testing.T, ways []matrix.Way, events []event) {
	var table []matrix.Event
	defer func() { keep(t, matrix.Table(table, ofHost, ofPods)) }()
	c.happen(ctx, t, ways, event{name: "warm-up", do: nothing}) // the first packet to a node waits for ARP
	for _, e := range events {
		t.Run(e.name, func(t *testing.T) {
			var cost matrix.Event
			for range attempts {
				cost = c.happen(ctx, t, ways, e)
				if t.Failed() || len(e.wrong(cost)) == 0 {
					break
				}
				t.Logf("once more: %v", e.wrong(cost))
			}
			table = append(table, cost)
			for _, toll := range e.wrong(cost) {
				t.Error(toll)
			}
		})
	}
}

// keep logs the table and, if FAIRLEAD_E2E_OUT names a directory, writes it to a file there named after the test.
func keep(t *testing.T, table string) {
	t.Helper()
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
func (c *busy) happen(ctx context.Context, t *testing.T, ways []matrix.Way, e event) matrix.Event {
	t.Helper()
	m, err := matrix.Start(ways)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Stop()
	if err := m.Flow(backWithin); err != nil {
		t.Fatalf("before the event: %v", err)
	}
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
