package openflow

import (
	"slices"
	"testing"
)

// Missing, altered and foreign flows are reported, and desired flows are not.
func TestCompare(t *testing.T) {
	flow := func(priority uint16) Flow { return Flow{Table: 3, Priority: priority, Kind: KindPod} }
	as := func(f Flow) listed { return listed{flow: f, cookie: f.Cookie()} }
	good, altered, missing, foreign, late := flow(1), flow(2), flow(3), flow(4), flow(5)
	changed := as(altered)
	changed.flow.Actions = []Action{Output(7)}
	foreign.Kind = 0
	limited := as(late)
	limited.limited = true
	list := []listed{as(good), changed, {flow: foreign, cookie: 0x77}, limited}
	want := []string{good.String(), altered.String(), missing.String(), late.String()}
	d := compare(list, want)
	wantMissing := slices.Sorted(slices.Values([]string{altered.String(), missing.String(), late.String()}))
	if !slices.Equal(d.Missing, wantMissing) {
		t.Errorf("missing %q, want %q", d.Missing, wantMissing)
	}
	if len(d.Foreign) != 3 {
		t.Errorf("foreign %q", d.Foreign)
	}
	if d := compare(list, nil); len(d.Missing) != 0 || len(d.Foreign) != 3 {
		t.Errorf("nothing is desired: %+v", d)
	}
	if d := compare([]listed{as(good)}, []string{good.String()}); len(d.Missing)+len(d.Foreign) != 0 {
		t.Errorf("all is well: %+v", d)
	}
}
