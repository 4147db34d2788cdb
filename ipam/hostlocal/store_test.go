package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const boot = "3c1f4a5e-boot-1"

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, boot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func cidrs(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func allocate(t *testing.T, s *Store, id string, ranges ...string) []netip.Prefix {
	t.Helper()
	got, err := s.Allocate(id, "eth0", cidrs(ranges...))
	if err != nil {
		t.Fatalf("allocating for %s: %v", id, err)
	}
	return got
}

func leases(t *testing.T, s *Store) []Lease {
	t.Helper()
	l, err := s.Leases()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not contain %q", err, p)
		}
	}
}

// Every usable address is allocated exactly once, and no other.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		cidr        string
		total       int
		never       []string
		first, last string
	}{
		{"10.1.0.0/30", 1, []string{"10.1.0.0", "10.1.0.1", "10.1.0.3"}, "10.1.0.2", "10.1.0.2"},
		{"10.1.0.16/28", 13, []string{"10.1.0.16", "10.1.0.17", "10.1.0.31"}, "10.1.0.18", "10.1.0.30"},
		{"10.1.0.0/24", 253, []string{"10.1.0.0", "10.1.0.1", "10.1.0.255"}, "10.1.0.2", "10.1.0.254"},
		{"fd00::/126", 2, []string{"fd00::", "fd00::1"}, "fd00::2", "fd00::3"},
		{"fd00::/120", 254, []string{"fd00::", "fd00::1"}, "fd00::2", "fd00::ff"},
	} {
		t.Run(c.cidr, func(t *testing.T) {
			s := open(t, t.TempDir())
			given := map[string]bool{}
			for i := range c.total {
				a := allocate(t, s, fmt.Sprint("c", i), c.cidr)
				if a[0].Bits() != netip.MustParsePrefix(c.cidr).Bits() || given[a[0].Addr().String()] {
					t.Fatalf("allocation %d: %v", i, a)
				}
				given[a[0].Addr().String()] = true
			}
			for _, n := range c.never {
				if given[n] {
					t.Errorf("%s was given to a pod", n)
				}
			}
			if !given[c.first] || !given[c.last] {
				t.Errorf("%s or %s was not given", c.first, c.last)
			}
			_, err := s.Allocate("one-more", "eth0", cidrs(c.cidr))
			wantError(t, err, fmt.Sprintf("podCIDR %s is full: %d of %d addresses in use; ", c.cidr, c.total, c.total))
			var full *FullError
			if !errors.As(err, &full) || full.Used != uint64(c.total) || full.Total != uint64(c.total) {
				t.Errorf("not a FullError with the numbers: %#v", err)
			}
		})
	}
}

func TestLargeRanges(t *testing.T) {
	s := open(t, t.TempDir())
	for _, c := range []string{"10.1.0.0/16", "fd00:1::/64", "fd00:2::/48", "11.0.0.0/8"} {
		first := allocate(t, s, "for-"+c, c)[0].Addr()
		if want := netip.MustParsePrefix(c).Addr().Next().Next(); first != want {
			t.Errorf("%s: first address is %s, want %s", c, first, want)
		}
	}
	if got := podCIDR(netip.MustParsePrefix("10.1.0.0/16")).size(); got != 65533 {
		t.Errorf("size of a /16 is %d", got)
	}
	if got := podCIDR(netip.MustParsePrefix("::/0")).size(); got != 1<<64-1 {
		t.Errorf("size of ::/0 is %d", got)
	}
}

func TestRangesRefused(t *testing.T) {
	s := open(t, t.TempDir())
	for _, c := range []struct {
		ranges []netip.Prefix
		says   []string
	}{
		{nil, []string{"the node has no podCIDR"}},
		{[]netip.Prefix{{}}, []string{"is not an IPv4 or IPv6 range"}},
		{cidrs("::ffff:10.0.0.0/120"), []string{"::ffff:10.0.0.0/120", "is not an IPv4 or IPv6 range"}},
		{cidrs("10.1.0.0/31"), []string{"10.1.0.0/31", "no room", "/30 is the smallest"}},
		{cidrs("10.1.0.0/32"), []string{"10.1.0.0/32", "/30 is the smallest"}},
		{cidrs("fd00::/127"), []string{"fd00::/127", "/126 is the smallest"}},
		{cidrs("10.1.0.0/24", "fd00::/128"), []string{"fd00::/128", "/126 is the smallest"}},
		{cidrs("10.1.0.0/24", "10.2.0.0/24"), []string{"10.1.0.0/24", "10.2.0.0/24", "one family"}},
	} {
		_, err := s.Allocate("a", "eth0", c.ranges)
		wantError(t, err, c.says...)
	}
	if l := leases(t, s); len(l) != 0 {
		t.Errorf("a refused allocation left %v", l)
	}
}

