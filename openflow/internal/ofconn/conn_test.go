package ofconn

import "testing"

// Late answers to a request that has timed out belong to none.
func TestAnswersToOthers(t *testing.T) {
	const last = ^uint32(0)
	x := &exchange{first: last - 1, barrier: 1, done: make(chan struct{})} // IDs last-1, last, 0, 1
	c := &Conn{pending: x}
	for _, xid := range []uint32{last - 2, 2, 77} {
		c.deliver(Message{Kind: Error, XID: xid})
		c.deliver(Message{Kind: BarrierReply, XID: xid})
	}
	c.deliver(Message{Kind: 19, XID: last - 1})
	c.deliver(Message{Kind: Error, XID: 0})
	select {
	case <-x.done:
		t.Fatal("another barrier's reply ended the exchange")
	default:
	}
	c.deliver(Message{Kind: BarrierReply, XID: 1})
	select {
	case <-x.done:
	default:
		t.Fatal("the barrier's reply did not end the exchange")
	}
	if len(x.answers) != 2 || x.answers[0].XID != last-1 || x.answers[1].XID != 0 {
		t.Errorf("answers %+v, want the two in between", x.answers)
	}
	c.deliver(Message{Kind: Error, XID: 0}) // nobody waits any more
}
