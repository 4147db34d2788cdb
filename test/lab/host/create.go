package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// Bind mounts the directory Source of the machine at Target on the host.
type Bind struct {
	Source, Target string
	ReadOnly       bool
}

// overlaid are directories in which a host may write without changing the machine's.
var overlaid = [...]string{"/etc", "/opt", "/var"}

// private are directories of which every host has its own, initially empty. On the machine they are at Host.Private.
// /run comes last (ownRun): it hides the lab's directory, where the sources of all binds are.
var private = [...]string{
	"/etc/cni", "/etc/fairlead", "/etc/openvswitch", "/opt/cni",
	"/var/lib/cni", "/var/lib/fairlead", "/var/lib/openvswitch", "/var/log/openvswitch",
	"/run",
}

// Private returns the path on the machine of a file in one of the host's private directories, such as
// /run/openvswitch/db.sock.
func (h Host) Private(path string) string { return filepath.Join(h.Dir, "root", path) }

// bootID is the source of the host's /proc/sys/kernel/random/boot_id, random(4).
func (h Host) bootID() string { return filepath.Join(h.Dir, "boot-id") }

// Create creates the host called name below hostsDir: new namespaces, loopback up, host name and boot ID set, own
// directories, and binds on top. For a host that was shut down it is the next boot. hostsDir must be on a mount that is
// not shared, otherwise the mount namespace cannot be pinned.
func Create(hostsDir, name string, binds ...Bind) (Host, error) {
	h := At(hostsDir, name)
	for _, dir := range private {
		if err := os.MkdirAll(h.Private(dir), 0o755); err != nil {
			return h, err
		}
	}
	if err := h.makePins(); err != nil {
		return h, fmt.Errorf("making host %s: %w", name, err)
	}
	if err := os.WriteFile(h.bootID(), []byte(string(uuid.NewUUID())+"\n"), 0o444); err != nil {
		return h, fmt.Errorf("making host %s: %w", name, err)
	}
	made, tid, release := make(chan error), make(chan int, 1), make(chan struct{})
	go func() {
		made <- onThrowaway(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
				return fmt.Errorf("new namespaces: %w", err)
			}
			if err := h.setupMounts(binds); err != nil {
				return err
			}
			tid <- unix.Gettid()
			<-release
			return nil
		})
	}()
	var err error
	select {
	case err = <-made:
	case t := <-tid:
		err = h.bindPins(t)
		close(release)
		err = errors.Join(err, <-made)
	}
	if err != nil {
		return h, fmt.Errorf("making host %s: %w", name, err)
	}
	return h, nil
}

func (h Host) makePins() error {
	if err := os.MkdirAll(filepath.Join(h.Dir, "ns"), 0o755); err != nil {
		return err
	}
	for _, p := range pinned {
		if err := os.WriteFile(h.pin(p.file), nil, 0o444); err != nil {
			return err
		}
	}
	return nil
}

// bindPins pins the namespaces of thread tid. It runs outside of them: a mount namespace can only be pinned in an older
// one.
func (h Host) bindPins(tid int) error {
	for _, p := range pinned {
		source := fmt.Sprintf("/proc/%d/task/%d/ns/%s", os.Getpid(), tid, p.file)
		if err := unix.Mount(source, h.pin(p.file), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pinning the %s namespace: %w", p.file, err)
		}
	}
	return nil
}

// setupMounts sets up the new namespaces of the calling thread.
func (h Host) setupMounts(binds []Bind) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /sys: %w", err)
	}
	for _, dir := range overlaid {
		if err := h.overlay(dir); err != nil {
			return err
		}
	}
	if err := unix.Mount(h.bootID(), "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("giving the host its own boot ID: %w", err)
	}
	for _, dir := range private {
		if dir == "/run" {
			continue
		}
		if err := bind(Bind{Source: h.Private(dir), Target: dir}); err != nil {
			return err
		}
	}
	for _, b := range binds {
		if err := bind(b); err != nil {
			return err
		}
	}
	if err := h.ownRun(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(h.Name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	return loopbackUp()
}

func (h Host) overlay(dir string) error {
	upper, work := filepath.Join(h.Dir, "overlay", dir, "upper"), filepath.Join(h.Dir, "overlay", dir, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	err := unix.Mount("fairlead-lab", dir, "overlay", 0, options)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("giving the host its own %s: this kernel has no overlay file system (try: modprobe overlay)", dir)
	}
	if err != nil {
		return fmt.Errorf("giving the host its own %s: overlay mount: %w", dir, err)
	}
	return nil
}

// ownRun mounts the host's own /run. Mounts below the machine's /run are unmounted: although hidden, they would keep
// namespaces alive that others have released, and kubelet searches all mounts for the file system of its directory.
func (h Host) ownRun() error {
	const run = "/run"
	own, err := unix.OpenTree(unix.AT_FDCWD, h.Private(run), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("giving the host its own %s: open_tree: %w", run, err)
	}
	defer unix.Close(own)
	mounts, err := Mounts()
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if !strings.HasPrefix(m.Target, run+"/") {
			continue
		}
		err := unix.Unmount(m.Target, unix.MNT_DETACH)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // it may be unmounted already
			return fmt.Errorf("unmounting the machine's %s: %w", m.Target, err)
		}
	}
	if err := unix.MoveMount(own, "", unix.AT_FDCWD, run, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("giving the host its own %s: move_mount: %w", run, err)
	}
	return nil
}

func bind(b Bind) error {
	if err := os.MkdirAll(b.Target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(b.Source, b.Target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding %s at %s: %w", b.Source, b.Target, err)
	}
	if !b.ReadOnly {
		return nil
	}
	if err := unix.Mount("", b.Target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", b.Target, err)
	}
	return nil
}

// loopbackUp sets lo up in the network namespace of the calling thread.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	return nil
}
