// Package ovsrelease runs tests and labs on another release of Open vSwitch than the one that is installed.
//
// Such a release is Debian's, unpacked beside the installed one. Its programs come first in PATH, its schema is in
// OVS_PKGDATADIR, and FAIRLEAD_TEST_OVS has its name: whatever starts an Open vSwitch there verifies that it is of this
// release.
package ovsrelease

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/test/onetime"
)

// variable is the environment variable with the required release: two numbers, such as 3.5.
const variable = "FAIRLEAD_TEST_OVS"

//go:embed debian.sh
var debian string

// suites maps each release to the Debian suite that has it.
func suites() map[string]string { return map[string]string{"3.5": "trixie"} }

// Releases are the releases that Get can download.
func Releases() []string { return slices.Sorted(maps.Keys(suites())) }

// Get returns the directory of a release. It is downloaded once per machine.
func Get(ctx context.Context, release string, progress io.Writer) (string, error) {
	suite := suites()[release]
	if suite == "" {
		return "", fmt.Errorf("no Open vSwitch %q: there is %s", release, strings.Join(Releases(), ", "))
	}
	unpack := func(ctx context.Context, dir string, _ io.Writer) error {
		cmd := exec.CommandContext(ctx, "bash", "-s", suite, dir)
		cmd.Stdin = strings.NewReader(debian)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	return onetime.Get(ctx, "ovs-"+release, []byte(debian), progress, unpack)
}

// Environ is the environment for the release in dir, as returned by Get.
func Environ(release, dir string) map[string]string {
	path := filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")
	return map[string]string{"PATH": path, "OVS_PKGDATADIR": dir, variable: release}
}

// Wanted is the required release; empty if any is accepted.
func Wanted() string { return os.Getenv(variable) }

// Verify takes a daemon's answer to "ovs-appctl version", and returns an error if that is not the required release.
func Verify(version string) error {
	want := Wanted()
	if want != "" && !strings.Contains(version, "(Open vSwitch) "+want+".") {
		return fmt.Errorf("%s is %s, and %q runs", variable, want, strings.TrimSpace(version))
	}
	return nil
}

// Schema is the path of the schema of Open vSwitch's database.
func Schema() (string, error) {
	for _, dir := range []string{os.Getenv("OVS_PKGDATADIR"), "/usr/share/openvswitch", "/usr/local/share/openvswitch"} {
		file := filepath.Join(dir, "vswitch.ovsschema")
		if _, err := os.Stat(file); dir != "" && err == nil {
			return file, nil
		}
	}
	return "", errors.New("vswitch.ovsschema not found: install Open vSwitch, or set OVS_PKGDATADIR")
}
