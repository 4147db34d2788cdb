package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where ip-netns(8) looks for network namespaces.
const netnsDir = "/run/netns"

// EnsureNetns returns the path of the network namespace of that name, as ip-netns(8) has it, and creates it if there is
// none. It outlives the process as long as its mount does: in a container, if the mount of /run/netns is propagated to
// the host.
func EnsureNetns(name string) (path string, err error) {
	path = filepath.Join(netnsDir, name)
	switch err := ns.IsNSorErr(path); {
	case err == nil:
		return path, nil
	case errors.As(err, &ns.NSPathNotExistErr{}):
	case errors.As(err, &ns.NSPathNotNSErr{}): // the mount ended with its container, and left the file
		if err := os.Remove(path); err != nil {
			return "", fmt.Errorf("creating the network namespace %s: %w", name, err)
		}
	default:
		return "", fmt.Errorf("looking for the network namespace %s: %w", name, err)
	}
	err = OnThread(func() error { // which is in the new namespace
		handle, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return handle.Close()
	})
	if err != nil {
		return "", fmt.Errorf("creating the network namespace %s: %w", name, err)
	}
	return path, nil
}

// RemoveNetns removes it, and what is in it once no process uses it, and reports whether there was one. A dry run only
// reports.
func RemoveNetns(name string, dryRun bool) (removed bool, err error) {
	path := filepath.Join(netnsDir, name)
	if dryRun {
		_, err = os.Lstat(path)
	} else if err = netns.DeleteNamed(name); errors.Is(err, unix.EINVAL) { // a file without a mount
		err = os.Remove(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("removing the network namespace %s: %w", name, err)
	}
	return true, nil
}
