package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

// What is owed outlives the agent, whole; what somebody else wrote there is not acted on.
func TestOwed(t *testing.T) {
	o := owed{dir: filepath.Join(t.TempDir(), "not", "yet")}
	owner := api.AllocationOwner{ContainerID: "c1", IfName: "eth0", Network: "net"}
	host := hostOf(owner)
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
	// A writer that was killed leaves this.
	if err := os.WriteFile(o.path("fl1")+".tmp", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	hosts, err := owed{dir: o.dir}.hosts()
	if err != nil || len(hosts) != 1 || hosts[0] != host {
		t.Errorf("hosts are %v, %v, want %s", hosts, err, host)
	}
	if got, found, err := o.of(host); got != owner || !found || err != nil {
		t.Errorf("owed is %+v, found %t, %v", got, found, err)
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

// A file that a full disk has spoiled keeps no other address from being given back.
func TestSettlePastASpoiledFile(t *testing.T) {
	store, err := allocation.NewDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &pods{log: logr.Discard(), metrics: newMetrics(), bridged: bridged{owed: owed{dir: t.TempDir()},
		Allocator: allocator.New(allocator.Config{Store: store, Node: "me", Log: logr.Discard()})}}
	owner := api.AllocationOwner{ContainerID: "c1", IfName: "eth0", Network: "net", Node: "me"}
	if err := p.bridged.Restore(t.Context(), owner, "pool", netip.MustParseAddr("10.2.0.7"), nil); err != nil {
		t.Fatal(err)
	}
	if err := p.bridged.owed.keep(owner); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"fl", "flzzzzzzzzzzzzz"} { // one is read first, whatever the order
		if err := os.WriteFile(p.bridged.owed.path(host), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.settleAll(t.Context()); err == nil || strings.Count(err.Error(), "is not what the agent wrote: remove it") != 2 {
		t.Errorf("the spoiled files are told as %v", err)
	}
	held, err := store.List(t.Context(), allocation.Filter{})
	if hosts, herr := p.bridged.owed.hosts(); err != nil || herr != nil || len(held) != 0 || len(hosts) != 2 {
		t.Errorf("held are %+v, %v; files are %v, %v", held, err, hosts, herr)
	}
}

// The same is not said of a Pod every few seconds, and another thing is said at once.
func TestWarned(t *testing.T) {
	var w warned
	if !w.again("a") || w.again("a") || !w.again("b") {
		t.Error("want a, not a again, and b")
	}
	w.last["a"] = time.Now().Add(-2 * warnEvery)
	if !w.again("a") || len(w.last) != 2 {
		t.Errorf("want a again after %s: %v", warnEvery, w.last)
	}
}

// The files of one container's interfaces are apart: those of its own, and those of each network of another plugin.
func TestOwedNames(t *testing.T) {
	o := api.AllocationOwner{ContainerID: "c1", IfName: "net1", Network: "a"}
	names := map[string]bool{}
	for range 2 { // with another boot the same ones
		for _, network := range []string{"a", "b"} {
			o.Network, o.IPAMOnly = network, true
			names[hostOf(o)] = true
		}
		o.IPAMOnly = false
		names[hostOf(o)] = true
		o.Netns, o.BootID = "/run/netns/x", "boot"
	}
	if len(names) != 3 {
		t.Errorf("the names are %v, want three", names)
	}
}

// Whether a network namespace is gone can't be told where its directory is not to be seen.
func TestNetnsGone(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		there: false, filepath.Join(dir, "gone"): true, filepath.Join(dir, "no", "mount"): false,
		"/proc/self/ns/net": false, "/proc/4194305/ns/net": false, // above the largest PID that there is
	} {
		if got := netnsGone(path); got != want {
			t.Errorf("%s: gone %t, want %t", path, got, want)
		}
	}
}