func TestOwnersRefused(t *testing.T) {
	s := open(t, t.TempDir())
	for _, o := range []owner{{"", "eth0"}, {"a", ""}, {"a\r\nb", "eth0"}, {"a", "e th0"}} {
		_, err := s.Allocate(o.containerID, o.ifName, cidrs("10.1.0.0/24"))
		wantError(t, err, "neither may be empty or contain spaces")
		wantError(t, s.Reserve(netip.MustParseAddr("10.1.0.9"), o.containerID, o.ifName), "neither may be empty")
	}
	longest := strings.Repeat("x", maxLease-2-len("eth0"))
	_, err := s.Allocate(longest+"x", "eth0", cidrs("10.1.0.0/24"))
	wantError(t, err, "too long for a lease")
	allocate(t, s, longest, "10.1.0.0/24")
	if l := leases(t, s); len(l) != 1 || l[0].ContainerID != longest {
		t.Errorf("the longest lease reads as %v", l)
	}
}

func TestAllocateTwiceAnswersTheSame(t *testing.T) {
	s := open(t, t.TempDir())
	first := allocate(t, s, "a", "10.1.0.0/24", "fd00::/64")
	allocate(t, s, "b", "10.1.0.0/24", "fd00::/64")
	if again := allocate(t, s, "a", "10.1.0.0/24", "fd00::/64"); !slices.Equal(first, again) {
		t.Errorf("first %v, then %v", first, again)
	}
	other, err := s.Allocate("a", "eth1", cidrs("10.1.0.0/24", "fd00::/64"))
	if err != nil || other[0] == first[0] {
		t.Errorf("a second interface of the container got %v, %v", other, err)
	}
	// The second family was added to the node later.
	v4 := allocate(t, s, "c", "10.1.0.0/24")
	if both := allocate(t, s, "c", "10.1.0.0/24", "fd00::/64"); both[0] != v4[0] || len(both) != 2 {
		t.Errorf("IPv4 only %v, then both %v", v4, both)
	}
}

func TestAllocateAfterThePodCIDRChanged(t *testing.T) {
	s := open(t, t.TempDir())
	old := allocate(t, s, "a", "10.1.0.0/24")
	now := allocate(t, s, "a", "10.2.0.0/24")
	if !netip.MustParsePrefix("10.2.0.0/24").Contains(now[0].Addr()) {
		t.Errorf("the old podCIDR's address %v was given as %v", old, now)
	}
	// An address that is in the range but not usable, because the range was changed, is not returned either.
	if err := s.Reserve(netip.MustParseAddr("10.3.0.1"), "b", "eth0"); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, s, "b", "10.3.0.0/24"); got[0].Addr() == netip.MustParseAddr("10.3.0.1") {
		t.Errorf("the gateway's address was given: %v", got)
	}
	if err := s.Release("a", "eth0"); err != nil {
		t.Fatal(err)
	}
	for _, l := range leases(t, s) {
		if l.ContainerID == "a" {
			t.Errorf("release left %v", l)
		}
	}
}

func TestBothFamiliesOrNone(t *testing.T) {
	s := open(t, t.TempDir())
	allocate(t, s, "a", "10.1.0.0/24", "fd00::/126")
	allocate(t, s, "b", "10.1.0.0/24", "fd00::/126")
	before := leases(t, s)
	_, err := s.Allocate("c", "eth0", cidrs("10.1.0.0/24", "fd00::/126"))
	wantError(t, err, "podCIDR fd00::/126 is full: 2 of 2 addresses in use")
	if after := leases(t, s); !slices.Equal(before, after) {
		t.Errorf("before %v, after the failure %v", before, after)
	}
	// What the attachment had before the failed call stays.
	allocate(t, s, "d", "10.1.0.0/24")
	before = leases(t, s)
	if _, err := s.Allocate("d", "eth0", cidrs("10.1.0.0/24", "fd00::/126")); err == nil {
		t.Fatal("no error")
	}
	if after := leases(t, s); !slices.Equal(before, after) {
		t.Errorf("before %v, after the failure %v", before, after)
	}
}

