package addresses

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// source is a Source with only a snapshot.
type source struct {
	inputs.Source
	is inputs.Snapshot
}

func (s *source) Snapshot() *inputs.Snapshot { return &s.is }

// After an outage, the API server's data may be from an older backup, in which addresses of running pods are free. Each
// node checks that after an outage, and none allocates an address before the others have had time to do so.
func TestAfterAnOutage(t *testing.T) {
	s := &source{}
	p := &Addresses{Parts: Parts{Source: s, Intervals: api.DefaultIntervals().Agent},
		allocator: allocator.New(allocator.Config{})}
	p.newReconciler()
	w := &p.reconciler
	w.began = time.Now().Add(-time.Hour)
	for _, c := range []struct {
		outages int
		due     bool
	}{{0, false}, {1, true}, {1, false}, {3, true}, {3, false}} {
		due, err := w.due(true, c.outages)
		if err != nil || due != c.due && !w.readAt.IsZero() {
			t.Errorf("after %d outages: due %t, %v, want %t", c.outages, due, err, c.due)
		}
		w.readAt, w.outages = time.Now(), c.outages
	}
	for what, c := range map[string]struct {
		now, ask bool
		looked   time.Duration // ago
		want     bool
	}{
		"just after a look":         {false, true, 0, false},
		"something asks for a look": {true, true, 0, true},
		"the store is a directory":  {false, false, 0, true},
		"a while ago":               {false, true, w.every.Allocations + time.Second, true},
	} {
		if w.readAt = time.Now().Add(-c.looked); c.now {
			w.trigger()
		}
		for i, want := range []bool{c.want, c.want && (!c.ask || c.looked > 0)} { // a request takes effect once
			if due, err := w.due(c.ask, w.outages); err != nil || due != want {
				t.Errorf("%s, %d: due %t, %v, want %t", what, i, due, err, want)
			}
		}
	}
	away := errors.New("connection refused")
	for what, c := range map[string]struct {
		is   inputs.Snapshot
		want string
	}{
		"never away":                {},
		"one kind cannot be read":   {is: inputs.Snapshot{Trouble: away, Outages: 1}},
		"away":                      {inputs.Snapshot{Trouble: away, Outages: 1, Away: true}, "connection refused"},
		"back, with the same data":  {is: inputs.Snapshot{Outages: 1}},
		"back, with other data":     {inputs.Snapshot{Outages: 1, Replaced: time.Now()}, "as by a restored backup"},
		"back with it for a minute": {is: inputs.Snapshot{Outages: 1, Replaced: time.Now().Add(-time.Minute)}},
	} {
		s.is = c.is
		err := p.allocationBlocked()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
