package cniserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// Config is the configuration of a Server. All fields but the durations are required.
type Config struct {
	// Socket is the path to listen on.
	Socket  string
	Handler Handler
	IPAM    IPAM
	Log     logr.Logger
	// Observe is called for each call that is over, with CNI_COMMAND ("invalid" if the request could not be parsed),
	// the CNI error code in decimal, "0" for success, and the time since the request's arrival, in seconds.
	Observe func(verb, code string, seconds float64)

	// RequestWait bounds the sending of a request, CallWait a call, GCWait a GC's wait for the calls before it, and
	// StopWait Serve's wait for calls when it stops. Zero means the default: 10 s, wire.ServerDeadline, 10 s, 10 s.
	RequestWait, CallWait, GCWait, StopWait time.Duration
}

// Server serves the CNI shim.
type Server struct {
	cfg      Config
	listener *net.UnixListener
	socket   os.FileInfo
	order    order
}

// Listen creates the socket, which only root can use, and its directory. An existing socket is replaced, unless another
// process listens on it. Callers can connect from now on; Serve serves them.
func Listen(cfg Config) (*Server, error) {
	for d, standard := range map[*time.Duration]time.Duration{
		&cfg.RequestWait: 10 * time.Second, &cfg.CallWait: wire.ServerDeadline,
		&cfg.GCWait: 10 * time.Second, &cfg.StopWait: 10 * time.Second,
	} {
		if *d == 0 {
			*d = standard
		}
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of the CNI socket: %w", err)
	}
	if err := checkFree(cfg.Socket); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg}
	if err := s.listen(); err != nil {
		return nil, fmt.Errorf("listening on the CNI socket %s: %w", cfg.Socket, err)
	}
	return s, nil
}

// checkFree returns nil if path does not exist or is a dead socket.
func checkFree(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking the CNI socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("the CNI socket %s: the file exists and is not a socket. Remove it", path)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return fmt.Errorf("the CNI socket %s: another agent serves it. Stop it first", path)
	}
	return nil
}

// listen binds another name and renames it, so that the socket never has the mode that the umask yields, and is never
// missing.
func (s *Server) listen() error {
	tmp := fmt.Sprintf("%s.%d", s.cfg.Socket, os.Getpid())
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false) // it would unlink tmp
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		err = os.Rename(tmp, s.cfg.Socket)
	}
	if err == nil {
		s.socket, err = os.Lstat(s.cfg.Socket)
	}
	if err != nil {
		os.Remove(tmp)
		return errors.Join(err, l.Close())
	}
	s.listener = l
	return nil
}

// Close closes a Server that will not Serve.
func (s *Server) Close() error {
	if now, err := os.Lstat(s.cfg.Socket); err == nil && os.SameFile(now, s.socket) {
		os.Remove(s.cfg.Socket)
	}
	return s.listener.Close()
}

// errStopping is the cause of the end of calls that outlive StopWait.
var errStopping = errors.New("the agent is stopping")

// Serve serves until ctx ends. It then accepts no new calls and lets those in progress finish for StopWait, before it
// cancels their contexts. The error is nil unless a handler has not returned another StopWait later.
func (s *Server) Serve(ctx context.Context) error {
	calls, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	defer context.AfterFunc(ctx, func() { s.Close() })()

	var running sync.WaitGroup
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil { // out of file descriptors, for example
			s.cfg.Log.Error(err, "accepting a CNI call failed, will retry")
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		running.Go(func() { s.serve(calls, conn) })
	}

	finished := make(chan struct{})
	go func() { running.Wait(); close(finished) }()
	select {
	case <-finished:
		return nil
	case <-time.After(s.cfg.StopWait):
		end(errStopping)
	}
	select {
	case <-finished:
		return nil
	case <-time.After(s.cfg.StopWait):
		return fmt.Errorf("stopping the CNI server: calls are still running %s after they were cancelled", s.cfg.StopWait)
	}
}
