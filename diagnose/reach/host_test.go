package reach

import (
	"testing"
	"time"
)

// A node that was down gets time to start its agent, even if this process was suspended meanwhile.
func TestHostSettled(t *testing.T) {
	p, grace := newPair(), time.Minute
	var h Host
	want := func(what string, settled bool) {
		t.Helper()
		if got := h.Settled(&p.a, grace, p.now); got != settled {
			t.Errorf("%s: settled %v, want %v", what, got, settled)
		}
	}
	want("never heard, never asked", false)
	h.Pinged(Answered, p.now)
	want("its node answers", false)
	p.run(grace)
	want("it is heard", true)
	p.bAway, p.toA = true, none
	p.run(20 * time.Second)
	want("it is silent, and its node was not asked", true)
	h.Pinged(NoReply, p.now)
	want("its node is down", false)
	p.now = p.now.Add(30 * time.Second) // this process is suspended
	p.run(4 * time.Second)
	h.Pinged(CannotPing, p.now)
	want("it cannot be asked", false)
	h.Pinged(Answered, p.now)
	want("its node is back", false)
	p.run(grace - 2*time.Second)
	h.Pinged(Answered, p.now)
	want("its agent starts", false)
	p.run(2 * time.Second)
	want("its agent should run", true)
	h.Pinged(NoReply, p.now)
	p.bAway, p.toA = false, all
	p.run(4 * time.Second)
	want("it is heard again", true)
}
