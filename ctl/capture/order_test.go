package capture

import (
	"slices"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/capture"
)

// at is a packet with that time, in milliseconds, of interface 0.
func at(ms int) packet {
	return packet{Frame: capture.Frame{Time: time.UnixMilli(int64(ms)), Data: make([]byte, 100), Length: 100}}
}

func times(next func() (packet, bool)) (out []int) {
	for p, ok := next(); ok; p, ok = next() {
		out = append(out, int(p.Time.UnixMilli()))
	}
	return out
}

func TestOrder(t *testing.T) {
	begin := time.Now()
	after := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	type come struct{ ms, at int }
	for _, c := range []struct {
		name       string
		come       []come // timestamps and arrival times
		now        int
		want, rest []int
	}{
		{"none", nil, 5000, nil, nil},
		{"all wait", []come{{10, 0}, {5, 1}}, 900, nil, []int{5, 10}},
		{"two nodes in turn", []come{{1, 0}, {3, 0}, {2, 5}, {4, 5}}, 1100, []int{1, 2, 3, 4}, nil},
		{"the earliest waits no longer than the first to come", []come{{9, 0}, {7, 800}, {8, 900}}, 1050, []int{7, 8, 9}, nil},
		{"what came later and is later waits", []come{{1, 0}, {2, 700}}, 1100, []int{1}, []int{2}},
		{"a clock that is ahead", []come{{90000, 0}, {1, 0}, {2, 100}}, 1050, []int{1, 2, 90000}, nil},
	} {
		var o order
		for _, p := range c.come {
			o.add(at(p.ms), after(p.at))
		}
		got := times(func() (packet, bool) { return o.next(after(c.now)) })
		if rest := times(o.rest); !slices.Equal(got, c.want) || !slices.Equal(rest, c.rest) || o.bytes != 0 {
			t.Errorf("%s: %v, and the rest %v, want %v and %v; %d bytes are left", c.name, got, rest, c.want, c.rest, o.bytes)
		}
	}
}

// Of two packets with the same time the one that arrived first comes first, and the memory for held packets is bounded.
func TestOrderOfMany(t *testing.T) {
	var o order
	now := time.Now()
	big := at(7)
	big.Data = make([]byte, maxHeldBytes/4)
	for i := range 6 {
		big.at = i
		o.add(big, now)
	}
	for i := range 2 {
		if p, ok := o.next(now); !ok || p.at != i {
			t.Errorf("packet %d of too many: %v, of interface %d", i, ok, p.at)
		}
	}
	if _, ok := o.next(now); ok || o.bytes != maxHeldBytes {
		t.Errorf("%d bytes wait, want %d", o.bytes, maxHeldBytes)
	}
}
