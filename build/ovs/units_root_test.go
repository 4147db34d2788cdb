package ovs

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/onetime"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

//go:embed testdata/debian-units.sh
var debianUnits []byte

// enabled are Debian units that a node may have: all that are ordered relative to the network.
var enabled = []string{"openvswitch-switch.service", "networking.service", "systemd-networkd.service",
	"NetworkManager.service", "nftables.service"}

// node returns a directory with the units of a node that runs a release of Debian, and Fairlead's.
func node(t *testing.T, suite string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	get := func(ctx context.Context, dir string, _ io.Writer) error {
		out, err := exec.CommandContext(ctx, "testdata/debian-units.sh", suite, dir).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	units, err := onetime.Get(ctx, "units-"+suite, debianUnits, os.Stderr, get)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	lib, etc := filepath.Join(root, "usr/lib/systemd/system"), filepath.Join(root, "etc/systemd/system")
	if err := os.CopyFS(lib, os.DirFS(units)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Glob("*.service")
	if err != nil || len(ours) == 0 {
		t.Fatal("no units of ours", err)
	}
	for _, unit := range ours {
		text, err := os.ReadFile(unit)
		if err == nil {
			err = os.WriteFile(filepath.Join(etc, unit), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	enable := exec.Command("systemctl", slices.Concat([]string{"--root=" + root, "enable"}, enabled, ours)...)
	enable.Env = append(os.Environ(), "SYSTEMCTL_SKIP_SYSV=1")
	if out, err := enable.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}

// complaints returns systemd's complaints about the order of a node's units, and about Fairlead's units.
func complaints(root string) string {
	// It also fails for missing programs of other units.
	verify := exec.Command("systemd-analyze", "verify", "--man=no", "--generators=no", "--root="+root, "multi-user.target")
	out, _ := verify.CombinedOutput()
	var said []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "cycl") || strings.Contains(line, "fairlead") && !strings.Contains(line, "is not executable") {
			said = append(said, line)
		}
	}
	return strings.Join(said, "")
}

// A booting node starts all of its units: systemd breaks an ordering cycle by dropping any one of the units in it.
func TestRootBootOrder(t *testing.T) {
	ovstest.UserspaceOnly(t, "units of systemd")
	nstest.Need(t)
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Run(suite, func(t *testing.T) {
			root := node(t, suite)
			if said := complaints(root); said != "" {
				t.Errorf("systemd says\n%s", said)
			}
			// On Debian, ovsdb-server starts after this target.
			extra := filepath.Join(root, "etc/systemd/system/fairlead-uplink-boot.service.d")
			if err := os.MkdirAll(extra, 0o755); err != nil {
				t.Fatal(err)
			}
			circle := []byte("[Unit]\nBefore=network-pre.target\nWants=network-pre.target\n")
			if err := os.WriteFile(filepath.Join(extra, "x.conf"), circle, 0o644); err != nil {
				t.Fatal(err)
			}
			if said := complaints(root); !strings.Contains(said, "cycle") {
				t.Errorf("this test finds no cycle where there is one; systemd says %q", said)
			}
		})
	}
}

// A unit that remains active is not started again with ovs-vswitchd.
func TestBootUnitRunsAtEachStart(t *testing.T) {
	if unit, err := os.ReadFile("fairlead-uplink-boot.service"); err != nil || strings.Contains(string(unit), "RemainAfterExit") {
		t.Errorf("it remains active: %v\n%s", err, unit)
	}
}
