package hostlocal

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// In the environment they make the test binary another process: childDir one that allocates and releases in that
// directory until it is killed, fullDir one that has no space for a lease, bootDir one that has none after a reboot.
const (
	childDir = "FAIRLEAD_TEST_HOSTLOCAL_DIR"
	fullDir  = "FAIRLEAD_TEST_HOSTLOCAL_FULL"
	bootDir  = "FAIRLEAD_TEST_HOSTLOCAL_BOOT"
)

var killRanges = []string{"10.1.0.0/25", "fd00::/120"}

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		allocateForEver(dir)
	}
	if dir := os.Getenv(fullDir); dir != "" {
		allocateWithoutRoom(dir)
		os.Exit(0)
	}
	if dir := os.Getenv(bootDir); dir != "" {
		rebootWithoutRoom(dir)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// allocateWithoutRoom allocates with a file size limit of 5 bytes: the write of the lease is cut short, as on a full
// disk.
func allocateWithoutRoom(dir string) {
	s, err := Open(dir, boot)
	if err == nil {
		signal.Ignore(syscall.SIGXFSZ)
		err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 5, Max: 5})
	}
	if err == nil {
		_, err = s.Allocate("abcdef", "eth0", cidrs(killRanges...))
	}
	fmt.Println(err)
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	before := allocate(t, s, "a", killRanges...)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fullDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "allocating from podCIDR 10.1.0.0/25") ||
		!strings.Contains(string(out), "file too large") {
		t.Errorf("%v: %s", err, out)
	}
	if l := leases(t, s); len(l) != 2 || l[0].ContainerID != "a" {
		t.Errorf("the failed allocation left %v", l)
	}
	if after := allocate(t, s, "b", killRanges...); after[0] == before[0] {
		t.Errorf("%s was given twice", after[0])
	}
}

// rebootWithoutRoom opens the leases of another boot, as on a full disk, and allocates before and after there is space.
func rebootWithoutRoom(dir string) {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	fmt.Println("limit:", syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	fmt.Println("set:", syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 5, Max: limit.Max}))
	s, err := Open(dir, "boot-2")
	fmt.Println("open:", err)
	if err != nil {
		return
	}
	left, err := s.Leases()
	fmt.Println("left:", left, err)
	fmt.Println("release:", s.Release("a", "eth0"))
	_, err = s.Allocate("b", "eth0", cidrs(killRanges...))
	fmt.Println("full:", err)
	fmt.Println("reserve:", s.Reserve(netip.MustParseAddr("10.1.0.9"), "b", "eth0"))
	fmt.Println("lift:", syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	_, err = s.Allocate("b", "eth0", cidrs(killRanges...))
	fmt.Println("room:", err)
}

// Bridged pods and deletions need no disk space: after a reboot an agent starts without it. It leases nothing before
// the boot ID is written: the next agent would take those leases for another boot's.
func TestRebootWithAFullDisk(t *testing.T) {
	dir := t.TempDir()
	allocate(t, open(t, dir), "a", killRanges...)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), bootDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := map[string]string{}
	for line := range strings.Lines(string(out)) {
		what, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		lines[what] = text
	}
	for what, want := range map[string]string{"limit": "<nil>", "set": "<nil>", "open": "<nil>", "left": "[] <nil>",
		"release": "<nil>", "lift": "<nil>", "room": "<nil>"} {
		if lines[what] != want {
			t.Errorf("%s: %s, want %s", what, lines[what], want)
		}
	}
	for _, what := range []string{"full", "reserve"} {
		if !strings.Contains(lines[what], "recording the boot ID of the leases") ||
			!strings.Contains(lines[what], "file too large") {
			t.Errorf("%s: %s, want why nothing is leased", what, lines[what])
		}
	}
	next, err := Open(dir, "boot-2")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if l := leases(t, next); len(l) != 2 || l[0].ContainerID != "b" {
		t.Errorf("the next agent of that boot finds %v", l)
	}
}

// A directory that was removed gets its boot ID again, even if that could not be written at first: otherwise the next
// agent would take the leases for those of another boot, and give running pods' addresses to others.
func TestBootOfARecreatedDirectory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, err := range []error{os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, "boot-id"), 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Leases(); err == nil {
		t.Fatal("a directory in the place of a file is no error")
	}
	if err := os.Remove(filepath.Join(dir, "boot-id")); err != nil {
		t.Fatal(err)
	}
	allocate(t, s, "a", killRanges...)
	if l := leases(t, open(t, dir)); len(l) != 2 {
		t.Errorf("another agent of this boot finds %v", l)
	}
}

