package openflow

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
	"github.com/fairlead-cni/fairlead/openflow/internal/seen"
)

// Switch is a connection to a bridge with only Fairlead's flows. It keeps what the switch has confirmed, so a Sync
// sends only what differs.
//
// It does not reconnect: when Done is closed, Dial again.
type Switch struct {
	conn *ofconn.Conn
	log  logr.Logger
	// stale: what the switch has is not known.
	stale atomic.Bool

	syncing         sync.Mutex // held during a Sync; guards confirmed
	confirmed       confirmed
	units, policies units // of Services and of policies
	onFlowStats     func(f *Flow, packets uint64, idle time.Duration)
	// digest is the digest of what the switch had when it was last read, if nothing was sent since.
	digest  *seen.Digest
	renewal renewal
}

// errStale: what the switch has must be listed first, by a Sync.
var errStale = errors.New("the switch's flows are unknown")

// FlowError says that the switch has rejected a flow.
type FlowError struct {
	Flow Flow
	// Reason is OpenFlow's error, by its name in the specification.
	Reason error
}

func (e *FlowError) Error() string {
	return fmt.Sprintf("the switch rejected the flow %q: %v", e.Flow.String(), e.Reason)
}

func (e *FlowError) Unwrap() error { return e.Reason }

// Dial connects to the OpenFlow management socket of a bridge, BRIDGE.mgmt in the run directory of Open vSwitch. It
// gives up with ctx, and after 5 seconds: a stopped ovs-vswitchd accepts the connection and never replies.
func Dial(ctx context.Context, mgmtSocket string, log logr.Logger) (*Switch, error) {
	c, err := ofconn.Open(ctx, mgmtSocket, log)
	if err != nil {
		return nil, fmt.Errorf("connecting to the switch at %s: %w", mgmtSocket, err)
	}
	s := &Switch{conn: c, log: log, units: newUnits((*Flow).ofService), policies: newUnits((*Flow).ofPolicy)}
	s.stale.Store(true)
	return s, nil
}

// Done is closed when the connection has ended: the switch has closed it, has been silent for 5 seconds, or Close was
// called.
func (s *Switch) Done() <-chan struct{} { return s.conn.Done() }

// Close ends the connection. The flows stay.
func (s *Switch) Close() { s.conn.Close() }

// Recent is how long a flow of a peer is reported by [Switch.OnFlowStats] after its last packet.
const Recent = 20 * time.Second

// OnFlowStats has f called, when flows are listed, for verdict flows, with the number of packets that each has matched,
// and for peers' flows that matched one recently, with how long ago. Call it before any Sync.
func (s *Switch) OnFlowStats(f func(f *Flow, packets uint64, idle time.Duration)) { s.onFlowStats = f }

// Resync makes the next Sync list the switch's flows again, and so find external changes.
func (s *Switch) Resync() { s.stale.Store(true) }

// Sync makes the switch have exactly the flows in want, and returns what it changed. Nil means that the switch has
// confirmed all of them. The changes take effect at once, as one atomic bundle. The switch leaves flows that it cannot
// decode out of the bundle, which are returned as FlowErrors; any other error reverts the bundle.
//
// After an error the next Sync lists the switch's flows first. The caller must not change want afterwards. Sync ends
// with ctx, and within seconds if the switch hangs.
func (s *Switch) Sync(ctx context.Context, want []Flow) (Changes, error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	changes, err := s.sync(ctx, want)
	if err != nil {
		s.stale.Store(true)
		return Changes{}, fmt.Errorf("syncing flows: %w", err)
	}
	return changes, nil
}

