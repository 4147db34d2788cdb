package openflow

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	// probeAfter is how long the switch may be silent before it is asked for a sign of life, and lostAfter how long
	// before it is given up. A stopped ovs-vswitchd keeps its sockets open, and so does one that has lost
	// ovsdb-server, so nothing else would tell.
	probeAfter = 2 * time.Second
	lostAfter  = 5 * time.Second
)

// conn is an OpenFlow 1.5 connection that knows which answer belongs to which request.
type conn struct {
	sock  net.Conn
	log   logr.Logger
	done  chan struct{} // closed when the connection is over
	heard atomic.Int64  // Unix nanoseconds of the last message
	echo  chan message  // echo requests to answer

	writing sync.Mutex // held while writing to sock

	mu      sync.Mutex // guards what follows
	err     error      // why the connection is over
	nextXID uint32
	pending *exchange // nil if no call of ask waits
}

// exchange is a block of requests and the answers to them.
type exchange struct {
	first   uint32 // transaction ID of the first request
	barrier uint32 // and of the barrier request behind the last
	answers []message
	done    chan struct{} // closed by the barrier's reply
}

// open connects to the socket and agrees on OpenFlow 1.5.
func open(ctx context.Context, path string, log logr.Logger) (*conn, error) {
	sock, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	c := &conn{sock: sock, log: log, done: make(chan struct{}), echo: make(chan message, 1), nextXID: 1}
	c.heard.Store(time.Now().UnixNano())
	r := bufio.NewReaderSize(sock, 1<<16)
	ctx, cancel := context.WithTimeout(ctx, lostAfter)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = sock.SetReadDeadline(time.Unix(1, 0)) })
	err = c.greet(r)
	if !stop() {
		err = fmt.Errorf("the switch does not answer: %w", ctx.Err())
	}
	if err != nil {
		sock.Close()
		return nil, err
	}
	go c.read(r)
	go c.watch()
	return c, nil
}

// greet exchanges hellos. What the switch offers is its version field, if it
// is 1.5 or later: it then takes 1.5, the only version that ours offers.
func (c *conn) greet(r io.Reader) error {
	hello, err := encodeHello(c.reserve(1))
	if err != nil {
		return err
	}
	if err := c.write(hello); err != nil {
		return err
	}
	m, err := readMessage(r)
	switch {
	case err != nil:
		return fmt.Errorf("waiting for the switch's hello: %w", err)
	case m.kind == msgError:
		return fmt.Errorf("the switch rejected the connection: %w", m.switchError())
	case m.kind != msgHello:
		return fmt.Errorf("the switch does not speak OpenFlow: its first message has type %d", m.kind)
	case m.version < ofVersion:
		return fmt.Errorf("the switch offers OpenFlow version %d, but 6 (1.5) is needed: "+
			"clear the bridge's protocols column in OVSDB", m.version)
	}
	return nil
}

// reserve returns the first of n transaction IDs that nothing else will use.
func (c *conn) reserve(n int) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.nextXID
	c.nextXID += uint32(n)
	return first
}

// ask sends requests and returns all answers to them. Requests have the transaction IDs from first on; the one behind
// them must be reserved too, for a barrier. The switch answers that when it is done with everything before, so every
// error has come by then. One call at a time.
func (c *conn) ask(ctx context.Context, first uint32, requests [][]byte) ([]message, error) {
	x := &exchange{first: first, barrier: first + uint32(len(requests)), done: make(chan struct{})}
	c.await(x)
	defer c.await(nil)
	var b []byte
	for _, r := range requests {
		b = append(b, r...)
	}
	b = append(b, encodeBare(msgBarrierRequest, x.barrier, nil)...)
	if err := c.write(b); err != nil {
		return nil, err
	}
	select {
	case <-x.done:
		return x.answers, nil
	case <-c.done:
		return nil, c.reason()
	case <-ctx.Done():
		return nil, fmt.Errorf("timeout waiting for the switch: %w", ctx.Err())
	}
}

func (c *conn) await(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = x
}

// deliver hands m to the exchange that it belongs to. Late and unsolicited answers belong to none.
func (c *conn) deliver(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.pending
	if x == nil || m.xid-x.first > x.barrier-x.first {
		return
	}
	if m.xid == x.barrier && m.kind == msgBarrierReply {
		close(x.done)
		c.pending = nil
		return
	}
	x.answers = append(x.answers, m)
}

// write sends whole messages. It does not outlast a switch that has stopped reading; after a part of a message
// nothing can follow, so any error ends the connection.
func (c *conn) write(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.sock.SetWriteDeadline(time.Now().Add(lostAfter)); err != nil {
		return c.fail(err)
	}
	if _, err := c.sock.Write(b); err != nil {
		return c.fail(fmt.Errorf("writing to the switch: %w", err))
	}
	return nil
}

// read takes in messages until the connection is over.
func (c *conn) read(r io.Reader) {
	for {
		m, err := readMessage(r)
		if err == nil && m.version != ofVersion {
			err = fmt.Errorf("message of OpenFlow version %d", m.version)
		}
		if err != nil {
			_ = c.fail(fmt.Errorf("reading from the switch: %w", err))
			return
		}
		c.heard.Store(time.Now().UnixNano())
		switch m.kind {
		case msgEchoReply:
		case msgEchoRequest:
			select {
			case c.echo <- m:
			default: // one is enough to show that we live
			}
		default:
			c.deliver(m)
		}
	}
}

// readMessage reads one message of any kind and version.
func readMessage(r io.Reader) (message, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return message{}, err
	}
	m := message{version: h[0], kind: h[1], xid: binary.BigEndian.Uint32(h[4:])}
	length := u16(h[:], 2)
	if length < headerLen {
		return message{}, fmt.Errorf("a message of type %d claims a length of %d bytes", m.kind, length)
	}
	m.body = make([]byte, length-headerLen)
	if _, err := io.ReadFull(r, m.body); err != nil {
		return message{}, fmt.Errorf("%w: %w", errShort, err)
	}
	return m, nil
}

// watch answers the switch's echo requests and gives the connection up when the switch has been silent for too long.
func (c *conn) watch() {
	tick := time.NewTicker(probeAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return
		case m := <-c.echo:
			_ = c.write(encodeBare(msgEchoReply, m.xid, m.body))
		case <-tick.C:
			silence := time.Since(time.Unix(0, c.heard.Load()))
			switch {
			case silence > lostAfter:
				_ = c.fail(fmt.Errorf("no message from the switch for %s: ovs-vswitchd hangs or has no connection to ovsdb-server",
					silence.Round(time.Second)))
			case silence > probeAfter:
				_ = c.write(encodeBare(msgEchoRequest, c.reserve(1), nil))
			}
		}
	}
}

var errClosed = errors.New("the connection was closed")

// fail ends the connection and returns the reason of its end, which is the first one given.
func (c *conn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
		c.sock.Close()
		if !errors.Is(err, errClosed) {
			c.log.Error(err, "connection to the switch lost")
		}
	}
	return c.err
}

func (c *conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
