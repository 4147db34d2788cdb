package openflow

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the datapath has cached is gone, and a run directory in which no ovs-vswitchd answers is an error.
func TestForgetMegaflows(t *testing.T) {
	o := node(t)
	pid, err := os.ReadFile(filepath.Join(o.Dir, "ovs-vswitchd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	o.Ofctl("add-flow", "br-int", "in_port=3,actions=4")
	o.Appctl("netdev-dummy/receive", "pod-a", "in_port(1),eth(src=0a:00:00:00:00:03,dst=0e:00:00:00:00:01),eth_type(0x1234)")
	if !strings.Contains(o.Appctl("dpctl/dump-flows"), "actions:") {
		t.Fatal("nothing is cached")
	}
	if err := ForgetMegaflows(t.Context(), o.Dir); err == nil {
		t.Error("there is no socket, and no error")
	}
	if err := os.Symlink("ovs-vswitchd.ctl", filepath.Join(o.Dir, "ovs-vswitchd."+strings.TrimSpace(string(pid))+".ctl")); err != nil {
		t.Fatal(err)
	}
	if err := ForgetMegaflows(t.Context(), o.Dir); err != nil {
		t.Fatal(err)
	}
	if got := o.Appctl("dpctl/dump-flows"); strings.Contains(got, "actions:") {
		t.Errorf("still cached: %s", got)
	}
	if err := ForgetMegaflows(t.Context(), t.TempDir()); err == nil {
		t.Error("there is no ovs-vswitchd, and no error")
	}
}
