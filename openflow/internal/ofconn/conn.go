// Package ofconn is an OpenFlow 1.5 connection to a switch: requests with their replies, and keepalives. The content of
// messages is package openflow's.
package ofconn

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"antrea.io/ofnet/ofctrl" // its names of errors
	"github.com/go-logr/logr"
)

const (
	// ProbeAfter is how long the switch may be silent before it gets an echo request, and LostAfter how long before the
	// connection counts as lost. A stopped ovs-vswitchd keeps its sockets open, and so does one that has lost
	// ovsdb-server, so nothing else would show it.
	ProbeAfter = 2 * time.Second
	LostAfter  = 5 * time.Second
)

// Version is OpenFlow 1.5, HeaderLen the length of a message's header in bytes.
const (
	Version   = 6
	HeaderLen = 8
)

// Types of messages (OpenFlow 1.5.1, 7.1.1).
const (
	hello          = 0
	Error          = 1
	echoRequest    = 2
	EchoReply      = 3
	packetIn       = 10
	barrierRequest = 20
	BarrierReply   = 21
)

// ErrShort says that a message ends too early.
var ErrShort = errors.New("message is truncated")

// Message is one message from the switch.
type Message struct {
	Version uint8
	// Kind is the type: Error, or another of the specification.
	Kind uint8
	// XID is the request's transaction ID.
	XID uint32
	// Body is what follows the header.
	Body []byte
}

// Failure returns the error that an error message carries.
func (m Message) Failure() error {
	if len(m.Body) < 4 {
		return ErrShort
	}
	const experimenter = 0xffff
	kind, code, vendor := binary.BigEndian.Uint16(m.Body), binary.BigEndian.Uint16(m.Body[2:]), uint32(0)
	if kind == experimenter {
		if len(m.Body) < 8 {
			return ErrShort
		}
		vendor = binary.BigEndian.Uint32(m.Body[4:])
	}
	return errors.New(ofctrl.GetErrorMessage(kind, code, vendor))
}

// Encode encodes a message.
func Encode(kind uint8, xid uint32, body []byte) []byte {
	return Finish(append(Begin(make([]byte, 0, HeaderLen+len(body)), kind, xid), body...), 0)
}

// Begin appends the header of a message. Append the body, then call Finish.
func Begin(b []byte, kind uint8, xid uint32) []byte {
	return binary.BigEndian.AppendUint32(append(b, Version, kind, 0, 0), xid)
}

// Finish writes the length of the message from start to the end of b.
func Finish(b []byte, start int) []byte {
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

// Conn is an OpenFlow 1.5 connection that matches replies to requests.
type Conn struct {
	sock   net.Conn
	log    logr.Logger
	done   chan struct{} // closed when the connection ends
	opened time.Time
	heard  atomic.Int64 // the last message, in nanoseconds since opened: the machine's clock may be set
	echo   chan Message // echo requests to answer

	writing sync.Mutex // held while writing to sock

	mu      sync.Mutex // guards what follows
	err     error      // why the connection has ended
	nextXID uint32
	pending *exchange // nil if no Call waits
	packets func(Message)
}

// exchange is a block of requests and their replies.
type exchange struct {
	first   uint32 // transaction ID of the first request
	barrier uint32 // and of the barrier request after the last
	answers []Message
	done    chan struct{} // closed by the barrier's reply
}

// Open connects to the socket and negotiates OpenFlow 1.5.
func Open(ctx context.Context, path string, log logr.Logger) (*Conn, error) {
	sock, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	c := &Conn{sock: sock, log: log, done: make(chan struct{}), opened: time.Now(), echo: make(chan Message, 1),
		nextXID: 1}
	r := bufio.NewReaderSize(sock, 1<<16)
	ctx, cancel := context.WithTimeout(ctx, LostAfter)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = sock.SetReadDeadline(time.Unix(1, 0)) })
	err = c.exchangeHello(r)
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

// exchangeHello sends a hello and reads the switch's. Its version field must be 1.5 or later: it then uses 1.5, the
// only version offered to it.
func (c *Conn) exchangeHello(r io.Reader) error {
	// An element with the bitmap of versions (OpenFlow 1.5.1, 7.5.1).
	versions := []byte{0, 1, 0, 8, 0, 0, 0, 1 << Version}
	if err := c.write(Encode(hello, c.Reserve(1), versions)); err != nil {
		return err
	}
	m, err := Read(r)
	switch {
	case err != nil:
		return fmt.Errorf("waiting for the switch's hello: %w", err)
	case m.Kind == Error:
		return fmt.Errorf("the switch rejected the connection: OpenFlow error %x", m.Body)
	case m.Kind != hello:
		return fmt.Errorf("the switch does not use OpenFlow: its first message has type %d", m.Kind)
	case m.Version < Version:
		return fmt.Errorf("the switch offers OpenFlow version %d, but 6 (1.5) is needed: "+
			"clear the bridge's protocols column in OVSDB", m.Version)
	}
	return nil
}

// Reserve returns the first of n transaction IDs that nothing else uses.
func (c *Conn) Reserve(n int) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.nextXID
	c.nextXID += uint32(n)
	return first
}

// CallOne is Call for one request. The transaction ID after its own must be reserved too.
func (c *Conn) CallOne(ctx context.Context, xid uint32, request []byte) ([]Message, error) {
	return c.Call(ctx, xid, xid+1, slices.Values([][]byte{request}))
}

// batch is how much is written to the switch at once.
const batch = 1 << 16

