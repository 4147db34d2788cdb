// Package denied receives from the switch some of the packets that policies deny, for the agent to log. Flows send them
// to OpenFlow's controller, here a separate connection, and drop them as they do without it: no failure in this package
// lets a packet through.
//
// The limit is the switch's meter for packets to controllers (OFPM_CONTROLLER). The datapath enforces it, so packets
// above it cost no more than packets dropped without it. No flow refers to that meter: flows are installed and stay
// even if it is missing.
package denied

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// The limit, in packets.
const (
	perSecond = 20
	burst     = 50
	// queue is how many packets are buffered for the receiver: enough for a long round.
	queue = burst + 10*perSecond
)

// Types of messages, and numbers in them (OpenFlow 1.5.1, section 7, and nicira-ext.h of Open vSwitch).
const (
	msgSetConfig        = 9
	msgMultipartRequest = 18
	msgMultipartReply   = 19
	msgMeterMod         = 29

	fragNXMatch    = 3 // as in package openflow: it applies to the whole bridge
	multipartMeter = 10
	meterAdd       = 0
	meterModify    = 1
	controller     = 0xfffffffe // OFPM_CONTROLLER
	inPackets      = 2          // flags: the limit is in packets, and has a burst
	hasBurst       = 4
	bandDrop       = 1
)

// Tap is a connection that receives denied packets.
type Tap struct {
	conn    *ofconn.Conn
	packets chan Packet
	seen    atomic.Uint64
	lost    atomic.Uint64
}

// Open connects to the management socket of a bridge, sets the limit, and receives packets from then on.
func Open(ctx context.Context, mgmtSocket string, log logr.Logger) (*Tap, error) {
	conn, err := ofconn.Open(ctx, mgmtSocket, log)
	if err != nil {
		return nil, fmt.Errorf("connecting to the switch at %s: %w", mgmtSocket, err)
	}
	t := &Tap{conn: conn, packets: make(chan Packet, queue)}
	conn.Packets(t.handle)
	if err := t.Limit(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	// Without a length, the switch sends no packets to a connection that it did not open itself.
	if _, err := t.call(ctx, msgSetConfig, []byte{0, fragNXMatch, 255, 255}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("requesting packets from the switch: %w", err)
	}
	return t, nil
}

// Packets returns the channel of denied packets. Those not received in time are lost.
func (t *Tap) Packets() <-chan Packet { return t.packets }

// Seen returns how many packets the switch has sent.
func (t *Tap) Seen() uint64 { return t.seen.Load() }

// Lost returns how many of them were not received in time, or could not be decoded.
func (t *Tap) Lost() uint64 { return t.lost.Load() }

// Done is closed when the connection has ended.
func (t *Tap) Done() <-chan struct{} { return t.conn.Done() }

// Close ends the connection. The limit stays.
func (t *Tap) Close() { t.conn.Close() }

func (t *Tap) handle(m ofconn.Message) {
	t.seen.Add(1)
	p, ok := read(m.Body)
	if ok {
		select {
		case t.packets <- p:
			return
		default:
		}
	}
	t.lost.Add(1)
}

// Limit sets the limit if it is missing.
func (t *Tap) Limit(ctx context.Context) error {
	has, err := t.meter(ctx)
	want := meterBody()
	if err == nil && !slices.Equal(has, want) {
		command := []byte{0, meterAdd}
		if has != nil {
			command[1] = meterModify
		}
		_, err = t.call(ctx, msgMeterMod, append(command, want...))
	}
	if err != nil {
		return fmt.Errorf("limiting the denied packets that the switch sends: %w", err)
	}
	return nil
}

// meterBody returns the meter as in messages: flags, ID, and one band.
func meterBody() []byte {
	b := []byte{0, inPackets | hasBurst}
	b = binary.BigEndian.AppendUint32(b, controller)
	b = append(b, 0, bandDrop, 0, 16)
	b = binary.BigEndian.AppendUint32(b, perSecond)
	b = binary.BigEndian.AppendUint32(b, burst)
	return append(b, 0, 0, 0, 0)
}

// meter returns the switch's meter, nil for none.
func (t *Tap) meter(ctx context.Context) ([]byte, error) {
	request := binary.BigEndian.AppendUint32([]byte{0, multipartMeter, 0, 0, 0, 0, 0, 0}, controller)
	answers, err := t.call(ctx, msgMultipartRequest, append(request, 0, 0, 0, 0))
	if unknown := (*refused)(nil); errors.As(err, &unknown) && unknown.kind == errMeterMod {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, m := range answers {
		const header, length = 8, 2 // of the message, and the first field of a meter
		if m.Kind == msgMultipartReply && len(m.Body) > header+length {
			return m.Body[header+length:], nil
		}
	}
	return nil, nil
}

const errMeterMod = 12 // OFPET_METER_MOD_FAILED

// refused is an error reply of the switch, and its type.
type refused struct {
	error
	kind uint16
}

// call sends one request and returns the answers.
func (t *Tap) call(ctx context.Context, kind uint8, body []byte) ([]ofconn.Message, error) {
	xid := t.conn.Reserve(2)
	answers, err := t.conn.CallOne(ctx, xid, ofconn.Encode(kind, xid, body))
	if err != nil {
		return nil, err
	}
	for _, m := range answers {
		if m.Kind == ofconn.Error && len(m.Body) >= 4 {
			return nil, &refused{m.Failure(), binary.BigEndian.Uint16(m.Body)}
		}
	}
	return answers, nil
}
