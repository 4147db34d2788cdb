package events

import (
	"testing"
	"time"
)

// The same message is not repeated on a Pod every few seconds, but another message is written immediately.
func TestWarned(t *testing.T) {
	var w warned
	if !w.allow("a") || w.allow("a") || !w.allow("b") {
		t.Error("want a, not a again, and b")
	}
	w.last["a"] = time.Now().Add(-2 * warnEvery)
	if !w.allow("a") || len(w.last) != 2 {
		t.Errorf("want a again after %s: %v", warnEvery, w.last)
	}
}
