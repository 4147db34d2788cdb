package openflow_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/flowtest"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/probe"
)

func TestVswitchdRestart(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	want := tables.Pipeline(tables.View{})
	flowtest.Sync(t, s, want)
	o.Vswitchd.Kill()
	wait(t, s.Done(), patience, "ovs-vswitchd was killed")
	if _, err := s.Sync(t.Context(), want); err == nil {
		t.Error("Sync on a lost connection succeeded")
	}
	o.Vswitchd.Start()
	if got := flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), want); got.Added != len(want) {
		t.Errorf("%+v after a restart, want %d added", got, len(want))
	}
}

// A stopped ovs-vswitchd keeps its sockets open. All operations must end by themselves.
func TestHungSwitch(t *testing.T) {
	t.Parallel()
	o := flowtest.Node(t)
	idle, busy := flowtest.Dial(t, o, openflow.Dial), flowtest.Dial(t, o, openflow.Dial)
	o.Vswitchd.Signal(syscall.SIGSTOP)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := busy.Sync(ctx, tables.Pipeline(tables.View{})); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Sync with a deadline: %v", err)
	}
	if _, err := openflow.Dial(ctx, o.Mgmt("br-int"), logr.Discard()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial with a deadline: %v", err)
	}
	_, err := openflow.Dial(context.Background(), o.Mgmt("br-int"), logr.Discard())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial without a deadline: %v", err)
	}
	if _, err := busy.Sync(context.Background(), tables.Pipeline(bigView(50, 500))); err == nil {
		t.Error("Sync without a deadline succeeded")
	}
	wait(t, idle.Done(), patience, "ovs-vswitchd was stopped")
	if err := idle.Lost(); !strings.Contains(err.Error(), "no message from the switch") {
		t.Errorf("lost because of %v", err)
	}
	o.Vswitchd.Signal(syscall.SIGCONT)
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), tables.Pipeline(tables.View{}))
}

// Without ovsdb-server, ovs-vswitchd serves no OpenFlow, and sends nothing.
func TestNoOVSDB(t *testing.T) {
	t.Parallel()
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	flowtest.Sync(t, s, tables.Pipeline(tables.View{}))
	o.Server.Kill()
	wait(t, s.Done(), patience, "ovsdb-server was killed")
	o.Server.Start()
	deadline := time.Now().Add(patience) // ovs-vswitchd backs off up to 8 s
	for {
		again, err := openflow.Dial(t.Context(), o.Mgmt("br-int"), logr.Discard())
		if err == nil {
			defer again.Close()
			if got := flowtest.Sync(t, again, tables.Pipeline(tables.View{})); got != (openflow.Changes{}) {
				t.Errorf("afterwards a sync changed %+v", got)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no OpenFlow %s after ovsdb-server came back: %v", patience, err)
		}
	}
}

// An idle connection to a healthy switch stays open.
func TestIdleConnection(t *testing.T) {
	t.Parallel()
	o := flowtest.Node(t)
	for range 5 {
		s, starved := flowtest.Dial(t, o, openflow.Dial), probe.Starved(ofconn.LostAfter, o.Vswitchd.PID())
		select {
		case <-s.Done():
		case <-time.After(ofconn.LostAfter + ofconn.ProbeAfter):
			starved()
			flowtest.Sync(t, s, tables.Pipeline(tables.View{}))
			return
		}
		waited := starved()
		if waited < (ofconn.LostAfter-ofconn.ProbeAfter)/2 {
			t.Fatalf("lost: %v; ovs-vswitchd has waited %s for a processor", s.Lost(), waited)
		}
		t.Logf("lost: %v; ovs-vswitchd, which was not healthy, has waited %s for a processor", s.Lost(), waited)
	}
	t.Error("this machine is too busy for a switch that answers")
}

func TestClose(t *testing.T) {
	s := flowtest.Dial(t, flowtest.Node(t), openflow.Dial)
	s.Close()
	s.Close()
	wait(t, s.Done(), patience, "Close was called")
	if _, err := s.Sync(t.Context(), nil); !errors.Is(err, ofconn.ErrClosed) {
		t.Errorf("Sync after Close: %v", err)
	}
}

func TestOldProtocol(t *testing.T) {
	o := flowtest.Node(t)
	o.Ctl("set", "Bridge", "br-int", "protocols=OpenFlow13")
	_, err := openflow.Dial(t.Context(), o.Mgmt("br-int"), logr.Discard())
	if err == nil || !strings.Contains(err.Error(), "protocols") {
		t.Errorf("got error %v, want one that names the protocols column", err)
	}
	if _, err := openflow.Dial(t.Context(), filepath.Join(o.Dir, "none.mgmt"), logr.Discard()); err == nil {
		t.Error("Dial of a missing bridge succeeded")
	}
}

// A peer that sends garbage ends the connection, without a hang or a panic.
func TestGarbage(t *testing.T) {
	hello := string(ofconn.Encode(0, 1, nil))
	for _, c := range []struct {
		name, reply string
		dialFails   bool
	}{
		{"nothing", "", true},
		{"text", "HTTP/1.1 400 Bad Request\r\n\r\n", true},
		{"length below 8", "\x06\x00\x00\x04\x00\x00\x00\x01", true},
		{"cut hello", "\x06\x00\x00\x10\x00\x00\x00\x01", true},
		{"error", "\x06\x01\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x00", true},
		{"length below 8 later", hello + "\x06\x0a\x00\x07\x00\x00\x00\x01", false},
		{"unknown type, then other version",
			hello + "\x06\xc8\x00\x08\x00\x00\x00\x01" + "\x01\x00\x00\x08\x00\x00\x00\x01", false},
		{"cut message", hello + "\x06\x0a\xff\xff\x00\x00\x00\x01abc", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := openflow.Dial(t.Context(), speak(t, c.reply), logr.Discard())
			if c.dialFails != (err != nil) {
				t.Fatalf("Dial: %v", err)
			}
			if err == nil {
				wait(t, s.Done(), patience, "the peer talked nonsense")
			}
		})
	}
}

// speak is a socket whose other end sends text and then shuts down its sending direction.
func speak(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Write([]byte(text))
		c.(*net.UnixConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(patience))
		for b := make([]byte, 4096); err == nil; {
			_, err = c.Read(b)
		}
	}()
	return path
}

// patience is the limit for expected events: far longer than they take on the busiest machine.
const patience = time.Minute

func wait(t *testing.T, done <-chan struct{}, limit time.Duration, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("Done is open %v after %s", limit, what)
	}
}
