package addresses

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

// The records of containers' addresses outlive the agent. A newer agent's file is read; one that a full disk has
// truncated, or that another program has written, is reported and does not prevent the others from being read.
func TestLiving(t *testing.T) {
	l := secondaryRecords{dir: filepath.Join(t.TempDir(), "not", "yet")}
	if err := l.load(); err != nil || len(l.all()) != 0 {
		t.Fatalf("without a directory: %v, %v", l.all(), err)
	}
	owner := api.AllocationOwner{ContainerID: "c1", IfName: "net1", Network: "red", IPAMOnly: true, Netns: "/run/netns/1"}
	host, given := attachments.HostOf(owner), []allocator.Address{{Prefix: netip.MustParsePrefix("10.1.0.7/24"), Pool: "p", Scope: "red"}}
	if err := l.keep(owner, given); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(l.path(host))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		host:        strings.Replace(string(data), "{", `{"newField": [1], `, 1),
		"ipam-0":    string(data[:len(data)/2]),
		"ipam-1":    "",
		"ipam-zzzz": string(data),
	} {
		if err := os.WriteFile(l.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := secondaryRecords{dir: l.dir}
	if err := next.load(); err == nil || strings.Count(err.Error(), "is not a valid record of a container's addresses") != 3 {
		t.Errorf("the damaged files are reported as %v", err)
	}
	if f, found := next.with("red.10.1.0.7"); !found || f.Owner != owner || f.Pools["red.10.1.0.7"] != "p" || len(next.all()) != 1 {
		t.Errorf("read %+v, found %t", next.all(), found)
	}
	for range 2 {
		if err := next.forget(host); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(l.path(host)); err == nil || len(next.all()) != 0 {
		t.Errorf("a forgotten owner's file is there, %v, or known: %v", err, next.all())
	}
}

// An address whose allocation is gone belongs to its container as long as that lives, and its allocation is restored.
// An address of a container of an earlier boot, of one whose network namespace is gone, or of no container is free.
func TestInUse(t *testing.T) {
	const lost = "red.10.1.0.7"
	for what, c := range map[string]struct {
		name, boot, netns string
		lives             bool
	}{
		"lives":                      {lost, "now", "/proc/self/ns/net", true},
		"of an earlier boot":         {lost, "before", "/proc/self/ns/net", false},
		"its network namespace ends": {lost, "now", filepath.Join(t.TempDir(), "gone"), false},
		"another address":            {"red.10.1.0.8", "now", "/proc/self/ns/net", false},
	} {
		store, err := allocation.NewDirectory(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		p := &Addresses{Parts: Parts{Log: logr.Discard(), Metrics: status.NewMetrics("test"),
			Registry: attachments.New(nil, "br-int", "now", &attachments.Recorded{})}, secondaries: secondaryRecords{dir: t.TempDir()},
			allocator: allocator.New(allocator.Config{Store: store, Node: "me", Log: logr.Discard()})}
		owner := api.AllocationOwner{ContainerID: "c1", IfName: "net1", Network: "red", IPAMOnly: true, Netns: c.netns,
			BootID: c.boot, Node: "me"}
		err = p.secondaries.load()
		if err == nil {
			err = p.secondaries.keep(owner, []allocator.Address{{Prefix: netip.MustParsePrefix("10.1.0.7/24"), Pool: "p", Scope: "red"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		holder, err := p.inUse(t.Context(), c.name)
		if err != nil || (holder != nil) != c.lives || c.lives && holder.Spec.Owner != owner {
			t.Errorf("%s: its holder is %+v, %v", what, holder, err)
		}
		if held, err := store.List(t.Context(), allocation.Filter{}); err != nil || (len(held) > 0) != c.lives {
			t.Errorf("%s: there are %d allocations, %v", what, len(held), err)
		}
		err = p.restoreSecondaries(t.Context(), nil)
		_, known := p.secondaries.all()[attachments.HostOf(owner)]
		if lives := c.lives || c.name != lost; err != nil || known != lives {
			t.Errorf("%s: it is known what it was given: %t, want %t, %v", what, known, lives, err)
		}
	}
}
