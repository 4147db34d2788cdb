package ovsrelease

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each release has all programs that tests run, and each is of this release.
func TestRootReleases(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root where apt has no lists of packages")
	}
	programs := strings.Fields("ovs-vswitchd ovsdb-server ovs-vsctl ovs-ofctl ovs-appctl ovs-dpctl ovsdb-tool ovsdb-client")
	for _, release := range Releases() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		dir, err := Get(ctx, release, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range Environ(release, dir) {
			t.Setenv(name, value)
		}
		for _, program := range programs {
			out, err := exec.Command(program, "--version").CombinedOutput()
			if err == nil {
				err = Verify(string(out))
			}
			if err != nil {
				t.Errorf("%s: %v: %s", program, err, out)
			}
		}
		if file, err := Schema(); err != nil || file != filepath.Join(dir, "vswitch.ovsschema") {
			t.Errorf("the schema is %s, %v", file, err)
		}
	}
}
