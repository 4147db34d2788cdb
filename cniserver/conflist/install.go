package conflist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// DefaultKept is where a node keeps what Plugins has replaced, and records what it has installed.
const DefaultKept = "/var/lib/fairlead/cni"

// Plugins are the CNI plugins in a directory of the container runtime. A copy of each file that it replaces there is
// kept, which Uninstall restores.
type Plugins struct {
	// BinDir is where the runtime looks for plugins, Kept has the copies.
	BinDir, Kept string
}

// InstallShim copies Fairlead's plugin to BinDir under the two names by which network configurations call it, if it is
// not there already, and reports whether it changed anything. Another plugin with the name antrea is replaced: that is
// how Fairlead takes over a network of Antrea.
func (p Plugins) InstallShim(fromBinary string) (changed bool, err error) {
	from, err := readProgram(fromBinary)
	if err != nil {
		return false, fmt.Errorf("installing the CNI plugin: %w", err)
	}
	for _, name := range []string{"fairlead", "antrea"} {
		did, err := p.install(name, from)
		if err != nil {
			return changed, fmt.Errorf("installing the CNI plugin: %w", err)
		}
		changed = changed || did
	}
	return changed, nil
}

// InstallChained copies the plugins that Fairlead's network chains, portmap and bandwidth, from a directory to BinDir,
// each unless there is a working one that supports as new a version of the CNI specification. It returns what it did,
// as messages.
func (p Plugins) InstallChained(ctx context.Context, fromDir string) (did []string, err error) {
	for _, name := range []string{"portmap", "bandwidth"} {
		ours, err := versionsOf(ctx, name, []string{fromDir})
		if err != nil {
			return did, fmt.Errorf("installing the CNI plugin %s: %w", name, err)
		}
		newest := ours[len(ours)-1]
		// One that fails here may also fail on the node: one more reason to replace it.
		if theirs, err := versionsOf(ctx, name, []string{p.BinDir}); err == nil && slices.Contains(theirs, newest) {
			continue
		}
		from, err := readProgram(filepath.Join(fromDir, name))
		if err != nil {
			return did, fmt.Errorf("installing the CNI plugin %s: %w", name, err)
		}
		changed, err := p.install(name, from)
		if err != nil {
			return did, fmt.Errorf("installing the CNI plugin %s: %w", name, err)
		}
		if changed {
			did = append(did, fmt.Sprintf("%s, which supports CNI %s", name, newest))
		}
	}
	return did, nil
}

// install makes the plugin a copy of from. First it keeps the existing file, unless Fairlead installed it, and records
// the new one's digest: a file that does not match the record was not installed by Fairlead.
func (p Plugins) install(name string, from program) (changed bool, err error) {
	path := filepath.Join(p.BinDir, name)
	if err := os.MkdirAll(p.BinDir, 0o755); err != nil {
		return false, readOnly(err)
	}
	if err := os.MkdirAll(p.Kept, 0o755); err != nil {
		return false, err
	}
	ours, err := p.installed(name)
	if err != nil {
		return false, err
	}
	if ours && isInstalled(path, from) {
		return false, nil
	}
	if !ours {
		if err := p.keep(name, from); err != nil {
			return false, fmt.Errorf("saving a copy of %s: %w", path, err)
		}
	}
	if err := p.recordInstall(name, path, from); err != nil {
		return false, err
	}
	if isInstalled(path, from) {
		return false, nil
	}
	content, err := os.Open(from.path)
	if err != nil {
		return false, err
	}
	defer content.Close()
	return true, readOnly(atomicfile.Copy(path, content, 0o755))
}

// readOnly explains an error that occurs on nodes with an immutable file system.
func readOnly(err error) error {
	if errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w. This node has its CNI plugins in another directory: see the container runtime's configuration "+
			"(containerd: bin_dir; CRI-O: plugin_dirs)", err)
	}
	return err
}

func isInstalled(path string, from program) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
		return false
	}
	there, err := readProgram(path)
	return err == nil && there.digest == from.digest
}
