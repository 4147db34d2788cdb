package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// programs are those that a lab starts, and the Debian packages that contain them.
var programs = []struct{ name, debian string }{
	{"ovsdb-server", "openvswitch-switch"},
	{"ovsdb-tool", "openvswitch-switch"},
	{"ovs-vswitchd", "openvswitch-switch"},
	{"ovs-vsctl", "openvswitch-switch"},
	{"iptables", "iptables"},
	{"ip6tables", "iptables"},
	{"nft", "nftables"},
}

// preflight fails on a machine that cannot run a lab, with the remedy.
func preflight(o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("a lab creates network namespaces, which needs root: run it with sudo")
	}
	if err := haveBinaries(o); err != nil {
		return err
	}
	var missing, packages []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.name); err != nil {
			missing, packages = append(missing, p.name), append(packages, p.debian)
		}
	}
	if len(missing) > 0 {
		slices.Sort(packages)
		return fmt.Errorf("missing here: %s. On Debian: apt-get install %s (and is /usr/sbin in the PATH?)",
			strings.Join(missing, ", "), strings.Join(slices.Compact(packages), " "))
	}
	if _, err := os.Stat("/dev/net/tun"); o.Datapath == vswitch.Netdev && err != nil {
		return fmt.Errorf("the userspace datapath needs /dev/net/tun: %w (try: modprobe tun)", err)
	}
	if o.Datapath == vswitch.System {
		return vswitch.KernelDatapath()
	}
	return nil
}

// haveBinaries checks for our own programs.
func haveBinaries(o Options) error {
	names := []string{"lab"}
	if !o.NoAgent {
		names = append(names, "fairlead-agent", "fairlead")
	}
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(o.BinDir, name)); err != nil {
			return fmt.Errorf("no program %s in %s: build it (make build), or name the directory with --bin-dir", name, o.BinDir)
		}
	}
	return nil
}