// The library writes the lease and then fails to record the last address.
func TestFailureAfterTheLeaseWasWritten(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	blocker := filepath.Join(dir, "last_reserved_ip.128")
	if err := os.Mkdir(blocker, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := s.Allocate("a", "eth0", cidrs("10.1.0.0/24", "fd00::/64"))
	wantError(t, err, "allocating from podCIDR fd00::/64", "last_reserved_ip.128")
	if l := leases(t, s); len(l) != 0 {
		t.Errorf("the failed allocation left %v", l)
	}
	if err := os.Remove(blocker); err != nil {
		t.Fatal(err)
	}
	allocate(t, s, "a", "10.1.0.0/24", "fd00::/64")
}

func TestRelease(t *testing.T) {
	s := open(t, t.TempDir())
	allocate(t, s, "a", "10.1.0.0/24", "fd00::/64")
	allocate(t, s, "ab", "10.1.0.0/24", "fd00::/64")
	for range 2 { // a DEL may come twice
		if err := s.Release("a", "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Release("never-heard-of", "eth0"); err != nil {
		t.Fatal(err)
	}
	for _, l := range leases(t, s) {
		if l.ContainerID != "ab" {
			t.Errorf("%v is left", l)
		}
	}
	if n := len(leases(t, s)); n != 2 {
		t.Errorf("%d leases are left, want the 2 of ab", n)
	}
}

// A released address is not allocated again at once: a peer's neighbour cache may still have its last owner.
func TestReuseIsLate(t *testing.T) {
	s := open(t, t.TempDir())
	first := allocate(t, s, "a", "10.1.0.0/28")[0]
	if err := s.Release("a", "eth0"); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if got := allocate(t, s, fmt.Sprint("b", i), "10.1.0.0/28")[0]; got == first {
			t.Fatalf("allocation %d got %s again", i, got)
		}
	}
}

func TestReserve(t *testing.T) {
	s := open(t, t.TempDir())
	addr := netip.MustParseAddr("10.1.0.2")
	for range 2 {
		if err := s.Reserve(addr, "a", "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, s.Reserve(addr, "b", "eth0"), "10.1.0.2", "container b", "leased to interface eth0 of container a")
	if got := allocate(t, s, "b", "10.1.0.0/24")[0].Addr(); got == addr {
		t.Error("a reserved address was given")
	}
	if got := allocate(t, s, "a", "10.1.0.0/24")[0].Addr(); got != addr {
		t.Errorf("the holder of %s got %s", addr, got)
	}
	last := netip.MustParseAddr("fd00::ffff:ffff:ffff:fffe")
	if err := s.Reserve(last, "a", "eth0"); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, s, "b", "fd00::/64")[0].Addr().String(); got != "fd00::2" {
		t.Errorf("after a reservation of the last address the first pod got %s", got)
	}
	for _, bad := range []netip.Addr{{}, netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:10.1.0.2")} {
		wantError(t, s.Reserve(bad, "c", "eth0"), "not an address that a pod can have")
	}
}

func TestAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	allocate(t, s, "a", "10.1.0.0/24", "fd00::/64")
	if l := leases(t, open(t, dir)); len(l) != 2 {
		t.Fatalf("the same boot sees %v", l)
	}
	second, err := Open(dir, "boot-2")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if l := leases(t, second); len(l) != 0 {
		t.Errorf("after a reboot: %v", l)
	}
	allocate(t, second, "b", "10.1.0.0/24")
	third, err := Open(dir, "boot-2")
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if l := leases(t, third); len(l) != 1 || l[0].ContainerID != "b" {
		t.Errorf("a second Open of the same boot sees %v", l)
	}
}

// Leases are removed before the boot ID is written: after a crash in between, leases of the last boot must not count as
// this boot's.
func TestCrashWhileLeasesOfAnotherBootAreRemoved(t *testing.T) {
	dir := t.TempDir()
	allocate(t, open(t, dir), "a", "10.1.0.0/24", "fd00::/64")
	// The last lease cannot be removed, which stands in for a crash there.
	stuck := filepath.Join(dir, "fd00::2")
	if err := errors.Join(os.Remove(stuck), os.MkdirAll(filepath.Join(stuck, "x"), 0o755)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, "boot-2")
	wantError(t, err, "removing the lease of fd00::2")
	if id, _ := os.ReadFile(filepath.Join(dir, "boot-id")); strings.TrimSpace(string(id)) != boot {
		t.Fatalf("boot-id says %q while leases of the last boot are left", id)
	}
	if err := os.Remove(filepath.Join(stuck, "x")); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, "boot-2")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if l := leases(t, s); len(l) != 0 {
		t.Errorf("leases of the last boot are left: %v", l)
	}
}

