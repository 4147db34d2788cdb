package events

import (
	"testing"
	"time"
)

// The same is not said of a Pod every few seconds, and another thing is said at once.
func TestWarned(t *testing.T) {
	var w warned
	if !w.again("a") || w.again("a") || !w.again("b") {
		t.Error("want a, not a again, and b")
	}
	w.last["a"] = time.Now().Add(-2 * warnEvery)
	if !w.again("a") || len(w.last) != 2 {
		t.Errorf("want a again after %s: %v", warnEvery, w.last)
	}
}
