package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// scanTimeout bounds the list of one zone: with 250,000 connections it takes seconds, and more while ovs-vswitchd is
// busy. scanLate is how long a scan may take before that is reported.
const (
	scanTimeout = time.Minute
	scanLate    = 5 * time.Second
)

// partSize is how many connections are handed over at a time: as many as the loop can judge without delaying a pod.
const partSize = 500

// twice is work to be done now, and once more when the datapath must have caught up (staleFor).
type twice struct {
	now   bool
	again time.Time // when it is due again; zero: never
}

// begin reports whether the work is to be done, and notes that it has begun.
func (t *twice) begin(now time.Time) bool {
	if !t.now && !t.due(now) {
		return false
	}
	if t.again = (time.Time{}); t.now {
		t.again = now.Add(staleFor)
	}
	t.now = false
	return true
}

// retry has the work done again, after an error.
func (t *twice) retry(now time.Time) { t.now, t.again = true, now.Add(staleFor) }

// due reports whether it is time for the second run, or for a retry.
func (t *twice) due(now time.Time) bool { return !t.again.IsZero() && now.After(t.again) }

// scan lists the connections of conntrack zones, in parallel to the rounds, and hands them over in parts. Each scan
// is repeated once when the datapath must have caught up (staleFor), and again after an error.
type scan struct {
	twice
	// found is notified when a part can be taken.
	found signal.Signal
	parts chan part
	began time.Time // zero: none is running
	last  time.Time // when the last one began
	end   context.CancelFunc
	// broken is why the findings of this scan could not be processed, failed why the last one did not achieve its
	// purpose.
	broken, failed   error
	reported, logged bool // that it failed, or takes long
}

// part is some of what a scan found; the last has no connections.
type part struct {
	zone uint16
	all  []vswitchd.Connection
	last bool
	err  error
}

// newScan returns one that notifies found.
func newScan(found signal.Signal) scan { return scan{found: found, parts: make(chan part, 1)} }

func (s *scan) busy() bool { return !s.began.IsZero() }

// due reports whether it is time for a scan, or to report the outcome of the last one.
func (s *scan) due(now time.Time) bool {
	return !s.busy() && s.twice.due(now) || s.reported != (s.problem(now) != nil)
}

// start begins a scan of zones if one is due and none is running. list calls its argument with each relevant
// connection of a zone.
func (s *scan) start(ctx context.Context, now time.Time, zones []uint16,
	list func(ctx context.Context, zone uint16, yield func(vswitchd.Connection) error) error) {
	if s.busy() || !s.begin(now) {
		return
	}
	ctx, s.end = context.WithCancel(context.WithoutCancel(ctx)) // it outlives the round
	s.began, s.broken = now, nil
	go func() {
		var failed error
		for _, zone := range zones {
			failed = errors.Join(failed, s.zone(ctx, zone, list))
		}
		s.parts <- part{last: true, err: failed}
		s.found.Notify()
	}()
}

// zone hands over the connections of one zone.
func (s *scan) zone(ctx context.Context, zone uint16,
	list func(context.Context, uint16, func(vswitchd.Connection) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	var found []vswitchd.Connection
	put := func() error {
		select {
		case s.parts <- part{zone: zone, all: found}:
			s.found.Notify()
			found = nil
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := list(ctx, zone, func(c vswitchd.Connection) error {
		if found = append(found, c); len(found) < partSize {
			return nil
		}
		return put()
	})
	if err == nil && len(found) > 0 {
		err = put()
	}
	return err
}

// take calls each with a part that has been found, and reports whether that was the end of a scan in which nothing
// failed. After an error of each, the scan ends and is repeated.
func (s *scan) take(now time.Time, each func(part) error) (done bool) {
	select {
	case p := <-s.parts:
		if !p.last {
			if err := each(p); err != nil {
				s.broken = err
				s.end()
			}
			return false
		}
		return s.finish(now, p.err)
	default:
		return false
	}
}

// finish records how a scan ended.
func (s *scan) finish(now time.Time, err error) (done bool) {
	s.end()
	s.last, s.began, s.failed = s.began, time.Time{}, cmp.Or(s.broken, err)
	if s.failed != nil {
		s.retry(now)
	}
	return s.failed == nil
}

// problem returns why the scan's purpose is not achieved yet; nil if it is, or if the scan is in time.
func (s *scan) problem(now time.Time) error {
	if took := now.Sub(s.began); s.failed == nil && s.busy() && took > scanLate {
		return fmt.Errorf("ovs-vswitchd has been listing connections for %s", took.Round(time.Second))
	}
	return s.failed
}

// report returns the problem, and notes that it is reported.
func (s *scan) report(now time.Time) error {
	err := s.problem(now)
	s.reported = err != nil
	return err
}

// stop ends a scan, and returns when it has ended. It is not repeated.
func (s *scan) stop() {
	if !s.busy() {
		return
	}
	for s.end(); !(<-s.parts).last; {
	}
	s.began = time.Time{}
}
