package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// suite has the newest Linux that is signed with a key of Debian 12's keyring. Debian updates it every few weeks.
const suite = "trixie-backports"

// keyring verifies Debian's signed package lists, which have the checksums of the packages.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// newest downloads Debian's newest Linux into dir and returns the path of its source. The system's apt sources and
// lists are not touched: these are in dir. The mirror and other settings, such as a proxy, are the system's.
func newest(ctx context.Context, dir string, progress io.Writer) (string, error) {
	mirror, err := mirror(ctx)
	if err != nil {
		return "", err
	}
	own := []string{"-q", "-o", "Dir::Etc::sourcelist=" + dir + "/sources.list",
		"-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::Etc::preferences=/dev/null",
		"-o", "Dir::Etc::preferencesparts=/dev/null", "-o", "Dir::State::status=/dev/null",
		"-o", "Dir::State::lists=" + dir + "/lists", "-o", "Dir::Cache=" + dir + "/cache",
		// The user _apt may not enter dir.
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none"}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	list := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror, suite)
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(list), 0o644); err != nil {
		return "", err
	}
	apt := func(tool string, args ...string) (string, error) {
		var out bytes.Buffer
		err := run(ctx, command{dir: dir, out: &out, argv: append(append([]string{tool}, own...), args...)})
		return out.String(), err
	}
	if _, err := apt("apt-get", "update"); err != nil {
		return "", err
	}
	depends, err := apt("apt-cache", "depends", "linux-source")
	if err != nil {
		return "", err
	}
	name := field(depends, "  Depends: ")
	if name == "" {
		return "", fmt.Errorf("%s of %s has no linux-source", suite, mirror)
	}
	fmt.Fprintf(progress, "uml-kernel: getting %s from %s of %s\n", name, suite, mirror)
	if _, err := apt("apt-get", "download", name); err != nil {
		return "", err
	}
	packages, err := filepath.Glob(filepath.Join(dir, name+"_*.deb"))
	if err != nil || len(packages) != 1 {
		return "", fmt.Errorf("apt-get download %s left %q", name, packages)
	}
	if err := run(ctx, command{argv: []string{"dpkg-deb", "-x", packages[0], dir}}); err != nil {
		return "", err
	}
	return filepath.Join(dir, "usr/src", name+".tar.xz"), nil
}

// mirror returns the URL of the Debian mirror that the system's apt uses.
func mirror(ctx context.Context) (string, error) {
	ask := func() (string, error) {
		var out bytes.Buffer
		err := run(ctx, command{out: &out, argv: []string{"apt-get", "indextargets", "--format",
			"$(ORIGIN)/$(LABEL)/$(COMPONENT) $(REPO_URI)", "Created-By: Packages"}})
		return field(out.String(), "Debian/Debian/main "), err
	}
	found, err := ask()
	if found == "" && err == nil && os.Geteuid() == 0 {
		// Container images have no package lists.
		if err = run(ctx, command{argv: []string{"apt-get", "update", "-q"}}); err == nil {
			found, err = ask()
		}
	}
	if found == "" && err == nil {
		err = errors.New("apt has no Debian mirror: run apt-get update as root")
	}
	return found, err
}

// field is the rest of the first line that begins with name.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
