package uplink

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// runs simulates a running ovs-vswitchd in a run directory by what identifies it: the lock on its PID file.
func runs(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ovs-vswitchd.pid"))
	if err == nil {
		t.Cleanup(func() { f.Close() })
		_, err = f.WriteString("1\n")
	}
	if err == nil {
		// An open file description lock: a process does not see its own process locks.
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hangs makes that ovs-vswitchd accept no commands: its backlog is full.
func hangs(t *testing.T, dir string) {
	t.Helper()
	socket := filepath.Join(dir, "ovs-vswitchd.1.ctl")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: socket})
	}
	if err == nil {
		err = unix.Listen(fd, 0)
	}
	for err == nil {
		var waits net.Conn
		if waits, err = net.Dial("unix", socket); err == nil {
			t.Cleanup(func() { waits.Close() })
		}
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
}

// Whether ovs-vswitchd hangs is checked repeatedly, but not in every check, and only if it runs.
func TestItIsAskedWhetherItHangs(t *testing.T) {
	now := time.Now()
	for what, c := range map[string]struct {
		runs  bool
		asked time.Time
		hangs bool
	}{
		"never asked":    {true, time.Time{}, true},
		"asked before":   {true, now.Add(-hangCheckEvery), true},
		"asked just now": {true, now.Add(time.Hour), false},
		"none runs":      {false, time.Time{}, false},
	} {
		dir := t.TempDir()
		hangs(t, dir)
		if c.runs {
			runs(t, dir)
		}
		w := watch{start: vswitchd.RunningStartID(dir), hangCheckedAt: c.asked}
		if w.check(t.Context(), dir); w.silent.IsZero() == c.hangs {
			t.Errorf("%s: it hangs since %s, want that it is seen: %t", what, w.silent, c.hangs)
		}
		if checks := w.hangCheckedAt != c.asked; checks != c.hangs {
			t.Errorf("%s: it was checked: %t", what, checks)
		}
	}
}

// An agent that stops leaves the NIC in Open vSwitch if that runs, and otherwise returns it to the host.
func TestLeave(t *testing.T) {
	for what, vswitchdRuns := range map[string]bool{"ovs-vswitchd runs": true, "it has ended": false} {
		n := detached(t, func(j *journal.Journal) { j.Phase = datapath.Attached })
		if vswitchdRuns {
			runs(t, n.cfg.OVSRunDir)
		}
		Leave(t.Context(), n.journal, n.cfg, logr.Discard())
		left, err := datapath.Open(n.journal, logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		if j := left.Journal(); left.Attached() != vswitchdRuns || left.Yielded() == vswitchdRuns {
			t.Errorf("%s: the NIC is %s, %q", what, j.Phase, j.Reason)
		}
	}
}
