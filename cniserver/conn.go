package cniserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// errHungUp is the cause when the caller of a call is gone: the runtime's time limit kills the shim.
var errHungUp = errors.New("the caller closed the connection")

// errNothing is the result of a connection without a request: a check whether the agent listens.
var errNothing = errors.New("no request")

// serve reads one request from conn, answers it and closes conn.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(s.cfg.RequestWait))
	line, err := readRequest(conn)
	if errors.Is(err, errNothing) {
		return
	}
	arrived := time.Now()
	var response wire.Response
	if err != nil {
		response = s.refuse(arrived, "invalid", err)
	} else {
		_ = conn.SetDeadline(time.Time{})
		calling, hungUp := context.WithCancelCause(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, conn) // ends when either side closes
			hungUp(errHungUp)
		}()
		response = s.answer(calling, arrived, line)
	}
	out, err := json.Marshal(response)
	if err != nil {
		s.cfg.Log.Error(err, "encoding a CNI response")
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(s.cfg.RequestWait))
	if _, err := conn.Write(append(out, '\n')); err != nil {
		s.cfg.Log.Info("CNI caller closed the connection before the answer", "reason", err.Error())
	}
}

// readRequest returns the line that the caller sends, if it is allowed to call.
func readRequest(conn *net.UnixConn) ([]byte, error) {
	if err := checkPeer(conn); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(io.LimitReader(conn, wire.MaxRequest+1)).ReadBytes('\n')
	switch {
	case err == nil:
		return line, nil
	case len(line) == 0 && errors.Is(err, io.EOF):
		return nil, errNothing
	case len(line) > wire.MaxRequest:
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf(
			"the request is longer than %d bytes", wire.MaxRequest), "")
	case errors.Is(err, io.EOF):
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf(
			"the request ends after %d bytes without a newline", len(line)), "")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, types.NewError(types.ErrIOFailure, "timeout reading the request", "")
	default:
		return nil, types.NewError(types.ErrIOFailure, fmt.Sprintf("reading the request: %v", err), "")
	}
}

// checkPeer rejects callers that are neither root nor the agent's own user. The mode of the socket keeps them out
// already, unless it was changed.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if peerErr != nil {
		return fmt.Errorf("reading the caller's credentials: %w", peerErr)
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return types.NewError(CodeForbidden, fmt.Sprintf("user %d is not allowed to make CNI calls: only root is", peer.Uid), "")
	}
	return nil
}
