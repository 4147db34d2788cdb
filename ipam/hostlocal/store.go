package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// DefaultDir is where the leases of a node are.
const DefaultDir = "/var/lib/fairlead/host-local"

// bootFile has the boot ID of the leases.
const bootFile = "boot-id"

// Store has the leases of one directory. Several processes may use one directory: a change by another one is noticed by
// the directory's times, one within a file only by Leases. Its methods may be called concurrently.
type Store struct {
	dir    string
	bootID string
	disk   *disk.Store
	mu     sync.Mutex // excludes goroutines; the file lock only other processes
	lock   *os.File
	// leases are those that the directory had when it had this stamp, which is zero if they must be read again.
	leases map[netip.Addr]Lease
	stamp  stamp
	// recreated: the directory was recreated, and has not been read since.
	recreated bool
	// unwritten is why the boot ID of the leases is not written yet.
	unwritten error
}

// Open opens the leases in dir, which it creates if needed. Leases of another boot than bootID
// (/proc/sys/kernel/random/boot_id) are removed.
func Open(dir, bootID string) (*Store, error) {
	if dir == "" || bootID == "" {
		return nil, fmt.Errorf("opening the leases: directory %q and boot ID %q must not be empty", dir, bootID)
	}
	d, err := disk.New("", dir)
	if err != nil {
		return nil, fmt.Errorf("opening the leases in %s: %w", dir, err)
	}
	// The same file, opened again: child processes inherit the library's descriptor, and one of them would keep the
	// lock of a killed agent.
	lock, err := openLock(dir)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, fmt.Errorf("opening the lock of the leases in %s: %w", dir, err)
	}
	s := &Store{dir: dir, bootID: bootID, disk: d, lock: lock}
	if err := s.locked(s.startBoot); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// Close closes the directory. The leases stay.
func (s *Store) Close() error { return s.lock.Close() }

// startBoot removes the leases of another boot. The removals are not synced: a power failure that undoes them is
// followed by another boot.
func (s *Store) startBoot() error {
	content, err := os.ReadFile(filepath.Join(s.dir, bootFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the boot ID of the leases: %w", err)
	}
	leases, err := s.load()
	if err != nil || strings.TrimSpace(string(content)) == s.bootID {
		return err
	}
	for _, l := range leases {
		if err := s.remove(l.Addr); err != nil {
			return err
		}
	}
	s.writeBoot()
	return nil
}

// writeBoot writes the boot ID of the leases. If the disk is too full for that, nothing is leased, but the rest works:
// bridged pods need no lease.
func (s *Store) writeBoot() {
	s.unwritten = nil
	if err := atomicfile.Write(filepath.Join(s.dir, bootFile), []byte(s.bootID+"\n"), 0o600); err != nil {
		s.unwritten = fmt.Errorf("recording the boot ID of the leases: %w", err)
	}
}

// locked runs f while no other goroutine and no other process uses the directory.
func (s *Store) locked(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	replaced, err := s.replaceLock()
	s.recreated = s.recreated || replaced
	if err == nil {
		err = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("locking the leases in %s: %w", s.dir, err)
	}
	defer func() { _ = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN) }()
	if s.recreated {
		if err := s.startBoot(); err != nil {
			return err
		}
		s.recreated = false
	}
	if s.unwritten != nil {
		s.writeBoot()
	}
	if err := f(); err != nil {
		s.stamp = stamp{} // it is unknown what was done
		return err
	}
	if s.stamp != (stamp{}) {
		s.stamp = stampOf(s.dir) // the same change was made in s.leases
	}
	return nil
}

// leasing is locked, for functions that lease addresses.
func (s *Store) leasing(f func() error) error {
	return s.locked(func() error {
		if s.unwritten != nil { // the next agent would consider the lease one of another boot
			return s.unwritten
		}
		return f()
	})
}

// replaceLock recreates the directory and the lock, and reports that, if they were removed externally: the open lock
// file then excludes no other process.
func (s *Store) replaceLock() (anew bool, err error) {
	if _, err := os.Stat(s.lock.Name()); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return false, err
	}
	lock, err := openLock(s.dir)
	if err != nil {
		return false, err
	}
	s.lock.Close()
	s.lock = lock
	return true, nil
}

func openLock(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|os.O_CREATE, 0o600)
}

