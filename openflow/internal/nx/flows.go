package nx

import (
	"encoding/binary"
	"fmt"
	"time"

	"antrea.io/libOpenflow/openflow15"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
	"github.com/fairlead-cni/fairlead/openflow/internal/seen"
)

const (
	multipartFlowDesc = 1
	flowDescLen       = 24 // of a struct ofp_flow_desc, up to the match

	// Statistics of a flow (OpenFlow 1.5.1, 7.2.4.2): a header of four bytes, then fields with a header each.
	statsClass   = 0x8002
	statsIdle    = 1
	statsPackets = 4
)

// ListFlows returns the request for all flows of all tables.
func ListFlows(xid uint32) ([]byte, error) {
	body := openflow15.NewFlowStatsRequest()
	body.TableId = openflow15.OFPTT_ALL
	msg := openflow15.NewMpRequest(openflow15.MultipartType_FlowDesc)
	msg.Xid = xid
	msg.Body = append(msg.Body, body)
	return Append(nil, msg)
}

// ListedFlow is one flow as the switch lists it (OpenFlow 1.5.1, 7.3.5.2), split into its parts but not decoded.
type ListedFlow struct {
	head, stats []byte
	// Match is a struct ofp_match with its padding, Fields the fields in it.
	Match, Fields []byte
	Instructions  []byte
}

// Table is the flow's table.
func (f ListedFlow) Table() uint8 { return f.head[4] }

// Priority is the flow's priority.
func (f ListedFlow) Priority() uint16 { return binary.BigEndian.Uint16(f.head[6:]) }

// Limited reports whether the flow has a timeout, flags or an importance.
func (f ListedFlow) Limited() bool { return binary.BigEndian.Uint64(f.head[8:]) != 0 }

// Cookie is the flow's cookie.
func (f ListedFlow) Cookie() uint64 { return binary.BigEndian.Uint64(f.head[16:]) }

// AddTo adds to a digest all that defines the flow, so not its statistics.
func (f ListedFlow) AddTo(d *seen.Digest) { d.Add(f.head[4:], f.Match, f.Instructions) }

// Packets returns how many packets the flow has matched; 0 if its statistics do not say.
func (f ListedFlow) Packets() uint64 {
	n, _ := f.statistic(statsPackets)
	return n
}

// Idle returns for how long the flow has matched none, or has existed, in whole seconds; false if its statistics do not
// say.
func (f ListedFlow) Idle() (idle time.Duration, known bool) {
	n, known := f.statistic(statsIdle)
	return time.Duration(n>>32) * time.Second, known // nanoseconds follow, which Open vSwitch has as 0
}

// statistic returns a statistic of 8 bytes.
func (f ListedFlow) statistic(field byte) (value uint64, known bool) {
	for rest := f.stats[min(4, len(f.stats)):]; len(rest) >= 4; {
		n := 4 + int(rest[3])
		if n > len(rest) {
			return 0, false
		}
		if binary.BigEndian.Uint16(rest) == statsClass && rest[2]>>1 == field && n == 12 {
			return binary.BigEndian.Uint64(rest[4:]), true
		}
		rest = rest[n:]
	}
	return 0, false
}

// ReadFlows splits one part of the list into flows.
func ReadFlows(m ofconn.Message, yield func(ListedFlow)) error {
	if len(m.Body) < 8 || binary.BigEndian.Uint16(m.Body) != multipartFlowDesc {
		return fmt.Errorf("not a flow stats reply: %w", ofconn.ErrShort)
	}
	for rest := m.Body[8:]; len(rest) > 0; {
		f, tail, ok := cutFlow(rest)
		if !ok {
			return fmt.Errorf("decoding flow stats: %w", ofconn.ErrShort)
		}
		yield(f)
		rest = tail
	}
	return nil
}

// cutFlow cuts a struct ofp_flow_desc: length (2), padding, table (1), padding, priority (2), timeouts (2 each), flags
// (2), importance (2), cookie (8), match, statistics, instructions. The lengths of match and statistics, at their third
// byte, do not count their padding to 8 bytes.
func cutFlow(b []byte) (f ListedFlow, tail []byte, ok bool) {
	rest, tail, ok := Cut(b, U16(b, 0), flowDescLen)
	if !ok {
		return f, nil, false
	}
	f.head, rest = rest[:flowDescLen], rest[flowDescLen:]
	length := U16(rest, 2)
	if f.Match, rest, ok = Cut(rest, padded(length), 8); !ok || length < 4 {
		return f, nil, false
	}
	f.Fields = f.Match[4:length]
	f.stats, f.Instructions, ok = Cut(rest, padded(U16(rest, 2)), 8)
	return f, tail, ok
}

func padded(n int) int { return (n + 7) &^ 7 }
