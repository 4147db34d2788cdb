package ofconn

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// A switch that answers gets an echo request per probeInterval, and the connection to a silent one ends at LostAfter.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := &Conn{sock: here, log: logr.Discard(), done: make(chan struct{}), opened: time.Now(),
			echo: make(chan Message, 1), nextXID: 1}
		go c.watch()
		asks, answered := 0, time.Now()
		for request := make([]byte, HeaderLen); ; asks++ {
			if _, err := io.ReadFull(there, request); err != nil {
				break
			}
			if time.Since(c.opened) < time.Minute {
				answered = time.Now()
				c.heard.Store(int64(time.Since(c.opened)))
			}
		}
		if most := int(time.Minute/probeInterval) + 3; asks > most {
			t.Errorf("in a minute, and until the connection ended, the switch got %d echo requests, want at most %d", asks, most)
		}
		if silent := time.Since(answered); silent != LostAfter {
			t.Errorf("given up after %s of silence, want %s", silent, LostAfter)
		}
		if err := c.fail(ErrClosed); !strings.Contains(err.Error(), "no message from the switch for 5s") {
			t.Errorf("given up because of: %v", err)
		}
	})
}

// A process that was stopped for longer than LostAfter probes the switch before it gives up the connection.
func TestWatchThatStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := &Conn{sock: here, log: logr.Discard(), done: make(chan struct{}), opened: time.Now().Add(-2 * LostAfter),
			echo: make(chan Message, 1), nextXID: 1}
		go c.watch()
		for i, answers := range []bool{true, false, false} {
			if _, err := io.ReadFull(there, make([]byte, HeaderLen)); err != nil {
				t.Fatalf("after %d questions it was given up: %v", i, c.fail(ErrClosed))
			}
			if answers {
				c.heard.Store(int64(time.Since(c.opened)))
			}
		}
		heard := time.Duration(c.heard.Load())
		<-c.done
		if silent := time.Since(c.opened) - heard; silent != LostAfter {
			t.Errorf("given up after %s of silence, want %s", silent, LostAfter)
		}
	})
}

// Late answers to a request that has timed out belong to no other request.
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
	c.deliver(Message{Kind: Error, XID: 0}) // no longer awaited
}
