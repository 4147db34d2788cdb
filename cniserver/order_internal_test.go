package cniserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// isTurn reports whether t may run now.
func isTurn(t *turn) bool {
	for _, s := range t.waitFor {
		select {
		case <-s:
		default:
			return false
		}
	}
	return true
}

// becomesTurn waits until t is next, which another goroutine decides.
func becomesTurn(t *testing.T, tn *turn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := tn.wait(ctx); err != nil {
		t.Fatal("its turn did not come")
	}
}

func TestOrderOfArrival(t *testing.T) {
	var o order
	a, b := AttachmentID{"a", "eth0"}, AttachmentID{"a", "eth1"}
	first, second, third, other := o.attachment(a), o.attachment(a), o.attachment(a), o.attachment(b)
	if !isTurn(first) || !isTurn(other) || isTurn(second) || isTurn(third) {
		t.Fatal("the first of each attachment runs, and no other")
	}
	o.leave(first)
	if !isTurn(second) || isTurn(third) {
		t.Fatal("then the second")
	}
	late := o.attachment(a)
	if o.leave(second); !isTurn(third) || isTurn(late) {
		t.Fatal("then the third, before one that came while others had left")
	}
	o.leave(third)
	o.leave(late)
	o.leave(other)
	if len(o.last) != 0 {
		t.Errorf("%d places are kept without a request", len(o.last))
	}
}

// A call that gives up does not let later calls overtake earlier ones.
func TestGivingUp(t *testing.T) {
	var o order
	a := AttachmentID{"a", "eth0"}
	first, second, third := o.attachment(a), o.attachment(a), o.attachment(a)
	o.leave(second)
	if isTurn(third) {
		t.Fatal("the third runs beside the first")
	}
	o.leave(first)
	becomesTurn(t, third)
	o.leave(third)
}

func TestGCRunsAlone(t *testing.T) {
	var o order
	a, b := AttachmentID{"a", "eth0"}, AttachmentID{"b", "eth0"}
	before := o.attachment(a)
	gc := o.all()
	after, same := o.attachment(b), o.attachment(a)
	if isTurn(gc) || isTurn(after) || isTurn(same) {
		t.Fatal("only the call before the GC runs")
	}
	o.leave(before)
	if !isTurn(gc) || isTurn(after) || isTurn(same) {
		t.Fatal("then only the GC")
	}
	o.leave(gc)
	if !isTurn(after) || !isTurn(same) {
		t.Fatal("then those after it")
	}
	o.leave(after)
	o.leave(same)
	if len(o.last) != 0 || o.gc != nil {
		t.Error("places are kept without a request")
	}
}

// A GC that gave up waiting for a stuck ADD must not delay other pods.
func TestGCGivesUp(t *testing.T) {
	var o order
	stuck := o.attachment(AttachmentID{"stuck", "eth0"})
	gc := o.all()
	behind := o.attachment(AttachmentID{"b", "eth0"})
	o.leave(gc)
	if !isTurn(behind) || !isTurn(o.attachment(AttachmentID{"c", "eth0"})) {
		t.Fatal("other pods wait for the GC that gave up")
	}
	if isTurn(o.attachment(AttachmentID{"stuck", "eth0"})) {
		t.Fatal("the stuck ADD was overtaken")
	}
	if isTurn(o.all()) {
		t.Fatal("the next GC runs beside the stuck ADD")
	}
	o.leave(stuck)
}

// A GC that gave up while another GC runs leaves the order as it would be without it.
func TestGCBehindGCGivesUp(t *testing.T) {
	var o order
	running := o.all()
	waiting := o.all()
	o.leave(waiting)
	pod, third := o.attachment(AttachmentID{"a", "eth0"}), o.all()
	if isTurn(pod) || isTurn(third) {
		t.Fatal("runs beside the first GC")
	}
	o.leave(running)
	becomesTurn(t, pod)
	o.leave(pod)
	becomesTurn(t, third)
	o.leave(third)
}

// Many calls, some of which give up: never two of one attachment, never a GC concurrent with others, and no call waits
// for ever.
func TestOrderUnderLoad(t *testing.T) {
	var o order
	var running [3]atomic.Int32
	var gcs atomic.Int32
	var wg sync.WaitGroup
	for range 2000 {
		which := rand.IntN(40)
		patience := time.Duration(rand.IntN(3)) * time.Millisecond
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute+patience, errors.New("stuck"))
			defer cancel()
			if patience > 0 {
				ctx, cancel = context.WithTimeout(context.Background(), patience)
				defer cancel()
			}
			if which == 0 {
				tn := o.all()
				defer o.leave(tn)
				if err := tn.wait(ctx); err != nil {
					return
				}
				if gcs.Add(1) != 1 || slices.ContainsFunc([]int32{running[0].Load(), running[1].Load(), running[2].Load()},
					func(n int32) bool { return n != 0 }) {
					t.Error("a GC does not run alone")
				}
				gcs.Add(-1)
				return
			}
			i := which % 3
			tn := o.attachment(AttachmentID{string(rune('a' + i)), "eth0"})
			defer o.leave(tn)
			if err := tn.wait(ctx); err != nil {
				if err.Error() == "stuck" {
					t.Error("waited for ever")
				}
				return
			}
			if running[i].Add(1) != 1 || gcs.Load() != 0 {
				t.Error("two calls of one attachment, or one beside a GC")
			}
			running[i].Add(-1)
		})
	}
	wg.Wait()
}