// Call sends requests and returns all replies. Their transaction IDs are from first to before barrier, which must be
// reserved too: the switch replies to the barrier when it has processed everything before, so every error has arrived
// by then. A request is no longer used when the next is requested: one buffer is enough for all, and the switch
// processes the first while others are encoded. One call at a time.
func (c *Conn) Call(ctx context.Context, first, barrier uint32, requests iter.Seq[[]byte]) ([]Message, error) {
	x := &exchange{first: first, barrier: barrier, done: make(chan struct{})}
	c.await(x)
	defer c.await(nil)
	var b []byte
	for r := range requests {
		if len(b)+len(r) > batch && len(b) > 0 {
			if err := c.write(b); err != nil {
				return nil, err
			}
			b = b[:0]
		}
		if b = append(b, r...); ctx.Err() != nil {
			break
		}
	}
	if err := c.write(append(b, Encode(barrierRequest, barrier, nil)...)); err != nil {
		return nil, err
	}
	select {
	case <-x.done:
		return x.answers, nil
	case <-c.done:
		return nil, c.Reason()
	case <-ctx.Done():
		return nil, fmt.Errorf("timeout waiting for the switch: %w", ctx.Err())
	}
}

func (c *Conn) await(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = x
}

// Packets has f called, from one goroutine, with each packet that the switch sends. f must not block.
func (c *Conn) Packets(f func(Message)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets = f
}

// deliver hands m to the exchange that it belongs to. Late and unsolicited replies belong to none.
func (c *Conn) deliver(m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.pending
	if m.Kind == packetIn {
		if c.packets != nil {
			c.packets(m)
		}
		return
	}
	if x == nil || m.XID-x.first > x.barrier-x.first {
		return
	}
	if m.XID == x.barrier && m.Kind == BarrierReply {
		close(x.done)
		c.pending = nil
		return
	}
	x.answers = append(x.answers, m)
}

// write sends whole messages. It gives up on a switch that has stopped reading; nothing can follow a partial message,
// so any error ends the connection.
func (c *Conn) write(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.sock.SetWriteDeadline(time.Now().Add(LostAfter)); err != nil {
		return c.fail(err)
	}
	if _, err := c.sock.Write(b); err != nil {
		return c.fail(fmt.Errorf("writing to the switch: %w", err))
	}
	return nil
}

// read receives messages until the connection ends.
func (c *Conn) read(r io.Reader) {
	for {
		m, err := Read(r)
		if err == nil && m.Version != Version {
			err = fmt.Errorf("message of OpenFlow version %d", m.Version)
		}
		if err != nil {
			_ = c.fail(fmt.Errorf("reading from the switch: %w", err))
			return
		}
		c.heard.Store(int64(time.Since(c.opened)))
		switch m.Kind {
		case EchoReply:
		case echoRequest:
			select {
			case c.echo <- m:
			default: // one is enough to show that this end is alive
			}
		default:
			c.deliver(m)
		}
	}
}

// Read reads one message of any kind and version.
func Read(r io.Reader) (Message, error) {
	var h [HeaderLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Message{}, err
	}
	m := Message{Version: h[0], Kind: h[1], XID: binary.BigEndian.Uint32(h[4:])}
	length := int(binary.BigEndian.Uint16(h[2:]))
	if length < HeaderLen {
		return Message{}, fmt.Errorf("a message of type %d claims a length of %d bytes", m.Kind, length)
	}
	m.Body = make([]byte, length-HeaderLen)
	if _, err := io.ReadFull(r, m.Body); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrShort, err)
	}
	return m, nil
}

// probeInterval is the time from an echo request to the next check: the reply, which arrives at once, is ProbeAfter old
// then.
const probeInterval = ProbeAfter + ProbeAfter/8

// watch answers the switch's echo requests and ends the connection when the switch has been silent for too long, and
// was sent an echo request since: a process that was suspended has not received anything either. It wakes up no sooner
// than necessary: an idle agent has hardly anything else to do.
func (c *Conn) watch() {
	timer := time.NewTimer(ProbeAfter)
	defer timer.Stop()
	probed := time.Duration(-1) // when the switch was probed last
	for {
		select {
		case <-c.done:
			return
		case m := <-c.echo:
			_ = c.write(Encode(EchoReply, m.XID, m.Body))
		case <-timer.C:
			now, heard := time.Since(c.opened), time.Duration(c.heard.Load())
			switch silence := now - heard; {
			case silence >= LostAfter && probed > heard:
				_ = c.fail(fmt.Errorf("no message from the switch for %s: ovs-vswitchd hangs or has no connection to ovsdb-server",
					silence.Round(time.Second)))
			case silence >= ProbeAfter:
				wait := probeInterval
				if probed > heard {
					wait = min(wait, LostAfter-silence)
				}
				probed = now
				_ = c.write(Encode(echoRequest, c.Reserve(1), nil))
				timer.Reset(wait)
			default:
				timer.Reset(ProbeAfter - silence)
			}
		}
	}
}

// ErrClosed is the reason if Close has ended the connection.
var ErrClosed = errors.New("the connection was closed")

// fail ends the connection and returns the reason, which is the first one given.
func (c *Conn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
		c.sock.Close()
		if !errors.Is(err, ErrClosed) {
			c.log.Error(err, "connection to the switch lost")
		}
	}
	return c.err
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection.
func (c *Conn) Close() { _ = c.fail(ErrClosed) }

// Reason returns why the connection has ended, nil while it has not.
func (c *Conn) Reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
