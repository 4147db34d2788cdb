package addresses

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

// A pending release outlives the agent, complete; a file that another program wrote there has no effect.
func TestPendingReleases(t *testing.T) {
	o := pendingReleases{dir: filepath.Join(t.TempDir(), "not", "yet")}
	owner := api.AllocationOwner{ContainerID: "c1", IfName: "eth0", Network: "net"}
	host := attachments.HostOf(owner)
	if hosts, err := o.hosts(); err != nil || len(hosts) != 0 {
		t.Errorf("without a directory: %v, %v", hosts, err)
	}
	if _, found, err := o.of(host); found || err != nil {
		t.Errorf("without a file: found %t, %v", found, err)
	}
	for range 2 {
		if err := o.keep(owner); err != nil {
			t.Fatal(err)
		}
	}
	// Left by a writer that was killed.
	if err := os.WriteFile(o.path("fl1")+".tmp", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	hosts, err := pendingReleases{dir: o.dir}.hosts()
	if err != nil || len(hosts) != 1 || hosts[0] != host {
		t.Errorf("hosts are %v, %v, want %s", hosts, err, host)
	}
	if got, found, err := o.of(host); got != owner || !found || err != nil {
		t.Errorf("the pending release is %+v, found %t, %v", got, found, err)
	}
	// An agent of another version used another directory.
	older := pendingReleases{dir: o.dir}
	o.dir = filepath.Join(t.TempDir(), "now")
	for range 2 {
		if err := o.takeOver(older.dir); err != nil {
			t.Fatal(err)
		}
	}
	if got, found, err := o.of(host); got != owner || !found || err != nil {
		t.Errorf("an older agent's pending release is %+v, found %t, %v", got, found, err)
	}
	if hosts, err := older.hosts(); err != nil || len(hosts) > 0 {
		t.Errorf("left in the older agent's directory: %v, %v", hosts, err)
	}
	if err := os.Rename(o.path(host), o.path("fl0123456789abc")); err != nil {
		t.Fatal(err)
	}
	if _, found, err := o.of("fl0123456789abc"); found || err == nil {
		t.Errorf("a file of another name is believed: found %t, %v", found, err)
	}
	for range 2 {
		if err := o.done("fl0123456789abc"); err != nil {
			t.Error(err)
		}
	}
}

// A file damaged by a full disk does not prevent other addresses from being released.
func TestSettlePastASpoiledFile(t *testing.T) {
	store, err := allocation.NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &Addresses{Parts: Parts{Log: logr.Discard(), Metrics: status.NewMetrics("test"), Registry: &attachments.Registry{}},
		pending: pendingReleases{dir: t.TempDir()}, allocator: allocator.New(allocator.Config{Store: store, Node: "me",
			Log: logr.Discard()})}
	owner := api.AllocationOwner{ContainerID: "c1", IfName: "eth0", Network: "net", Node: "me"}
	if _, err := p.allocator.Restore(t.Context(), owner, "pool", "", netip.MustParseAddr("10.2.0.7"), nil); err != nil {
		t.Fatal(err)
	}
	if err := p.pending.keep(owner); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"fl", "flzzzzzzzzzzzzz"} { // one of them is read first, in either order
		if err := os.WriteFile(p.pending.path(host), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.releaseAllDeferred(t.Context()); err == nil || strings.Count(err.Error(), "was not written by the agent: remove it") != 2 {
		t.Errorf("the damaged files are reported as %v", err)
	}
	held, err := store.List(t.Context(), allocation.Filter{})
	if hosts, herr := p.pending.hosts(); err != nil || herr != nil || len(held) != 0 || len(hosts) != 2 {
		t.Errorf("held are %+v, %v; files are %v, %v", held, err, hosts, herr)
	}
}

// hanging is a store of an API server that accepts requests and does not answer them.
type hanging struct{ allocation.Store }

func (hanging) List(ctx context.Context, _ allocation.Filter) ([]api.IPAllocation, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A DEL waits for a hanging API server no longer than releaseTimeout, and the release is recorded by then, until a
// repeated DEL has carried it out.
func TestReleaseIsBounded(t *testing.T) {
	dir := t.TempDir()
	store, err := allocation.NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := &Addresses{Parts: Parts{Log: logr.Discard(), Metrics: status.NewMetrics("test")},
			pending: pendingReleases{dir: dir}, allocator: allocator.New(allocator.Config{Store: hanging{}, Node: "me",
				Log: logr.Discard()})}
		owner, began := api.AllocationOwner{ContainerID: "c1", IfName: "eth0", Node: "me"}, time.Now()
		if err := p.Release(t.Context(), owner); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != releaseTimeout { // on the test's clock
			t.Errorf("the DEL waited %s, want %s", took, releaseTimeout)
		}
		if pending, err := p.ReleasePending(attachments.HostOf(owner)); !pending || err != nil {
			t.Errorf("the release is recorded: %t, %v", pending, err)
		}
		p.allocator = allocator.New(allocator.Config{Store: store, Node: "me", Log: logr.Discard()})
		if err := p.Release(t.Context(), owner); err != nil {
			t.Error(err)
		}
		if pending, err := p.ReleasePending(attachments.HostOf(owner)); pending || err != nil {
			t.Errorf("after the API server has answered, the release is recorded: %t, %v", pending, err)
		}
	})
}

// It is unknown whether a network namespace is gone if its directory is not visible.
func TestNetnsGone(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		there: false, filepath.Join(dir, "gone"): true, filepath.Join(dir, "no", "mount"): false,
		"/proc/self/ns/net": false, "/proc/4194305/ns/net": false, // above the largest possible PID
	} {
		if got := netnsGone(path); got != want {
			t.Errorf("%s: gone %t, want %t", path, got, want)
		}
	}
}