func TestBootIDLostOrTorn(t *testing.T) {
	dir := t.TempDir()
	for _, content := range []string{"", "3c1f"} {
		s := open(t, dir)
		allocate(t, s, "a", "10.1.0.0/24")
		if err := os.WriteFile(filepath.Join(dir, "boot-id"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if l := leases(t, open(t, dir)); len(l) != 0 {
			t.Errorf("boot-id %q: leases of an unknown boot are kept: %v", content, l)
		}
	}
	wantError(t, func() error { _, err := Open(dir, ""); return err }(), "must not be empty")
	wantError(t, func() error { _, err := Open("", boot); return err }(), "must not be empty")
}

// A SIGKILL between creating and writing leaves an empty file. The address was not returned to any caller.
func TestEmptyLeaseIsFreed(t *testing.T) {
	for name, use := range map[string]func(*Store){
		"Open":     func(*Store) {},
		"Leases":   func(s *Store) { s.Leases() },
		"Release":  func(s *Store) { s.Release("x", "eth0") },
		"Reserve":  func(s *Store) { s.Reserve(netip.MustParseAddr("10.9.0.9"), "x", "eth0") },
		"Allocate": func(s *Store) { s.Allocate("x", "eth0", cidrs("fd00::/64")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			file := filepath.Join(dir, "10.1.0.2")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if name == "Open" {
				s = open(t, dir)
			}
			use(s)
			if _, err := os.Stat(file); err == nil {
				t.Fatal("the empty file is still there")
			}
			if got := allocate(t, s, "a", "10.1.0.0/30")[0].Addr().String(); got != "10.1.0.2" {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestUnreadableLease(t *testing.T) {
	for name, content := range map[string]string{
		"no interface": "abcdef", "half": "abcdef\r\n", "binary": "\x00\xff\x00", "other": "{}\n\n[]", "blank": " ",
		"three lines": "a\r\neth0\r\nmore",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			addr := netip.MustParseAddr("10.1.0.2")
			write := func() {
				if err := os.WriteFile(filepath.Join(dir, "10.1.0.2"), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write()
			want := []Lease{{addr, Unreadable, "10.1.0.2"}}
			if l := leases(t, open(t, dir)); !slices.Equal(l, want) {
				t.Fatalf("listed as %v, want %v", l, want)
			}
			// It may be a running pod's: not allocated, but counted.
			_, err := s.Allocate("new", "eth0", cidrs("10.1.0.0/30"))
			wantError(t, err, "1 of 1 addresses in use")
			// The agent reserves it again for the running pod.
			if err := s.Reserve(addr, "abcdef", "eth0"); err != nil {
				t.Fatal(err)
			}
			if l := leases(t, s); !slices.Equal(l, []Lease{{addr, "abcdef", "eth0"}}) {
				t.Errorf("after Reserve: %v", l)
			}
			// Or it is not reserved, and is released as listed.
			write()
			if l := leases(t, s); !slices.Equal(l, want) {
				t.Fatalf("listed again as %v, want %v", l, want)
			}
			if err := s.Release(want[0].ContainerID, want[0].IfName); err != nil {
				t.Fatal(err)
			}
			allocate(t, s, "new", "10.1.0.0/30")
		})
	}
}

// Files that are not leases are left alone, even by a container whose ID equals the contents of another file.
func TestOtherFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	allocate(t, s, boot, "10.1.0.0/24")
	for _, name := range []string{"README", "10.1.0.02", "fe80::1%eth0", "FD00::5"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(boot+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Release(boot, "eth0"); err != nil {
		t.Fatal(err)
	}
	if l := leases(t, s); len(l) != 0 {
		t.Errorf("leases: %v", l)
	}
	for _, name := range []string{"README", "boot-id", "lock", "last_reserved_ip.32", "FD00::5"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestManyGoroutines(t *testing.T) {
	dir := t.TempDir()
	stores := []*Store{open(t, dir), open(t, dir)} // as in two processes
	var wg sync.WaitGroup
	var mu sync.Mutex
	given := map[netip.Addr]string{}
	for i := range 32 {
		wg.Go(func() {
			for j := range 4 {
				id := fmt.Sprintf("c%d-%d", i, j)
				got, err := stores[i%2].Allocate(id, "eth0", cidrs("10.1.0.0/24", "fd00::/64"))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, a := range got {
					if other, ok := given[a.Addr()]; ok {
						t.Errorf("%s was given to %s and to %s", a, other, id)
					}
					given[a.Addr()] = id
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n := len(leases(t, stores[0])); n != 256 || len(given) != 256 {
		t.Errorf("%d leases, %d addresses given, want 256", n, len(given))
	}
}

// The store waits for a lock of another process, host-local's for example.
func TestFileLock(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	other, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Allocate("a", "eth0", cidrs("10.1.0.0/24"))
		done <- err
	}()
	select {
	case <-done:
		t.Fatal("did not wait for the lock")
	case <-time.After(100 * time.Millisecond): // an allocation takes less than 1 ms
	}
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("still waits, a minute after the lock became free")
	}
}

func BenchmarkAllocateRelease(b *testing.B) {
	for _, held := range []int{0, 110, 250} {
		b.Run(fmt.Sprint(held, "pods"), func(b *testing.B) {
			s, err := Open(b.TempDir(), boot)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			both := cidrs("10.1.0.0/23", "fd00::/64")
			for i := range held {
				if _, err := s.Allocate(fmt.Sprint("held", i), "eth0", both); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := s.Allocate("a", "eth0", both); err != nil {
					b.Fatal(err)
				}
				if err := s.Release("a", "eth0"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The directory is removed externally under an open store: the next call recreates it, for this boot.
func TestDirectoryRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "leases")
	s, err := Open(dir, "boot")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if leases, err := s.Leases(); err != nil || len(leases) != 0 {
			t.Fatalf("%v, %v", leases, err)
		}
		if err := s.Reserve(netip.MustParseAddr("10.0.0.5"), "c", "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(dir, "boot")
	if err != nil {
		t.Fatal(err)
	}
	if leases, err := again.Leases(); err != nil || len(leases) != 1 {
		t.Errorf("the next process sees %v, %v", leases, err)
	}
}

// A store reads leases again only if the directory's times, or Leases, show a change by another process.
func TestReadOnce(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	first := allocate(t, s, "a", "10.1.0.0/24")[0].Addr()
	file := filepath.Join(dir, first.String())
	if err := os.WriteFile(file, []byte("b\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, s, "a", "10.1.0.0/24")[0].Addr(); got != first {
		t.Errorf("the file of %s was read again, and a has got %s", first, got)
	}
	if l := leases(t, s); !slices.Equal(l, []Lease{{first, "b", "eth0"}}) {
		t.Errorf("Leases has not read the file: %v", l)
	}
	for range 3 {
		before := stampOf(dir)
		other := allocate(t, open(t, dir), "c", "10.1.0.0/24")[0].Addr()
		awaitChange(t, dir, before)
		if got := allocate(t, s, "c", "10.1.0.0/24")[0].Addr(); got != other {
			t.Errorf("another process has leased %s to c, which has got %s", other, got)
		}
		before = stampOf(dir)
		if err := os.Remove(filepath.Join(dir, other.String())); err != nil {
			t.Fatal(err)
		}
		awaitChange(t, dir, before)
		if got := allocate(t, s, "c", "10.1.0.0/24")[0].Addr(); got == other {
			t.Errorf("c has got %s, whose lease was removed, though others were free for longer", other)
		}
		if err := s.Release("c", "eth0"); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitChange waits until the directory's times differ, which they do in steps of some milliseconds.
func awaitChange(t *testing.T, dir string, before stamp) {
	t.Helper()
	file := filepath.Join(dir, "touched")
	for limit := time.Now().Add(10 * time.Second); stampOf(dir) == before; {
		if time.Now().After(limit) {
			t.Fatal("the directory's times do not change")
		}
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Remove(file)); err != nil {
			t.Fatal(err)
		}
	}
}

// A lease that could not be read, as without a free file descriptor, is read again.
func TestReadAfterAFailure(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "lease")
	s := open(t, dir)
	if err := os.Symlink(elsewhere, filepath.Join(dir, "10.1.0.7")); err != nil { // dangling: it cannot be opened
		t.Fatal(err)
	}
	allocate(t, s, "b", "10.1.0.0/24")
	allocate(t, s, "b", "10.1.0.0/24") // changes nothing
	if err := os.WriteFile(elsewhere, []byte("a\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, s, "a", "10.1.0.0/24")[0].Addr().String(); got != "10.1.0.7" {
		t.Errorf("a has the address 10.1.0.7, and got %s", got)
	}
}
