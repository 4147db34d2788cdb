package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// placeSource is the mount source of a place's tmpfs. RemovePlace changes no directory without it.
const placeSource = "fairlead-lab"

// killTimeout is the time limit for processes to exit after SIGKILL.
const killTimeout = 20 * time.Second

// MakePlace mounts a tmpfs at dir, an empty directory, for everything that belongs to a lab. Its hosts are in the
// subdirectory hosts.
func MakePlace(dir string) error {
	if err := unix.Mount(placeSource, dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w (in a container? It must be a privileged one)", err)
	}
	// A mount namespace can only be pinned where mounts do not propagate.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the tmpfs private: %w", err)
	}
	return os.Mkdir(filepath.Join(dir, "hosts"), 0o755)
}

// IsPlace reports whether a lab's file system is mounted at dir, a path from Absolute.
func IsPlace(dir string) (bool, error) {
	mounts, err := Mounts()
	if err != nil {
		return false, err
	}
	for _, m := range mounts {
		if m.Target == dir && m.Type == "tmpfs" && m.Source == placeSource {
			return true, nil
		}
	}
	return false, nil
}

// All are the hosts of the place whose creation was started, complete or not.
func All(place string) ([]Host, error) {
	dir := filepath.Join(place, "hosts")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the hosts: %w", err)
	}
	var hosts []Host
	for _, e := range entries {
		hosts = append(hosts, At(dir, e.Name()))
	}
	return hosts, nil
}

// RemovePlace kills all processes of the hosts of a place and removes namespaces, mounts and files. None of them need
// be complete, and it does nothing if there is no place. A non-empty directory that is not a place is not changed.
func RemovePlace(ctx context.Context, dir string) error {
	mounted, err := IsPlace(dir)
	if err != nil {
		return err
	}
	if mounted {
		if err := removeHosts(ctx, dir); err != nil {
			return err
		}
	}
	for mounted {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", dir, err)
		}
		if mounted, err = IsPlace(dir); err != nil {
			return err
		}
	}
	_ = os.Remove(dir) // if it is empty
	return nil
}

func removeHosts(ctx context.Context, place string) error {
	hosts, err := All(place)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := Kill(ctx, hosts...); err != nil {
		return err
	}
	for _, h := range hosts {
		if err := h.Destroy(); err != nil {
			return err
		}
	}
	return nil
}

// Absolute is the canonical path of a place's directory, by which its mount is found. dir need not exist.
func Absolute(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
		dir = filepath.Join(parent, filepath.Base(dir))
	}
	return dir, nil
}
