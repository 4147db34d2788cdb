package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

func TestConnectRefuses(t *testing.T) {
	for _, endpoint := range []string{"", "unix:", "unix:db.sock", "tcp:127.0.0.1:6640", "/run/openvswitch/db.sock",
		"unix:/run/a?b", "unix:/" + strings.Repeat("x", 120)} {
		if _, err := Connect(context.Background(), endpoint, logr.Discard()); err == nil || !strings.Contains(err.Error(), "absolute path") {
			t.Errorf("%q: error %v", endpoint, err)
		}
	}
	_, err := Connect(context.Background(), "unix:/nonexistent/db.sock", logr.Discard())
	if err == nil || !strings.Contains(err.Error(), "ovsdb-server at unix:/nonexistent/db.sock") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no server: %v", err)
	}
}

// untilCanceled fails the test unless call ends because its context was canceled: a timeout of its own is another
// error.
func untilCanceled(t *testing.T, what string, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer time.AfterFunc(300*time.Millisecond, cancel).Stop()
	if err := call(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v, want it to end with its context", what, err)
	}
}

func TestServerKilledAndBack(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	lost := make(chan string, 2)
	log := funcr.New(func(_, args string) {
		if strings.Contains(args, "lost the connection") {
			lost <- args
		}
	}, funcr.Options{})
	db, err := Connect(soon(t), "unix:"+o.DBSocket, log)
	must(t, err)
	t.Cleanup(db.Close)
	d := desired("a")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))

	o.Server.Kill()
	waitChanged(t, db, func() bool { return !db.Connected() }, "to see ovsdb-server go")
	if reason := <-lost; !strings.Contains(reason, "ovsdb-server closed the connection") {
		t.Errorf("noticed by the echo and not by the end of the connection: %s", reason)
	}
	more := desired("a", "b")
	for what, call := range map[string]func(context.Context) error{
		"Ensure":      func(ctx context.Context) error { _, err := db.Ensure(ctx, more); return err },
		"Prune":       func(ctx context.Context) error { _, err := db.Prune(ctx, more); return err },
		"WaitOFPorts": func(ctx context.Context) error { return db.WaitOFPorts(ctx, "flb") },
		"Observe":     func(context.Context) error { _, err := db.Observe("br-int"); return err },
	} {
		// Each call fails at once: one that waited would report a canceled context.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := call(ctx); err == nil || !strings.Contains(err.Error(), "ovsdb-server is down at unix:/") {
			t.Errorf("%s says %v", what, err)
		}
	}
	// A call that is already waiting ends as well.
	o.Server.Start()
	waitChanged(t, db, db.Connected, "to see ovsdb-server back")
	ensureNow(t, db, more)
	waits := make(chan error, 1)
	go func() { waits <- db.WaitOFPorts(context.Background(), "none") }()
	o.Server.Kill()
	select {
	case err := <-waits:
		if err == nil || !strings.Contains(err.Error(), "ovsdb-server is down at unix:/") {
			t.Errorf("WaitOFPorts that was waiting says %v", err)
		}
	case <-time.After(patience):
		t.Error("WaitOFPorts keeps waiting without ovsdb-server")
	}
	o.Server.Start()
	waitChanged(t, db, db.Connected, "to see ovsdb-server back again")
	must(t, db.WaitOFPorts(soon(t), "flb"))
	if got := hostIfs(mustObserve(t, db)); len(got) != 2 {
		t.Errorf("after the reconnect the pods are %v, want 2", got)
	}
}

// A stopped server accepts connections and sends nothing.
func TestServerStopped(t *testing.T) {
	t.Parallel()
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	ensureNow(t, db, desired("a"))
	o.Server.Signal(syscall.SIGSTOP)
	cont := func() { o.Server.Signal(syscall.SIGCONT) }
	t.Cleanup(cont)
	big := desired("a")
	for i := range 2000 { // more than a socket buffer holds, so that the write blocks
		big.Pods = append(big.Pods, attachment(fmt.Sprintf("big%d", i)))
	}
	untilCanceled(t, "Ensure", func(ctx context.Context) error { _, err := db.Ensure(ctx, desired("a", "b")); return err })
	untilCanceled(t, "big Ensure", func(ctx context.Context) error { _, err := db.Ensure(ctx, big); return err })
	nstest.Wait(t, echoEvery+echoLimit+patience, "the stopped server to count as down", func() bool { return !db.Connected() })
	if _, err := db.Ensure(context.Background(), desired("a", "b")); err == nil || !strings.Contains(err.Error(), "is down") {
		t.Errorf("Ensure says %v", err)
	}
	cont()
	nstest.Wait(t, dialLimit+patience, "the connection to come back", db.Connected)
	ensureNow(t, db, desired("a", "b", "c"))
}

// Ten crashes do not leak goroutines.
func TestReconnectsLeaveNothing(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	crash := func() {
		o.Server.Kill()
		waitChanged(t, db, func() bool { return !db.Connected() }, "to see ovsdb-server go")
		o.Server.Start()
		waitChanged(t, db, db.Connected, "to see ovsdb-server back")
		ensureNow(t, db, desired("a"))
	}
	crash()
	before := runtime.NumGoroutine()
	for range 10 {
		crash()
	}
	nstest.Wait(t, patience, "goroutines of lost connections to end", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func TestClose(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	before := runtime.NumGoroutine()
	db, err := Connect(soon(t), "unix:"+o.DBSocket, logr.Discard())
	must(t, err)
	db.Close()
	if _, err := db.Observe("br-int"); err == nil || !strings.Contains(err.Error(), "closed by this process") {
		t.Errorf("Observe after Close: %v", err)
	}
	nstest.Wait(t, patience, "the connection's goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}
