package reach

import (
	"slices"
	"testing"
	"time"
)

// heardReport is when others have heard the peer, in seconds after this end last heard it, and when they reported that.
type heardReport struct{ heard, said float64 }

// Reports of others count once they have heard the peer for as long as it takes to find a path broken, and while they
// still hear it.
func TestHeardByOthers(t *testing.T) {
	every := func(first, last float64) (out []heardReport) {
		for at := first; at <= last; at += 2 {
			out = append(out, heardReport{at, at + 1})
		}
		return out
	}
	for _, c := range []struct {
		name    string
		reports []heardReport
		at      float64
		runs    bool
	}{
		{"no other has heard it", nil, 30, false},
		{"it is heard all the time", every(4, 29), 30, true},
		{"not yet for long enough", every(4, 13), 15, false},
		{"for as long as a path takes to fail", every(4, 14), 15, true},
		{"its agent has just started", every(100, 109), 110, false},
		{"and runs for a while", every(100, 111), 112, true},
		{"it has stopped", every(4, 18), 30, false},
		{"it was heard when the silence began", []heardReport{{2, 9}, {12, 13}}, 14, false},
		{"and before", []heardReport{{-1, 5}, {-1, 9}, {12, 13}}, 14, false},
		{"it was heard before it restarted, and after", slices.Concat(every(4, 8), every(100, 101)), 101, false},
		{"what is said late is of its time", []heardReport{{4, 5}, {15, 40}}, 41, false},
	} {
		l := Link{Interval: 2 * time.Second}
		began := time.Unix(1e9, 0)
		l.Next(began)
		heard := began.Add(time.Second)
		l.Receive(Packet{Seq: 1, Interval: 2 * time.Second}, heard)
		after := func(s float64) time.Time { return heard.Add(time.Duration(s * float64(time.Second))) }
		for s := 2.0; s <= c.at; s += 2 {
			l.Next(after(s))
		}
		var r Reports
		for _, v := range c.reports {
			r.Add(&l, "node c", after(v.heard))
		}
		if by := r.HeardBy(&l, after(c.at)); (by != "") != c.runs {
			t.Errorf("%s: heard by %q, want %v", c.name, by, c.runs)
		}
		l.Receive(Packet{Seq: 2, Interval: 2 * time.Second}, after(c.at))
		if by := r.HeardBy(&l, after(c.at+1)); by != "" {
			t.Errorf("%s: it is heard here, and %q is asked", c.name, by)
		}
		for s := c.at + 3; s < c.at+20; s += 2 {
			l.Next(after(s))
			r.Add(&l, "node c", after(s))
		}
		if r.HeardBy(&l, after(c.at+20)) == "" {
			t.Errorf("%s: it is silent again, and heard by another all the time", c.name)
		}
	}
}
