package lab

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

func TestRootPreflight(t *testing.T) {
	needRoot(t)
	good := Options{BinDir: binDir, Datapath: vswitch.Netdev}
	if err := preflight(good); err != nil {
		t.Errorf("on the machine of the tests: %v", err)
	}
	err := preflight(Options{BinDir: t.TempDir(), Datapath: vswitch.Netdev})
	if err == nil || !strings.Contains(err.Error(), "no program lab in ") {
		t.Errorf("without our programs: %v", err)
	}
	system := good
	system.Datapath = vswitch.System
	switch err := preflight(system); {
	case exists("/sys/module/openvswitch"):
		if err != nil {
			t.Errorf("the kernel has openvswitch: %v", err)
		}
	case err == nil || !strings.Contains(err.Error(), "this kernel has no openvswitch module") ||
		!strings.Contains(err.Error(), "--datapath netdev"):
		t.Errorf("the kernel has no openvswitch: %v", err)
	}

	t.Setenv("PATH", t.TempDir())
	err = preflight(good)
	for _, want := range []string{"ovs-vswitchd", "nft", "apt-get install iptables nftables openvswitch-switch"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without programs in the PATH: %v, want %q", err, want)
		}
	}
}

// A lab that requires an Open vSwitch release that is not installed fails, and does not run on another.
func TestRootAnotherRelease(t *testing.T) {
	needRoot(t)
	ovstest.UserspaceOnly(t, "programs on the host")
	t.Setenv("FAIRLEAD_TEST_OVS", "1.0")
	dir := filepath.Join(t.TempDir(), "lab")
	_, err := Up(t.Context(), Options{Dir: dir, BinDir: binDir, Datapath: vswitch.Netdev, Nodes: 1, NoAgent: true})
	if err == nil || !strings.Contains(err.Error(), `FAIRLEAD_TEST_OVS is 1.0, and "ovsdb-server (Open vSwitch) `) {
		t.Errorf("error %v", err)
	}
	if exists(dir) {
		t.Errorf("%s is still there", dir)
	}
}
