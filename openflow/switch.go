package openflow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
)

// Switch is a connection to a bridge whose flows are ours alone. It keeps what
// the switch has confirmed, so that a Sync sends only what differs.
//
// It does not reconnect: when Done is closed, Dial again.
type Switch struct {
	conn *conn
	log  logr.Logger
	// stale: what the switch has is not known.
	stale atomic.Bool

	syncing sync.Mutex // held during a Sync; guards have
	have    confirmed
}

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
	c, err := open(ctx, mgmtSocket, log)
	if err != nil {
		return nil, fmt.Errorf("connecting to the switch at %s: %w", mgmtSocket, err)
	}
	s := &Switch{conn: c, log: log}
	s.stale.Store(true)
	return s, nil
}

// Done is closed when the connection is over: the switch has closed it, has
// been silent for 5 seconds, or Close was called.
func (s *Switch) Done() <-chan struct{} { return s.conn.done }

// Close ends the connection. The flows stay.
func (s *Switch) Close() { _ = s.conn.fail(errClosed) }

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
	if err := s.conn.reason(); err != nil {
		return Changes{}, err // even if there were nothing to send
	}
	if s.stale.Swap(false) {
		// Of first fragments, flows shall see ports and types. If this fails, listing does.
		_ = s.conn.write(encodeBare(msgSetConfig, s.conn.reserve(1), []byte{0, fragNXMatch, 0, 0}))
		list, err := s.list(ctx)
		if err != nil {
			return Changes{}, fmt.Errorf("listing flows: %w", err)
		}
		s.have = newConfirmed(list, s.have)
	}
	todo, changes, err := s.have.diff(want)
	if err != nil || changes.none() {
		return Changes{}, err
	}
	if err := s.commit(ctx, todo); err != nil {
		return Changes{}, err
	}
	s.have.apply(todo)
	s.report(todo, changes)
	return changes, nil
}

// list returns all flows of the switch.
func (s *Switch) list(ctx context.Context) ([]listed, error) {
	xid := s.conn.reserve(2)
	r, err := encodeDump(xid)
	if err != nil {
		return nil, err
	}
	answers, err := s.conn.ask(ctx, xid, [][]byte{r})
	if err != nil {
		return nil, err
	}
	var out []listed
	more := true
	for _, m := range answers {
		switch m.kind {
		case msgError:
			return nil, m.switchError()
		case msgMultipartReply:
			var part []listed
			if part, more, err = m.flows(); err != nil {
				return nil, err
			}
			out = append(out, part...)
		}
	}
	if more {
		return nil, errors.New("the switch did not send the last part")
	}
	return out, nil
}

// commit makes the switch do todo and returns nil if it has done all of it.
func (s *Switch) commit(ctx context.Context, todo []change) error {
	first := s.conn.reserve(len(todo) + 3) // open, todo, commit, barrier
	requests, err := encodeBundle(first, todo)
	if err != nil {
		return err
	}
	answers, err := s.conn.ask(ctx, first, requests)
	if err != nil {
		return err
	}
	var refused []error
	committed := false
	for _, m := range answers {
		i := int(m.xid-first) - 1 // place in todo
		switch {
		case m.kind == msgError && i >= 0 && i < len(todo):
			refused = append(refused, &FlowError{todo[i].flow, m.switchError()})
		case m.kind == msgError:
			refused = append(refused, fmt.Errorf("the switch rejected the bundle: %w", m.switchError()))
		case m.isCommitReply():
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
