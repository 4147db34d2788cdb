package addresses

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

// What a container was given outlives the agent. A file of a newer agent is read, and one that a full disk has
// truncated, or somebody else has written, is named and keeps no other from being read.
func TestLiving(t *testing.T) {
	l := living{dir: filepath.Join(t.TempDir(), "not", "yet")}
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
	next := living{dir: l.dir}
	if err := next.load(); err == nil || strings.Count(err.Error(), "does not say which addresses a container has") != 3 {
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
