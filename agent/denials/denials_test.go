package denials

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/policy"
)

var start = time.Unix(1000, 0)

func kindOf(port uint16) Kind {
	return Kind{Direction: policy.Ingress, Pod: policy.PodKey{Namespace: "shop", Name: "db-0"},
		Peer: netip.MustParseAddr("10.77.1.6"), Protocol: policy.TCP, Port: port}
}

// A kind is logged immediately, and then once a minute with the number of its packets; one that has ended is dropped.
func TestOneLineAMinute(t *testing.T) {
	var l Log
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	again := func(second int, want map[Kind]uint64) {
		t.Helper()
		if due := l.Due(at(second)); fmt.Sprint(due.Again) != fmt.Sprint(want) || due.LeftOut != 0 {
			t.Errorf("after %d s: %v, want %v", second, due, want)
		}
	}
	if !l.Count(kindOf(80), at(0)) || l.Count(kindOf(80), at(1)) || !l.Count(kindOf(81), at(2)) {
		t.Error("the first of a kind has a line, and no other")
	}
	l.Count(kindOf(80), at(59))
	again(59, nil)
	again(60, map[Kind]uint64{kindOf(80): 2})
	again(62, nil)
	again(119, nil)
	l.Count(kindOf(80), at(119))
	again(120, map[Kind]uint64{kindOf(80): 1})
	again(180, nil)
	if !l.Count(kindOf(80), at(181)) || !l.Count(kindOf(81), at(181)) {
		t.Error("after a minute without a packet, a kind is not new")
	}
}

// However many kinds there are, there are few lines, and one states how many packets they omit.
func TestFloodOfKinds(t *testing.T) {
	var l Log
	lines := 0
	for i := range 60000 {
		if l.Count(kindOf(uint16(i)), start.Add(time.Duration(i)*time.Millisecond)) {
			lines++
		}
	}
	if want := burst + 60*perSecond; lines < want-1 || lines > want {
		t.Errorf("%d lines in a minute, want %d", lines, want)
	}
	due := l.Due(start.Add(time.Minute))
	if due.LeftOut != uint64(60000-lines) {
		t.Errorf("%d packets are counted as unlogged, want %d", due.LeftOut, 60000-lines)
	}
	l.CountMissed(7)
	if due := l.Due(start.Add(2*time.Minute - 1)); due.LeftOut != 0 {
		t.Error("the unlogged packets are reported before a minute is over")
	}
	if due := l.Due(start.Add(2 * time.Minute)); due.LeftOut != 7 || len(l.kinds) != 0 {
		t.Errorf("%d packets are counted as unlogged, want 7; %d kinds are remembered", due.LeftOut, len(l.kinds))
	}
}

// Recurring kinds do not log more lines than the limit either, and memory is bounded.
func TestLimitOfRepeats(t *testing.T) {
	var l Log
	now := start
	for port := range uint16(2 * maxKinds) {
		now = now.Add(time.Second / perSecond)
		l.Count(kindOf(port), now)
		l.Count(kindOf(port), now)
	}
	if len(l.kinds) != maxKinds {
		t.Fatalf("%d kinds are remembered, want %d", len(l.kinds), maxKinds)
	}
	now = now.Add(time.Hour)
	due := l.Due(now)
	if len(due.Again) != burst {
		t.Errorf("%d lines at once, want %d", len(due.Again), burst)
	}
	if more := l.Due(now.Add(time.Minute)); due.LeftOut+more.LeftOut != 2*maxKinds+maxKinds-burst {
		t.Errorf("%d and %d packets are counted as unlogged, want %d", due.LeftOut, more.LeftOut, 3*maxKinds-burst)
	}
}
