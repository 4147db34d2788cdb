package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Destroy releases the host's namespaces and deletes its directory. Once its processes are gone (Kill), that removes
// everything inside: interfaces, mounts, routes, the namespaces of its pods. Deleting the pins also removes their
// copies among the mounts of hosts that were created later. What no longer exists is not an error.
func (h Host) Destroy() error {
	if err := h.unmount(); err != nil {
		return err
	}
	return os.RemoveAll(h.Dir)
}

// ShutDown is Destroy of everything except a machine's disks: /run is empty afterwards. Create is the next boot.
func (h Host) ShutDown() error {
	if err := h.unmount(); err != nil {
		return err
	}
	return os.RemoveAll(h.Private("/run"))
}

func (h Host) unmount() error {
	for _, p := range slices.Concat(ownProcesses[:], pinned[:]) {
		err := unix.Unmount(h.pin(p.file), unix.MNT_DETACH)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("releasing the %s namespace of host %s: %w", p.file, h.Name, err)
		}
		if err := os.Remove(h.pin(p.file)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), cgroupTimeout)
	defer cancel()
	return h.removeCgroups(ctx)
}

// cgroupTimeout is the time limit for cgroups to become empty after their processes have exited.
const cgroupTimeout = 10 * time.Second

// MakeNetns creates an empty network namespace with loopback up, and pins it at the path file on the host. The
// namespace belongs to the host: it ends with it.
func (h Host) MakeNetns(file string) error {
	return h.Do(func() error {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
		if err != nil {
			return fmt.Errorf("making network namespace %s: %w", file, err)
		}
		f.Close()
		err = newNetns(file)
		if err != nil {
			err = errors.Join(fmt.Errorf("making network namespace %s: %w", file, err), os.Remove(file))
		}
		return err
	})
}

func newNetns(file string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	return unix.Mount("/proc/thread-self/ns/net", file, "", unix.MS_BIND, "")
}

// HasNetns reports whether the path file on the host is a network namespace.
func (h Host) HasNetns(file string) bool {
	err := h.Do(func() error {
		var st unix.Statfs_t
		if err := unix.Statfs(file, &st); err != nil {
			return err
		}
		if st.Type != unix.NSFS_MAGIC {
			return errors.New("a plain file")
		}
		return nil
	})
	return err == nil
}

// RemoveNetns releases the network namespace at the path file on the host. A missing one is not an error.
func (h Host) RemoveNetns(file string) error {
	return h.Do(func() error {
		for {
			err := unix.Unmount(file, unix.MNT_DETACH)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
				break
			}
			if err != nil {
				return fmt.Errorf("releasing network namespace %s: %w", file, err)
			}
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing %s: %w", file, err)
		}
		return nil
	})
}
