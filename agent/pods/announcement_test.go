package pods

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// plugin is a script that answers VERSION after running the given command.
func plugin(t *testing.T, path, first string) {
	t.Helper()
	text := "#!/bin/sh\n" + first + "\necho '" + `{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}` + "'\n"
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// announced is an announcement that was installed in directories of its own, with a function that returns its log.
func announced(t *testing.T, portmap string) (*announcement, func() string) {
	t.Helper()
	var mu sync.Mutex
	var log strings.Builder
	logger := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		log.WriteString(args + "\n")
	}, funcr.Options{})
	bin, shim := t.TempDir(), filepath.Join(t.TempDir(), "fairlead")
	plugin(t, shim, "")
	plugin(t, filepath.Join(bin, "portmap"), portmap)
	plugin(t, filepath.Join(bin, "bandwidth"), "")
	a := &announcement{shim: shim, plugins: conflist.Plugins{BinDir: bin, Kept: t.TempDir()},
		path: filepath.Join(t.TempDir(), "10-fairlead.conflist"),
		Pods: &Pods{Parts: Parts{Config: api.AgentConfig{CNISocket: wire.DefaultSocket}, Log: logger,
			Board: status.NewBoard(nil), Intervals: api.AgentIntervals{Reconcile: 10 * time.Millisecond}}}}
	if err := a.install(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return a, func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

// wait waits until a condition is met.
func wait(t *testing.T, what string, log func() string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what + "\n" + log())
		}
	}
}

// A list deleted by the cleanup of another network is restored while the agent runs, and a list that takes precedence
// is reported.
func TestAnnouncementIsKept(t *testing.T) {
	t.Parallel()
	a, log := announced(t, "")
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { a.follow(ctx) })
	defer following.Wait()
	defer stop()
	var want []byte
	wait(t, "plugins are missing in the list", log, func() bool { // a slow plugin is added later
		var err error
		want, err = os.ReadFile(a.path)
		return err == nil && strings.Contains(string(want), `"portmap"`) && strings.Contains(string(want), `"bandwidth"`)
	})
	shim := filepath.Join(a.plugins.BinDir, "fairlead")
	for _, c := range []struct {
		name string
		harm func() error
	}{
		{"the list is deleted", func() error { return os.Remove(a.path) }},
		{"the list is changed", func() error { return os.WriteFile(a.path, []byte("{}"), 0o600) }},
		{"the plugin is deleted", func() error { return os.Remove(shim) }},
		{"all is deleted", func() error {
			return os.Rename(filepath.Dir(a.path), filepath.Join(t.TempDir(), "gone"))
		}},
	} {
		if err := c.harm(); err != nil {
			t.Fatal(err)
		}
		wait(t, c.name+", and stays so", log, func() bool {
			got, err := os.ReadFile(a.path)
			_, missing := os.Stat(shim)
			return err == nil && string(got) == string(want) && missing == nil
		})
	}
	before := filepath.Join(filepath.Dir(a.path), "05-other.conflist")
	if err := os.WriteFile(before, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	state := func() string { return a.Board.State("", "", false).Degraded }
	wait(t, "a list that goes before is not reported", log, func() bool { return strings.Contains(state(), before) })
	if err := os.Remove(before); err != nil {
		t.Fatal(err)
	}
	wait(t, "it is still reported", log, func() bool { return state() == "" })
	if err := os.Remove(a.shim); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(shim); err != nil {
		t.Fatal(err)
	}
	wait(t, "what cannot be installed is not reported", log, func() bool { return strings.Contains(state(), "installing the CNI plugin") })
}

// A plugin that does not answer in time, on a busy node, is omitted only until it does.
func TestAnnouncementAfterSlowPlugin(t *testing.T) {
	t.Parallel()
	slow := filepath.Join(t.TempDir(), "slow")
	if err := os.WriteFile(slow, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a, log := announced(t, "if [ -e "+slow+" ]; then exec sleep 1000; fi")
	chains := func() bool {
		list, err := os.ReadFile(a.path)
		return err == nil && strings.Contains(string(list), `"portmap"`)
	}
	if chains() || !strings.Contains(log(), "portmap") {
		t.Fatalf("portmap is in the list: %t, and the log is %s", chains(), log())
	}
	if err := os.Remove(slow); err != nil {
		t.Fatal(err)
	}
	if err := a.reinstall(t.Context(), ""); err != nil || !chains() {
		t.Errorf("it answers, and is not in the list: %v", err)
	}
	if err := a.reinstall(t.Context(), ""); err != nil {
		t.Error(err)
	}
	told, stamp := log(), a.stamp
	if err := a.reinstall(t.Context(), ""); err != nil || log() != told || stamp == "" {
		t.Errorf("nothing has changed, and it did something: %v: %s", err, log())
	}
}

// A change of the container runtime takes effect immediately, not at the next check of the files.
func TestAnnouncementFollowsRuntime(t *testing.T) {
	t.Parallel()
	a, log := announced(t, "")
	a.Intervals.Reconcile = time.Hour
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { a.follow(ctx) })
	defer following.Wait()
	defer stop()
	if err := os.Remove(a.path); err != nil {
		t.Fatal(err)
	}
	a.Board.Publish(&status.Status{Snapshot: a.Board.Load().Snapshot, Runtime: "another://2.0"})
	wait(t, "the list was not installed for another runtime", log, func() bool {
		_, err := os.Stat(a.path)
		return err == nil
	})
}