func (s *Switch) sync(ctx context.Context, want []Flow) (Changes, error) {
	if err := s.conn.Reason(); err != nil {
		return Changes{}, err // even if there were nothing to send
	}
	if err := s.refresh(ctx); err != nil {
		return Changes{}, err
	}
	flows, changes, err := s.confirmed.diff(want, s.units.keptKind())
	if err != nil {
		return Changes{}, err
	}
	byKey, more, err := s.diffUnits()
	if err != nil {
		return Changes{}, err
	}
	changes = changes.plus(more)
	todo := slices.Concat(byKey, flows)
	if len(todo) > 0 {
		if err := s.commit(ctx, todo); err != nil {
			return Changes{}, err
		}
	}
	s.confirmed.apply(flows)
	s.confirmUnits()
	if changes.empty() {
		return changes, nil
	}
	s.report(todo, changes)
	return changes, nil
}

// refresh lists what the switch has, if that is unknown.
func (s *Switch) refresh(ctx context.Context) error {
	if !s.stale.Swap(false) {
		return nil
	}
	if err := s.configure(ctx); err != nil {
		return fmt.Errorf("configuring the switch: %w", err)
	}
	if s.digest != nil { // usually nothing has changed, and reading it again would be most of an idle agent's work
		if d, err := s.readAll(ctx, nil, nil); err != nil || d.Equal(s.digest) {
			return err
		}
	}
	s.digest, s.renewal.has = nil, nil
	services, policies := s.units.relist(), s.policies.relist()
	var others []listed
	d, err := s.readAll(ctx, func(l *listed) {
		if !s.renewal.flow(l) && !services.flow(l) && !policies.flow(l) {
			others = append(others, *l)
		}
	}, services.group)
	if err != nil {
		return err
	}
	services.end()
	policies.end()
	s.digest, s.confirmed = d, newConfirmed(others, s.confirmed)
	return nil
}

// readAll lists what the switch has: it returns the digest, and passes on what it read if flow is set. A flow is valid
// until the next one. Flows that packets have added stay until they expire, but without Units they are deleted like
// everything unwanted: until then they are not part of the list.
func (s *Switch) readAll(ctx context.Context, flow func(*listed), group func(nx.Listed)) (*seen.Digest, error) {
	digest, none := cmp.Or(s.digest, new(seen.Digest)).NewEmpty(), s.units.noneWanted()
	var l listed
	if err := s.eachFlow(ctx, func(f nx.ListedFlow) {
		wanted := f.Table() != TableAffinity || none
		if wanted {
			f.AddTo(digest)
		}
		idle, reported := s.reportsStats(f)
		if wanted = wanted && flow != nil; wanted || reported {
			l = readFlow(f)
		}
		if reported && !l.unsupported {
			s.onFlowStats(&l.flow, f.Packets(), idle)
		}
		if wanted {
			flow(&l)
		}
	}); err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	if err := s.eachGroup(ctx, func(m ofconn.Message) error {
		digest.Add(m.Body)
		if group == nil {
			return nil
		}
		return nx.ReadGroups(m, group)
	}); err != nil {
		return nil, fmt.Errorf("listing groups: %w", err)
	}
	return digest, nil
}

// reportsStats reports whether a flow's statistics are passed on, and for how long it has matched no packet.
func (s *Switch) reportsStats(f nx.ListedFlow) (idle time.Duration, reported bool) {
	kind := KindOf(f.Cookie())
	if kind == KindPeer {
		idle, reported = f.Idle()
	}
	return idle, s.onFlowStats != nil && (kind == KindVerdict || reported && idle <= Recent)
}

// configure makes the protocol, ports and types of a first fragment available to flows.
func (s *Switch) configure(ctx context.Context) error {
	return s.send(ctx, func(xid uint32) []byte { return ofconn.Encode(msgSetConfig, xid, []byte{0, fragNXMatch, 0, 0}) })
}

// send passes a message to the switch and returns its error, if it has one.
func (s *Switch) send(ctx context.Context, message func(xid uint32) []byte) error {
	xid := s.conn.Reserve(2)
	answers, err := s.conn.CallOne(ctx, xid, message(xid))
	for _, m := range answers {
		if m.Kind == ofconn.Error {
			err = m.Failure()
		}
	}
	return err
}

