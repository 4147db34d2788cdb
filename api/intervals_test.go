package api

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseIntervals(t *testing.T) {
	want := DefaultIntervals()
	if got, err := ParseIntervals(""); err != nil || got != want {
		t.Errorf("got %+v, error %v, want the product's", got, err)
	}
	want.Agent.Resync, want.Controller.Pass = 2*time.Second, 100*time.Millisecond
	if got, err := ParseIntervals("agent.resync=2s,controller.pass=100ms"); err != nil || got != want {
		t.Errorf("got %+v, error %v, want %+v", got, err, want)
	}
	for text, wants := range map[string][]string{
		"resync=2s":         {`"resync" is not an interval`, "agent.resync, "},
		"agent.resync":      {"interval agent.resync", "1.5s"},
		"agent.resync=2":    {"interval agent.resync", "missing unit"},
		"agent.resync=0s":   {"interval agent.resync is 0s: it must be positive"},
		"agent.probe=1m":    {"agent.probe is 1m0s: it must be shorter than agent.probeAge, which is 30s"},
		"agent.guard=1s,":   {`"" is not an interval`},
		"controller.sets=h": {"controller.sets", "invalid duration"},
	} {
		_, err := ParseIntervals(text)
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %v, want %q", text, err, want)
			}
		}
	}
}

// Each field has a name of its own, and a valid default.
func TestIntervalsHaveNames(t *testing.T) {
	i := DefaultIntervals()
	if err := i.Validate(); err != nil {
		t.Error(err)
	}
	fields, v := 0, reflect.ValueOf(i)
	for n := range v.NumField() {
		fields += v.Field(n).NumField()
	}
	seen := map[*time.Duration]bool{}
	for _, d := range i.byName() {
		seen[d] = true
	}
	if len(seen) != fields || len(i.byName()) != fields {
		t.Errorf("%d names for %d of %d fields", len(i.byName()), len(seen), fields)
	}
}
