package uml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mount is one call of mount(2).
type mount struct {
	source, target, kind string
	flags                uintptr
	options              string
}

func (m mount) do() error {
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", m.source, m.target, err)
	}
	return nil
}

// setupRootfs turns the bare host file system into the environment that a command expects.
func setupRootfs(dir string, writable []string) error {
	if err := newRoot(filepath.Join(dir, "root"), append(writable, dir)); err != nil {
		return err
	}
	own := []mount{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"dev", "/dev", "devtmpfs", 0, ""},
		{"devpts", "/dev/pts", "devpts", 0, "gid=5,mode=620,ptmxmode=666"},
		{"shm", "/dev/shm", "tmpfs", 0, "mode=1777"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
	}
	for _, m := range own {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := m.do(); err != nil {
			return err
		}
	}
	for name, fd := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+fd, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for _, d := range []string{"/run/lock", "/run/netns"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	return network()
}

// newRoot makes root, an empty directory of the host, the guest's /: an overlay of the host's files.
func newRoot(root string, writable []string) error {
	if err := (mount{"tmpfs", root, "tmpfs", 0, "size=90%,mode=755"}).do(); err != nil {
		return err
	}
	over := filepath.Join(root, "over")
	for _, d := range []string{"upper", "work", "over"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", root, root)
	if err := (mount{"overlay", over, "overlay", 0, layers}).do(); err != nil {
		return err
	}
	if err := (mount{"run", over + "/run", "tmpfs", 0, "mode=755"}).do(); err != nil {
		return err
	}
	for _, d := range writable {
		if err := os.MkdirAll(over+d, 0o755); err != nil {
			return err
		}
		if err := (mount{d, over + d, "", unix.MS_BIND, ""}).do(); err != nil {
			return err
		}
	}
	// The old root ends up on top of the new one, pivot_root(2). chroot(2) would do here, but would prevent user
	// namespaces.
	if err := os.Chdir(over); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	return os.Chdir("/")
}

func network() error {
	if err := unix.Sethostname([]byte("uml")); err != nil {
		return err
	}
	// The tunnel drivers are built in: without this each new namespace has tunl0, gre0, sit0 and more.
	if err := os.WriteFile("/proc/sys/net/core/fb_tunnels_only_for_init_net", []byte("1"), 0); err != nil {
		return err
	}
	// With one slow processor packets queue up while a program starts. The kernel's default queues are too short for
	// that.
	for parameter, value := range map[string]string{"netdev_max_backlog": "20000", "rmem_default": "4194304",
		"rmem_max": "4194304"} {
		if err := os.WriteFile("/proc/sys/net/core/"+parameter, []byte(value), 0); err != nil {
			return err
		}
	}
	limit := unix.Rlimit{Cur: 1 << 16, Max: 1 << 16}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