// Allocate leases one address of each podCIDR to an attachment and returns them in the order of podCIDRs, each with the
// mask of its podCIDR. An address that the attachment already has in a podCIDR is returned again; its addresses
// elsewhere are left alone. After an error nothing new is leased. The network address, the first address after it (the
// gateway) and the IPv4 broadcast address are never allocated. The error is a *FullError if a podCIDR has no free
// address.
func (s *Store) Allocate(containerID, ifName string, podCIDRs []netip.Prefix) ([]netip.Prefix, error) {
	o := owner{containerID, ifName}
	if err := o.check(); err != nil {
		return nil, err
	}
	ranges, err := podCIDRsOf(podCIDRs)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Prefix
	err = s.leasing(func() error {
		before, err := s.load()
		if err != nil {
			return err
		}
		for _, r := range ranges {
			addr, err := s.allocateIn(r, o, before)
			if err != nil {
				return errors.Join(err, s.undo(o, before))
			}
			addrs = append(addrs, netip.PrefixFrom(addr, netip.Prefix(r).Bits()))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return addrs, nil
}

// allocateIn returns the address that o has in r, or a new one.
func (s *Store) allocateIn(r podCIDR, o owner, leases []Lease) (netip.Addr, error) {
	full := &FullError{PodCIDR: netip.Prefix(r), Total: r.size()}
	for _, l := range leases {
		if !r.usable(l.Addr) {
			continue
		}
		if l.owner() == o {
			return l.Addr, nil
		}
		full.Used++
	}
	if full.Used >= full.Total {
		return netip.Addr{}, full
	}
	set, err := r.rangeSet()
	if err != nil {
		return netip.Addr{}, err
	}
	// The last argument names the library's record of the last allocated address: one per family.
	got, err := allocator.NewIPAllocator(set, heldStore{s.disk, s.leases}, netip.Prefix(r).Addr().BitLen()).
		Get(o.containerID, o.ifName, nil)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("allocating from podCIDR %s: %w", r, err)
	}
	return addrOf(got.Address.IP), nil
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// heldStore is the library's store for one allocation within locked, by an owner that is known to have no address in
// the range.
type heldStore struct {
	*disk.Store
	leases map[netip.Addr]Lease
}

// Reserve implements the library's interface. Addresses that are leased are not tried.
func (h heldStore) Reserve(id, ifName string, ip net.IP, rangeID string) (bool, error) {
	addr := addrOf(ip)
	if _, there := h.leases[addr]; there {
		return false, nil
	}
	ok, err := h.Store.Reserve(id, ifName, ip, rangeID)
	if ok {
		h.leases[addr] = Lease{addr, id, ifName}
	}
	return ok, err
}

func (heldStore) Lock() error                     { return nil }
func (heldStore) Unlock() error                   { return nil }
func (heldStore) GetByID(string, string) []net.IP { return nil }

// undo removes the leases that o has got since before. It reads the directory, because the library may fail after it
// has written a lease.
func (s *Store) undo(o owner, before []Lease) error {
	s.stamp = stamp{}
	now, err := s.load()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range now {
		if l.owner() == o && !slices.Contains(before, l) {
			errs = append(errs, s.remove(l.Addr))
		}
	}
	return errors.Join(errs...)
}

// reserved names a record of the library that no allocation reads: Reserve does not change where the next allocation
// starts.
const reserved = "reserved"

// Reserve ensures that addr is leased to the given attachment, whatever the podCIDRs are. It replaces an unreadable
// lease. A lease of another attachment is an error that names the holder.
func (s *Store) Reserve(addr netip.Addr, containerID, ifName string) error {
	o := owner{containerID, ifName}
	if err := o.check(); err != nil {
		return err
	}
	if !addr.IsValid() || addr.Zone() != "" || addr.Is4In6() {
		return fmt.Errorf("reserving %s for %s: not an address that a pod can have", addr, o)
	}
	return s.leasing(func() error {
		leases, err := s.load()
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(leases, func(l Lease) bool { return l.Addr == addr }); i >= 0 {
			holder := leases[i].owner()
			if holder == o {
				return nil
			}
			if holder.containerID != Unreadable {
				return fmt.Errorf("reserving %s for %s: it is leased to %s", addr, o, holder)
			}
			if err := s.remove(addr); err != nil {
				return err
			}
		}
		ok, err := s.disk.Reserve(containerID, ifName, net.IP(addr.AsSlice()), reserved)
		if err == nil && !ok {
			err = fmt.Errorf("its file exists but is not a lease: remove %s", s.path(addr))
		}
		if err != nil {
			return fmt.Errorf("reserving %s for %s: %w", addr, o, err)
		}
		s.leases[addr] = Lease{addr, containerID, ifName}
		return nil
	})
}

// Release releases all addresses of an attachment. It succeeds if there are none.
func (s *Store) Release(containerID, ifName string) error {
	return s.locked(func() error {
		leases, err := s.load()
		if err != nil {
			return err
		}
		var errs []error
		for _, l := range leases {
			if l.owner() == (owner{containerID, ifName}) {
				errs = append(errs, s.remove(l.Addr))
			}
		}
		return errors.Join(errs...)
	})
}

// Leases reads all leases, and returns them in order of their addresses.
func (s *Store) Leases() ([]Lease, error) {
	var leases []Lease
	err := s.locked(func() (err error) {
		s.stamp = stamp{}
		leases, err = s.load()
		return err
	})
	return leases, err
}
