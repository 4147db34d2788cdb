package cniserver

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// answer processes the request in line. A panic, here or in the handler, becomes an error, and is logged with its
// stack.
func (s *Server) answer(ctx context.Context, arrived time.Time, line []byte) (response wire.Response) {
	verb, about := "invalid", []any(nil)
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error(fmt.Errorf("panic: %v", p), "panic in a CNI call", "stack", string(debug.Stack()))
			response = s.refuse(arrived, verb, types.NewError(CodeInternal, "internal error: see the agent's log", ""), about...)
		}
	}()
	request, err := decode(line)
	if err != nil {
		return s.refuse(arrived, verb, err)
	}
	verb = request.Command
	about = []any{"container", request.ContainerID, "interface", request.IfName}
	c, err := newCall(request)
	if err != nil {
		return s.refuse(arrived, verb, err, about...)
	}
	about = append(about, "pod", c.request.PodNamespace+"/"+c.request.PodName)
	if !c.nothing {
		if response.Result, err = s.inTurn(ctx, c); err != nil {
			return s.refuse(arrived, verb, err, about...)
		}
	}
	took := time.Since(arrived)
	s.cfg.Observe(verb, "0", took.Seconds())
	s.cfg.Log.V(1).Info("CNI call answered", append(about, "verb", verb, "took", took.String())...)
	return response
}

// refuse returns the response to a failed call; about goes to the log.
func (s *Server) refuse(arrived time.Time, verb string, err error, about ...any) wire.Response {
	e := errorOf(verb, err)
	took := time.Since(arrived)
	s.cfg.Observe(verb, strconv.FormatUint(uint64(e.Code), 10), took.Seconds())
	log := s.cfg.Log
	if verb == "STATUS" {
		log = log.V(1) // runtimes ask every few seconds
	}
	log.Info("CNI call failed", append(about, "verb", verb, "code", e.Code, "error", e.Error(), "took", took.String())...)
	return wire.Response{Error: e}
}

// inTurn calls the handler once it is c's turn.
func (s *Server) inTurn(ctx context.Context, c *call) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.CallWait,
		fmt.Errorf("%w: %s took longer than %s", context.DeadlineExceeded, c.verb, s.cfg.CallWait))
	defer cancel()
	switch c.verb {
	case "STATUS":
		return s.handle(ctx, c)
	case "GC":
		t := s.order.all()
		defer s.order.leave(t)
		waiting, cancel := context.WithTimeoutCause(ctx, s.cfg.GCWait,
			fmt.Errorf("%w: waited %s for earlier calls of the runtime", context.DeadlineExceeded, s.cfg.GCWait))
		defer cancel()
		if err := t.wait(waiting); err != nil {
			return nil, TryAgainLater(fmt.Errorf("GC was not started: %w", err))
		}
	default:
		id := AttachmentID{c.request.ContainerID, c.request.IfName}
		t := s.order.attachment(id)
		defer s.order.leave(t)
		if err := t.wait(ctx); err != nil {
			return nil, TryAgainLater(fmt.Errorf("%s was not started, an earlier call for interface %s of container %s is still running: %w", c.verb, id.IfName, id.ContainerID, err))
		}
	}
	return s.handle(ctx, c)
}

// handle calls the handler and returns the result of an ADD, encoded.
func (s *Server) handle(ctx context.Context, c *call) (result []byte, err error) {
	if c.as == ipamPlugin {
		return s.handleIPAM(ctx, c)
	}
	h := s.cfg.Handler
	switch c.verb {
	case "ADD":
		made, err := h.Add(ctx, c.request)
		if err != nil {
			return nil, ended(ctx, err)
		}
		return c.encodeResult(made)
	case "DEL":
		err = h.Del(ctx, c.request)
	case "CHECK":
		err = h.Check(ctx, c.request)
	case "GC":
		err = h.GC(ctx, c.network, c.valid)
	case "STATUS":
		err = h.Status(ctx)
	}
	return nil, ended(ctx, err)
}

// ended replaces an error that is due to the end of ctx by the cause of that, so that it does not read "context
// canceled".
func ended(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return TryAgainLater(fmt.Errorf("%w (%w)", err, context.Cause(ctx)))
}