// list returns the flows of the switch, except those that packets have added.
func (s *Switch) list(ctx context.Context) (out []listed, err error) {
	err = s.eachFlow(ctx, func(f nx.ListedFlow) {
		if f.Table() != TableAffinity {
			out = append(out, readFlow(f))
		}
	})
	return out, err
}

// Listed is a flow that the switch has.
type Listed struct {
	Flow
	Plain bool   // Match is all of its match, and it has no timeout and no flags
	Text  string // as ovs-ofctl prints it
}

// List lists the switch's flows, except those that packets have added. It changes nothing.
func (s *Switch) List(ctx context.Context) (out []Listed, err error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	list, err := s.list(ctx)
	for _, l := range list {
		out = append(out, Listed{l.flow, !l.unsupported && !l.limited, change{flow: &l.flow}.text()})
	}
	return out, err
}

// Ports lists how the switch's ports are configured.
func (s *Switch) Ports(ctx context.Context) (out []nx.Port, err error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	xid := s.conn.Reserve(2)
	err = s.each(ctx, xid, nx.ListPorts(xid), func(m ofconn.Message) error {
		list, err := nx.ReadPorts(m)
		out = append(out, list...)
		return err
	})
	return out, err
}

// eachFlow calls yield for all flows of the switch.
func (s *Switch) eachFlow(ctx context.Context, yield func(nx.ListedFlow)) error {
	xid := s.conn.Reserve(2)
	request, err := nx.ListFlows(xid)
	if err != nil {
		return err
	}
	return s.each(ctx, xid, request, func(m ofconn.Message) error { return nx.ReadFlows(m, yield) })
}

// each sends a multipart request with that transaction ID, the next being reserved too, and calls read for each part of
// the reply. No part is kept.
func (s *Switch) each(ctx context.Context, xid uint32, request []byte, read func(ofconn.Message) error) error {
	answers, err := s.conn.CallOne(ctx, xid, request)
	if err != nil {
		return err
	}
	more := true
	for i, m := range answers {
		answers[i].Body = nil
		switch {
		case m.Kind == ofconn.Error:
			return m.Failure()
		case m.Kind != msgMultipartReply:
			continue
		}
		if err := read(m); err != nil {
			return err
		}
		more = len(m.Body) >= 4 && binary.BigEndian.Uint16(m.Body[2:])&multipartMore != 0
	}
	if more {
		return errors.New("the switch did not send the last part")
	}
	return nil
}

// commit has the switch apply todo and returns nil if it has applied all of it.
func (s *Switch) commit(ctx context.Context, todo []change) error {
	s.digest = nil
	todo = append(todo, s.renewal.next()...)
	first := s.conn.Reserve(len(todo) + 3) // open, todo, commit, barrier
	var unencoded error
	answers, err := s.conn.Call(ctx, first, first+uint32(len(todo))+2, encodeBundle(first, todo, &unencoded))
	if err = cmp.Or(unencoded, err); err != nil {
		return err
	}
	var refused []error
	committed := false
	for _, m := range answers {
		i := int(m.XID-first) - 1 // place in todo
		switch {
		case m.Kind == ofconn.Error && i >= 0 && i < len(todo):
			refused = append(refused, todo[i].refused(m.Failure()))
		case m.Kind == ofconn.Error:
			refused = append(refused, fmt.Errorf("the switch rejected the bundle: %w", m.Failure()))
		case isCommitReply(m):
			committed = true
		}
	}
	if len(refused) == 0 && !committed {
		return errors.New("the switch did not confirm the bundle")
	}
	return errors.Join(refused...)
}

// report logs what was done: one line, and one for each foreign flow.
func (s *Switch) report(todo []change, count Changes) {
	for _, t := range todo {
		if t.foreign() {
			s.log.Info("removed a foreign flow from the bridge", "flow", t.text())
		} else if v := s.log.V(4); v.Enabled() {
			v.Info("changed flow", "flow", t.text(), "deleted", t.delete)
		}
	}
	s.log.Info("changed flows", "added", count.Added, "modified", count.Modified, "deleted", count.Deleted)
}
