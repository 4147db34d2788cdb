package cniserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

func TestErrorsOfTheHandler(t *testing.T) {
	needNetns(t)
	for name, c := range map[string]struct {
		verb string
		err  error
		code uint
		says []string
	}{
		"try again":  {"ADD", cniserver.TryAgainLater(errors.New("waiting for a podCIDR")), 11, []string{"waiting for a podCIDR"}},
		"no address": {"ADD", cniserver.NoAddress(errors.New("podCIDR is full")), 101, []string{"podCIDR is full"}},
		"details":    {"DEL", types.NewError(150, "text", "more"), 150, []string{"text", "more"}},
		"wrapped":    {"ADD", fmt.Errorf("pod a/b: %w", cniserver.TryAgainLater(errors.New("later"))), 11, []string{"pod a/b: later"}},
		"plain":      {"ADD", errors.New("no such device"), 100, []string{"no such device"}},
		"CHECK":      {"CHECK", errors.New("the veth is gone"), 103, []string{"the veth is gone"}},
		"STATUS":     {"STATUS", errors.New("ovsdb-server is down"), 50, []string{"ovsdb-server is down"}},
		"limited":    {"STATUS", types.NewError(types.ErrLimitedConnectivity, "no tunnel", ""), 51, []string{"no tunnel"}},
		"context":    {"ADD", fmt.Errorf("asking OVS: %w", context.DeadlineExceeded), 11, []string{"asking OVS"}},
	} {
		t.Run(name, func(t *testing.T) {
			fail := func(context.Context, cniserver.Request) error { return c.err }
			h := &handler{del: fail, check: fail, status: func(context.Context) error { return c.err },
				add: func(context.Context, cniserver.Request) (cniserver.Result, error) { return dualStack(), c.err }}
			s := start(t, h, cniserver.Config{})
			r := request(c.verb)
			if c.verb == "CHECK" {
				config(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","prevResult":
					{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:07","sandbox":"x"}]}}`)(&r)
			}
			wantError(t, ask(t, s.socket, r), c.code, c.says...)
			eventually(t, "the call is observed", func() bool {
				return s.obs.String() == fmt.Sprintf("%s %d\n", c.verb, c.code)
			})
		})
	}
}

// An error with a code keeps what it wraps, for checks before it goes to the runtime.
func TestCodedErrorsWrap(t *testing.T) {
	cause := fmt.Errorf("asking OVS: %w", context.DeadlineExceeded)
	for code, err := range map[uint]error{11: cniserver.TryAgainLater(cause), 101: cniserver.NoAddress(cause)} {
		wrapped := fmt.Errorf("pod a/b: %w", err)
		var e *types.Error
		if !errors.As(wrapped, &e) || e.Code != code || e.Msg != cause.Error() {
			t.Errorf("code %d: as *types.Error it is %v", code, e)
		}
		if !errors.Is(wrapped, context.DeadlineExceeded) {
			t.Errorf("code %d: %v has lost its cause", code, wrapped)
		}
	}
}

func TestPanicOfTheHandler(t *testing.T) {
	needNetns(t)
	h := &handler{add: func(context.Context, cniserver.Request) (cniserver.Result, error) {
		var nothing []int
		return cniserver.Result{MTU: nothing[len(nothing)]}, nil
	}}
	s := start(t, h, cniserver.Config{})
	for range 2 { // the first does not block the order
		wantError(t, ask(t, s.socket, request("ADD")), cniserver.CodeInternal, "internal error")
	}
	if log := s.log.String(); !strings.Contains(log, "index out of range") || !strings.Contains(log, "server_test.go") {
		t.Errorf("the log does not say what happened and where: %s", log)
	}
	wantSuccess(t, ask(t, s.socket, request("STATUS")))
}

func TestCallerHangsUp(t *testing.T) {
	needNetns(t)
	cause := make(chan error, 1)
	h := &handler{add: func(ctx context.Context, _ cniserver.Request) (cniserver.Result, error) {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return cniserver.Result{}, ctx.Err()
	}}
	s := start(t, h, cniserver.Config{})
	conn := dial(t, s.socket)
	send(t, conn, request("ADD"))
	eventually(t, "the ADD runs", func() bool { return len(h.calls()) == 1 })
	conn.Close()
	if err := receiveWithin(t, "the context ends", cause); err == nil || !strings.Contains(err.Error(), "closed the connection") {
		t.Errorf("the cause is %v", err)
	}
	wantSuccess(t, ask(t, s.socket, request("DEL")))
	if obs := s.obs.String(); obs != "ADD 11\nDEL 0\n" {
		t.Errorf("observed %q", obs)
	}
}

func TestCallTakesTooLong(t *testing.T) {
	needNetns(t)
	h := &handler{add: func(ctx context.Context, _ cniserver.Request) (cniserver.Result, error) {
		<-ctx.Done()
		return cniserver.Result{}, fmt.Errorf("waiting for the port: %w", ctx.Err())
	}}
	s := start(t, h, cniserver.Config{CallWait: 50 * time.Millisecond})
	wantError(t, ask(t, s.socket, request("ADD")), types.ErrTryAgainLater,
		"waiting for the port", "ADD took longer than 50ms")
}

func TestStopLetsCallsFinish(t *testing.T) {
	needNetns(t)
	g := newGate()
	s := start(t, stuckAdd(g), cniserver.Config{})
	add := goAsk(t, s.socket, request("ADD", container("stuck")))
	receiveWithin(t, "the ADD runs", g.entered)
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	eventually(t, "no listener", func() bool {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if _, err := os.Lstat(s.socket); err == nil {
		t.Error("the socket is still there")
	}
	stays(t, "Serve returned during a call", stopped)
	close(g.open)
	wantSuccess(t, receiveWithin(t, "the ADD is answered", add))
	if err := receiveWithin(t, "Serve returns", stopped); err != nil {
		t.Error(err)
	}
}

func TestStopEndsCallsThatTakeTooLong(t *testing.T) {
	needNetns(t)
	h := &handler{add: func(ctx context.Context, _ cniserver.Request) (cniserver.Result, error) {
		<-ctx.Done()
		return cniserver.Result{}, errors.New("gave up")
	}}
	s := start(t, h, cniserver.Config{StopWait: 2 * time.Second})
	add := goAsk(t, s.socket, request("ADD"))
	eventually(t, "the ADD runs", func() bool { return len(h.calls()) == 1 })
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	wantError(t, receiveWithin(t, "the ADD is answered", add), types.ErrTryAgainLater, "gave up", "the agent is stopping")
}

func TestStopNamesCallsThatNeverReturn(t *testing.T) {
	needNetns(t)
	g := newGate()
	socket := filepath.Join(t.TempDir(), "cni.sock")
	srv, err := cniserver.Listen(cniserver.Config{Socket: socket, Handler: stuckAdd(g),
		Log: logr.Discard(), Observe: func(string, string, float64) {}, StopWait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- srv.Serve(ctx) }()
	t.Cleanup(func() { close(g.open) })
	conn := dial(t, socket)
	send(t, conn, request("ADD", container("stuck")))
	receiveWithin(t, "the ADD runs", g.entered)
	cancel()
	if err := receiveWithin(t, "Serve returns", result); err == nil || !strings.Contains(err.Error(), "still run") {
		t.Errorf("Serve returned %v", err)
	}
}

func TestSocket(t *testing.T) {
	s := start(t, &handler{}, cniserver.Config{})
	info, err := os.Lstat(s.socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Dir(s.socket)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
	if _, err := cniserver.Listen(cniserver.Config{Socket: s.socket}); err == nil ||
		!strings.Contains(err.Error(), "another agent serves") {
		t.Errorf("a second server: %v", err)
	}
	wantSuccess(t, ask(t, s.socket, request("STATUS"))) // the first was not affected
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(s.socket)); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if log := s.log.String(); strings.Contains(log, "failed") {
		t.Errorf("a probe of the socket is no failed call: %s", log)
	}
}

// The socket of a killed agent does not prevent the next one from starting.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	// Likewise its temporary socket, if it had this process's PID.
	if err := os.WriteFile(fmt.Sprintf("%s.%d", path, os.Getpid()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, &handler{}, cniserver.Config{Socket: path})
	wantSuccess(t, ask(t, s.socket, request("STATUS")))
}

func TestSocketPathTaken(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		file:                          "not a socket",
		filepath.Join(file, "x.sock"): "making the directory",
		filepath.Join(dir, strings.Repeat("x", 120)): "listening on the CNI socket",
	} {
		if _, err := cniserver.Listen(cniserver.Config{Socket: path}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file was touched: %q, %v", b, err)
	}
}

// A server that stops leaves the socket of its successor alone.
func TestStopLeavesTheSocketOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.sock")
	first := start(t, &handler{}, cniserver.Config{Socket: path})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second := start(t, &handler{}, cniserver.Config{Socket: path})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	wantSuccess(t, ask(t, second.socket, request("STATUS")))
}

func TestBadBytes(t *testing.T) {
	for name, c := range map[string]struct {
		bytes  string
		hangUp bool // the caller closes its side instead of waiting
		code   uint
		says   []string
	}{
		"garbage":        {"\x00\xff\x16\x03\x01\n", false, 6, []string{"the request"}},
		"http":           {"GET / HTTP/1.1\r\n\r\n", false, 6, []string{"the request"}},
		"a list":         {"[]\n", false, 6, []string{"the request", "array"}},
		"null":           {"null\n", false, 4, []string{"CNI_COMMAND"}},
		"empty line":     {"\n", false, 6, []string{"the request"}},
		"wrong types":    {`{"command":7,"config":{}}` + "\n", false, 6, []string{"command", "number", "string"}},
		"config is text": {`{"command":"ADD","config":"{}"}` + "\n", false, 6, []string{"network configuration"}},
		"no config":      {`{"command":"ADD"}` + "\n", false, 6, []string{"network configuration"}},
		"half a request": {`{"command":"ADD","conf`, true, 6, []string{"ends after 22 bytes"}},
		"no newline":     {jsonOf(request("STATUS")), true, 6, []string{"without a newline"}},
		"slow":           {`{"command":`, false, 5, []string{"timeout reading the request"}},
		"10 MB":          {strings.Repeat("x", 10<<20), false, 6, []string{"longer than 4194304 bytes"}},
		"10 MB of JSON": {`{"command":"ADD","args":"` + strings.Repeat("x", 10<<20) + `"}` + "\n", false, 6,
			[]string{"longer"}},
		"deep": {`{"command":"ADD","config":` + strings.Repeat("[", 1<<20) + "\n", false, 6, []string{"depth"}},
		"deep config": {`{"command":"ADD","config":{"x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}}\n",
			false, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			wait := time.Duration(0) // the default
			if name == "slow" {
				wait = 300 * time.Millisecond
			}
			s := start(t, &handler{}, cniserver.Config{RequestWait: wait})
			conn := dial(t, s.socket).(*net.UnixConn)
			_, werr := conn.Write([]byte(c.bytes))
			if werr != nil && len(c.bytes) < wire.MaxRequest {
				t.Error(werr)
			}
			if c.hangUp {
				conn.CloseWrite()
			}
			wantError(t, receive(t, conn), c.code, c.says...)
			wantSuccess(t, ask(t, s.socket, request("STATUS")))
		})
	}
}

// The longest request is accepted.
func TestLongRequest(t *testing.T) {
	s := start(t, &handler{}, cniserver.Config{})
	r := request("STATUS", config(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","pad":""}`))
	pad := strings.Repeat("x", wire.MaxRequest-len(jsonOf(r)))
	config(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","pad":"%s"}`, pad)(&r)
	wantSuccess(t, ask(t, s.socket, r))
	config(`{"cniVersion":"1.1.0","name":"n","type":"fairlead","pad":"%sx"}`, pad)(&r)
	conn := dial(t, s.socket)
	line, _ := json.Marshal(r)
	conn.Write(append(line, '\n', '\n')) // may fail: the server closes the connection
	wantError(t, receive(t, conn), 6, "longer")
}

// Slow and silent callers do not delay others, and a caller may send more after its request.
func TestManyClients(t *testing.T) {
	needNetns(t)
	s := start(t, &handler{}, cniserver.Config{})
	for range 50 {
		dial(t, s.socket) // sends nothing
		conn := dial(t, s.socket)
		if _, err := conn.Write([]byte(`{"command":"AD`)); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range 100 {
		conn := dial(t, s.socket)
		wg.Go(func() {
			line := jsonOf(request("ADD", container(fmt.Sprint("c", i))))
			if _, err := conn.Write([]byte(line + "\n\n  \nmore")); err != nil {
				t.Error(err)
				return
			}
			wantSuccess(t, receive(t, conn))
		})
	}
	wg.Wait()
	for _, c := range strings.Fields(s.obs.String()) {
		if c != "ADD" && c != "0" {
			t.Errorf("observed %q", c)
		}
	}
}
