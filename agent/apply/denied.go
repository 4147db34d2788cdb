package apply

import (
	"context"
	"time"

	"github.com/fairlead-cni/fairlead/agent/denials"
	"github.com/fairlead-cni/fairlead/openflow/denied"
	"github.com/fairlead-cni/fairlead/policy"
)

// deniedLog is the state of the log of denied packets.
type deniedLog struct {
	tap     *denied.Tap // nil: not connected
	lost    uint64      // how many of the packets that the tap has lost are counted
	problem string      // why there is no tap, as logged last
	log     denials.Log
}

// ensureTap connects to receive denied packets, if any are to be logged, and reports whether they are received. The
// limit is in place before the first flow sends one. verify: compare it with what the switch has.
func (f *Flows) ensureTap(ctx context.Context, verify bool) bool {
	d := &f.denied
	if d.tap != nil {
		select {
		case <-d.tap.Done():
			d.close()
		default:
		}
	}
	if !f.policies.rules.LogsDenied() {
		d.close()
		return false
	}
	var err error
	if d.tap == nil {
		d.tap, err = denied.Open(ctx, f.socket(), f.log.WithName("denied"))
	} else if verify {
		err = d.tap.Limit(ctx)
	}
	if err == nil {
		d.problem = ""
		return true
	}
	if d.close(); err.Error() != d.problem {
		d.problem = err.Error()
		f.log.Error(err, "denied packets are not logged")
	}
	return false
}

// close ends the connection; the limit and the flows stay.
func (d *deniedLog) close() {
	if d.tap != nil {
		d.tap.Close()
		d.tap, d.lost = nil, 0
	}
}

// logDenied logs the denied packets that were received since the last call.
func (f *Flows) logDenied(now time.Time) {
	d, m := &f.denied, &f.metrics.Policies
	if d.tap != nil {
		for more := true; more; {
			select {
			case p := <-d.tap.Packets():
				m.Seen.Inc()
				// Otherwise it was in flight when logging for its pod ended.
				if c, ok := f.policies.rules.Denied(p); ok && d.log.Count(c, now) {
					f.logDeniedPacket("policies deny a packet", c)
				}
			default:
				more = false
			}
		}
		lost := d.tap.Lost()
		d.log.CountMissed(lost - d.lost)
		m.Seen.Add(float64(lost - d.lost))
		d.lost = lost
	}
	due := d.log.Due(now)
	for c, n := range due.Again {
		f.logDeniedPacket("policies keep denying packets", c, "packets", n)
	}
	if due.LeftOut > 0 {
		f.log.Info("policies deny more packets than are logged", "packets", due.LeftOut)
		m.LeftOut.Add(float64(due.LeftOut))
	}
}

// logDeniedPacket logs one line, which identifies the connection by pod, peer and port.
func (f *Flows) logDeniedPacket(message string, c denials.Kind, more ...any) {
	peer, reason := f.policies.rules.WhyDenied(c)
	about := []any{"pod", c.Pod.String(), "direction", c.Direction.String(), "peer", peer, "address", c.Peer.String(),
		"protocol", protocol(c.Protocol)}
	if c.Port != 0 {
		about = append(about, "port", c.Port)
	}
	f.log.Info(message, append(append(about, "reason", reason), more...)...)
}

// protocol names one by its number.
func protocol(p policy.Protocol) string {
	switch p {
	case 1:
		return "ICMP"
	case 58:
		return "ICMPv6"
	}
	return p.String()
}
