package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// Unreadable is the ContainerID of a lease whose file has no valid owner. No container has this ID (CNI spec, section
// 2, CNI_CONTAINERID).
const Unreadable = "(unreadable)"

// Lease is one address in use.
type Lease struct {
	Addr netip.Addr
	// ContainerID and IfName are CNI_CONTAINERID and CNI_IFNAME of the attachment. For an unreadable lease they are
	// Unreadable and the address, so that it can be released like any other.
	ContainerID string
	IfName      string
}

// owner identifies an attachment.
type owner struct{ containerID, ifName string }

func (l Lease) owner() owner { return owner{l.ContainerID, l.IfName} }

func (o owner) String() string {
	if o.containerID == Unreadable {
		return "an unreadable lease"
	}
	return fmt.Sprintf("interface %s of container %s", o.ifName, o.containerID)
}

// check rejects what the format on disk cannot represent.
func (o owner) check() error {
	for _, s := range []string{o.containerID, o.ifName} {
		if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("container ID %q and interface %q: neither may be empty or contain spaces", o.containerID, o.ifName)
		}
	}
	if n := len(o.containerID) + len(o.ifName); n > maxLease-len(disk.LineBreak) {
		return fmt.Errorf("container ID and interface have %d bytes: too long for a lease", n)
	}
	return nil
}

// load returns all leases, in order of their addresses. It reads them only if the directory has changed since it was
// read, or changed here. The caller holds the lock.
func (s *Store) load() ([]Lease, error) {
	if is := stampOf(s.dir); is == (stamp{}) || is != s.stamp {
		whole, err := s.readAll()
		if err != nil {
			return nil, err
		}
		if s.stamp = is; !whole {
			s.stamp = stamp{}
		}
	}
	leases := slices.Collect(maps.Values(s.leases))
	slices.SortFunc(leases, func(a, b Lease) int { return a.Addr.Compare(b.Addr) })
	return leases, nil
}

// stamp shows whether a directory has changed. The zero value: that is unknown.
type stamp struct {
	inode           uint64
	written, change syscall.Timespec
}

func stampOf(dir string) stamp {
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil {
		return stamp{}
	}
	return stamp{st.Ino, st.Mtim, st.Ctim}
}

// readAll reads all leases, and removes empty files. whole is false if a file could not be read: the next time it may.
func (s *Store) readAll() (whole bool, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return false, fmt.Errorf("reading the leases: %w", err)
	}
	whole, s.leases = true, make(map[netip.Addr]Lease, len(entries))
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil || addr.String() != e.Name() || addr.Zone() != "" {
			continue // the lock, the boot ID, the last address
		}
		content, err := readSmall(s.path(addr))
		if err == nil && content == "" {
			if err := s.remove(addr); err != nil {
				return false, err
			}
			continue
		}
		whole = whole && err == nil
		s.leases[addr] = parseLease(addr, content)
	}
	return whole, nil
}

// maxLease is more than the longest file that check allows.
const maxLease = 512

// readSmall returns the first maxLease bytes of a file. It is called for every lease of the node, and os.ReadFile takes
// twice as long.
func readSmall(path string) (string, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer syscall.Close(fd)
	var buf [maxLease]byte
	n, err := syscall.Read(fd, buf[:])
	return string(buf[:max(n, 0)]), err
}

func parseLease(addr netip.Addr, content string) Lease {
	containerID, ifName, _ := strings.Cut(strings.TrimSpace(content), disk.LineBreak)
	if (owner{containerID, ifName}).check() != nil || containerID == Unreadable {
		containerID, ifName = Unreadable, addr.String()
	}
	return Lease{addr, containerID, ifName}
}

func (s *Store) path(addr netip.Addr) string { return filepath.Join(s.dir, addr.String()) }

// remove releases addr. It succeeds if addr is free already.
func (s *Store) remove(addr netip.Addr) error {
	if err := os.Remove(s.path(addr)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the lease of %s: %w", addr, err)
	}
	delete(s.leases, addr)
	return nil
}
