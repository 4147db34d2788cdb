package agent

import "testing"

// A round takes the ADD whose veth is being made when it begins, and waits for none if nobody has asked for anything.
func TestGather(t *testing.T) {
	l := &loop{requests: make(chan request)}
	l.making.Store(1)
	if got := l.gather(0); got != nil {
		t.Errorf("a round without requests waited and took %d", len(got))
	}
	go func() {
		l.requests <- request{del: key{"second", "eth0"}}
		l.making.Store(0)
	}()
	if got := l.gather(1); len(got) == 0 || got[0].del.containerID != "second" {
		t.Errorf("the round took %v, want the request that came", got)
	}
}

// One whose veth takes long does not hold up the others.
func TestGatherEnds(t *testing.T) {
	l := &loop{requests: make(chan request)}
	l.making.Store(1)
	if got := l.gather(1); len(got) != 0 {
		t.Errorf("took %v", got)
	}
}