// allocateForEver logs to stdout what it has done: "+ ID ADDR ADDR" after an ADD, "? ID" before a DEL, "- ID" after it.
// Each line is one write, so it is never torn.
func allocateForEver(dir string) {
	s, err := Open(dir, boot)
	if err != nil {
		fmt.Println("! ", err)
		os.Exit(1)
	}
	for g := range 4 {
		go func() {
			var held []string
			for i := 0; ; i++ {
				id := fmt.Sprintf("p%d-g%d-%d", os.Getpid(), g, i)
				got, err := s.Allocate(id, "eth0", cidrs(killRanges...))
				if err != nil {
					fmt.Println("!", err)
					os.Exit(1)
				}
				fmt.Println("+", id, got[0].Addr(), got[1].Addr())
				if held = append(held, id); len(held) > rand.IntN(15) {
					id, held = held[0], held[1:]
					fmt.Println("?", id)
					if err := s.Release(id, "eth0"); err != nil {
						fmt.Println("!", err)
						os.Exit(1)
					}
					fmt.Println("-", id)
				}
			}
		}()
	}
	select {}
}

// The process may be killed at any moment: an address that was returned is leased to its owner, no address has two
// owners, and once the leases without an owner are released every address can be allocated again.
func TestKilledAtAnyMoment(t *testing.T) {
	dir := inMemory(t)
	const rounds = 60
	var answered, unanswered, empty int
	for range rounds {
		output := runAndKill(t, dir)
		alive := stillHeld(t, output)
		empty += emptyFiles(t, dir)
		s, err := Open(dir, boot)
		if err != nil {
			t.Fatal(err)
		}
		answered += len(alive)
		unanswered += checkAndReconcile(t, s, alive)
		checkAllCanBeGiven(t, s, len(alive))
		s.Close()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills: %d pods kept their addresses, %d leases were left by calls without an answer, %d files were empty",
		rounds, answered, unanswered, empty)
	if answered == 0 || unanswered+empty == 0 {
		t.Errorf("the kills never came between an answer and a release: the test shows nothing")
	}
}

// inMemory is a directory on which fsync takes no time: what a killed process has written stays, on any file system.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hostlocal-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// runAndKill starts the process, kills it after some milliseconds of work and returns its output.
func runAndKill(t *testing.T, dir string) []byte {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		t.Errorf("the child said nothing: %v", err)
	}
	killer := time.AfterFunc(time.Duration(rand.Int64N(int64(20*time.Millisecond))), func() { cmd.Process.Kill() })
	defer killer.Stop()
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Error(err)
	}
	cmd.Wait() // the error is that it was killed
	return append(first, rest...)
}

// stillHeld parses the child's output: pods whose ADD returned and whose DEL has not begun.
func stillHeld(t *testing.T, output []byte) map[string][2]netip.Addr {
	t.Helper()
	alive := map[string][2]netip.Addr{}
	for line := range strings.Lines(string(bytes.TrimSpace(output))) {
		f := strings.Fields(line)
		switch f[0] {
		case "+":
			alive[f[1]] = [2]netip.Addr{netip.MustParseAddr(f[2]), netip.MustParseAddr(f[3])}
		case "?":
			delete(alive, f[1])
		case "!":
			t.Fatalf("the child failed: %s", line)
		}
	}
	return alive
}

func emptyFiles(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.Size() == 0 {
			n++
		}
	}
	return n
}

// checkAndReconcile does what the agent does at startup, and returns how many leases had no living owner.
func checkAndReconcile(t *testing.T, s *Store, alive map[string][2]netip.Addr) (dead int) {
	t.Helper()
	held := map[netip.Addr]string{}
	for _, l := range leases(t, s) {
		if l.ContainerID == Unreadable {
			t.Errorf("unreadable lease of %s", l.Addr)
		}
		held[l.Addr] = l.ContainerID
		if _, ok := alive[l.ContainerID]; !ok {
			dead++
			if err := s.Release(l.ContainerID, l.IfName); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, addrs := range alive {
		for _, a := range addrs {
			if held[a] != id {
				t.Errorf("%s was given to %s, and its lease says %q", a, id, held[a])
			}
			if err := s.Reserve(a, id, "eth0"); err != nil {
				t.Error(err)
			}
		}
	}
	if n := len(leases(t, s)); n != 2*len(alive) {
		t.Errorf("%d leases for %d living pods", n, len(alive))
	}
	return dead
}

// checkAllCanBeGiven allocates the whole IPv4 range and releases it.
func checkAllCanBeGiven(t *testing.T, s *Store, alive int) {
	t.Helper()
	n := 0
	for ; ; n++ {
		if _, err := s.Allocate(fmt.Sprint("fill", n), "eth0", cidrs(killRanges[0])); err != nil {
			break
		}
	}
	if n+alive != 125 {
		t.Errorf("%d pods live and %d more fit, want 125 together: an address leaked", alive, n)
	}
	for _, l := range leases(t, s) {
		if err := s.remove(l.Addr); err != nil {
			t.Fatal(err)
		}
	}
}
