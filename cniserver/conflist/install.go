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

// DefaultKept is where a node keeps what Plugins has replaced, and notes what it has installed.
const DefaultKept = "/var/lib/fairlead/cni"

// Plugins are the CNI plugins in a directory of the container runtime's. Of what it replaces there a copy is kept,
// which Uninstall puts back.
type Plugins struct {
	// BinDir is where the runtime looks for plugins, Kept where the copies are.
	BinDir, Kept string
}

// InstallShim copies Fairlead's plugin to BinDir under the two names by which
// network configurations call it, where it is not there already, and reports
// whether it changed anything. A plugin of another make with the name antrea is
// replaced: that is how Fairlead takes a network of Antrea over.
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
// each where there is none that works and speaks as new a version of the CNI specification. It returns what it did, in
// words.
func (p Plugins) InstallChained(ctx context.Context, fromDir string) (did []string, err error) {
	for _, name := range []string{"portmap", "bandwidth"} {
		ours, err := versionsOf(ctx, name, []string{fromDir})
		if err != nil {
			return did, fmt.Errorf("installing the CNI plugin %s: %w", name, err)
		}
		newest := ours[len(ours)-1]
		// One that does not answer here may not do so on the node either: it is one more reason to replace it.
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

// install makes the plugin what from is. Before, it keeps what is there, if that is not from us, and notes what
// comes: who finds that note and another file there knows that the file is somebody else's.
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
	if err := p.note(name, path, from); err != nil {
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

// readOnly explains an error that nodes with immutable systems give.
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
