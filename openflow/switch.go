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

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// Switch is a connection to a bridge whose flows are ours alone. It keeps what
// the switch has confirmed, so that a Sync sends only what differs.
//
// It does not reconnect: when Done is closed, Dial again.
type Switch struct {
	conn *ofconn.Conn
	log  logr.Logger
	// stale: what the switch has is not known.
	stale atomic.Bool

	syncing sync.Mutex // held during a Sync; guards have
	have    confirmed
	units   units
	// policies are the Units of policies, packets those that their verdicts had taken when they were listed last.
	policies units
	packets  map[Key]uint64
}

// errStale: what the switch has must be listed first, by a Sync.
var errStale = errors.New("what the switch has is not known")

// FlowError tells that the switch has refused a flow.
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
// gives up with ctx, and after 5 seconds: a stopped ovs-vswitchd accepts the connection and says nothing.
func Dial(ctx context.Context, mgmtSocket string, log logr.Logger) (*Switch, error) {
	c, err := ofconn.Open(ctx, mgmtSocket, log)
	if err != nil {
		return nil, fmt.Errorf("connecting to the switch at %s: %w", mgmtSocket, err)
	}
	s := &Switch{conn: c, log: log, units: newUnits((*Flow).ofService), policies: newUnits((*Flow).ofPolicy)}
	s.stale.Store(true)
	return s, nil
}

// Done is closed when the connection is over: the switch has closed it, has
// been silent for 5 seconds, or Close was called.
func (s *Switch) Done() <-chan struct{} { return s.conn.Done() }

// Close ends the connection. The flows stay.
func (s *Switch) Close() { s.conn.Close() }

// Resync makes the next Sync list the switch's flows again, so that it finds
// what others have added, changed or deleted.
func (s *Switch) Resync() { s.stale.Store(true) }

// Sync makes the switch have the flows in want and no others, and returns what it changed. Nil means that the switch
// has confirmed every one of them. The changes take effect at once, as one atomic bundle. Of a bundle the switch
// leaves out flows that it cannot read, which are returned as FlowErrors; any other error undoes it.
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
	if err := s.learn(ctx); err != nil {
		return Changes{}, err
	}
	flows, changes, err := s.have.diff(want, s.units.kept())
	if err != nil {
		return Changes{}, err
	}
	byKey, more, err := s.diffUnits()
	if err != nil {
		return Changes{}, err
	}
	changes = changes.and(more)
	todo := slices.Concat(byKey, flows)
	if len(todo) > 0 {
		if err := s.commit(ctx, todo); err != nil {
			return Changes{}, err
		}
	}
	s.have.apply(flows)
	s.confirmUnits()
	if changes.none() {
		return changes, nil
	}
	s.report(todo, changes)
	return changes, nil
}

// learn lists what the switch has, if that is not known.
func (s *Switch) learn(ctx context.Context) error {
	if !s.stale.Swap(false) {
		return nil
	}
	if err := s.configure(ctx); err != nil {
		return fmt.Errorf("configuring the switch: %w", err)
	}
	services, policies := s.units.relist(), s.policies.relist()
	var others []listed
	packets, none := map[Key]uint64{}, s.units.none()
	if err := s.eachFlow(ctx, func(l *listed) {
		if l.flow.Kind == KindVerdict && !l.unsupported {
			packets[l.flow.Key()] = l.packets
		}
		// What packets have added stays until it expires, but goes without Units, as all that is not wanted.
		if added := l.flow.Table == TableAffinity && !none; !added && !services.flow(l) && !policies.flow(l) {
			others = append(others, *l)
		}
	}); err != nil {
		return fmt.Errorf("listing flows: %w", err)
	}
	if err := s.eachGroup(ctx, services.group); err != nil {
		return fmt.Errorf("listing groups: %w", err)
	}
	services.end()
	policies.end()
	s.packets, s.have = packets, newConfirmed(others, s.have)
	return nil
}

// configure has flows see the protocol, ports and types of a first fragment.
func (s *Switch) configure(ctx context.Context) error {
	xid := s.conn.Reserve(2)
	answers, err := s.conn.AskOne(ctx, xid, ofconn.Encode(msgSetConfig, xid, []byte{0, fragNXMatch, 0, 0}))
	for _, m := range answers {
		if m.Kind == ofconn.Error {
			err = m.Failure()
		}
	}
	return err
}

// list returns the flows of the switch, but those that packets have added.
func (s *Switch) list(ctx context.Context) (out []listed, err error) {
	err = s.eachFlow(ctx, func(l *listed) {
		if l.flow.Table != TableAffinity {
			out = append(out, *l)
		}
	})
	return out, err
}

// eachFlow calls yield for all flows of the switch, each of which is valid until the next.
func (s *Switch) eachFlow(ctx context.Context, yield func(*listed)) error {
	xid := s.conn.Reserve(2)
	request, err := nx.ListFlows(xid)
	if err != nil {
		return err
	}
	return s.each(ctx, xid, request, func(m ofconn.Message) error { return flowsOf(m, yield) })
}

// each sends a multipart request with that transaction ID, of which the next is reserved too, and calls read for each
// part of the answer. None is kept longer.
func (s *Switch) each(ctx context.Context, xid uint32, request []byte, read func(ofconn.Message) error) error {
	answers, err := s.conn.AskOne(ctx, xid, request)
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

// commit makes the switch do todo and returns nil if it has done all of it.
func (s *Switch) commit(ctx context.Context, todo []change) error {
	first := s.conn.Reserve(len(todo) + 3) // open, todo, commit, barrier
	var unencoded error
	answers, err := s.conn.Ask(ctx, first, first+uint32(len(todo))+2, encodeBundle(first, todo, &unencoded))
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
