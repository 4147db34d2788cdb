package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// binDir is where labtest.Main has built the programs; empty if it did not build them.
var binDir string

func TestMain(m *testing.M) { labtest.Main(m, &binDir) }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
}

// up creates a lab without agents that ends with the test, and checks that nothing is left of it.
func up(t *testing.T, o Options) *Lab {
	t.Helper()
	o.NoAgent = true
	return upWithAgents(t, o)
}

func upWithAgents(t *testing.T, o Options) *Lab {
	t.Helper()
	needRoot(t)
	o.Dir, o.BinDir = filepath.Join(t.TempDir(), "lab"), binDir
	if o.Datapath == "" {
		o.Datapath = vswitch.Datapath(ovstest.UnderTest(t))
	}
	l, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(l.RunnerLog())
			t.Logf("the pod runner's log:\n%s", log)
			for _, node := range l.Nodes() {
				t.Logf("agent of %s, %s", node, l.logTail(node))
			}
		}
		watch := watchLab(t, l)
		if err := Down(context.Background(), l.dir, nil); err != nil {
			t.Error(err)
		}
		watch.checkGone(t)
	})
	return l
}

// labWatch identifies what belongs to a lab.
type labWatch struct {
	dir  string
	nets []uint64 // inodes of its namespaces
	// members are the threads in them. Only these are checked later: the kernel may reuse the inode of a destroyed
	// namespace, such as for another lab's.
	members []string
}

// watchLab is called just before the lab ends: a reboot gives a node new namespaces.
func watchLab(t *testing.T, l *Lab) labWatch {
	t.Helper()
	w := labWatch{dir: l.dir}
	hosts, err := host.All(l.dir)
	if err != nil {
		t.Error(err) // and continue: the lab must still be removed
	}
	for _, h := range hosts {
		for _, kind := range []string{"net", "mnt", "uts"} {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(h.Dir, "ns", kind), &st); err != nil {
				t.Error(err)
				continue
			}
			w.nets = append(w.nets, st.Ino)
		}
	}
	w.members = w.threads(t)
	return w
}

// checkGone checks for the lab's directory, mounts, processes and namespaces.
func (w labWatch) checkGone(t *testing.T) {
	t.Helper()
	if exists(w.dir) {
		t.Errorf("%s is still there", w.dir)
	}
	mounts, err := host.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.Target, w.dir) {
			t.Errorf("mount %+v is still there", m)
		}
	}
	// A thread that visited a namespace may still be leaving it.
	deadline := time.Now().Add(labtest.Limit(5 * time.Second))
	left := w.users(t)
	for ; len(left) > 0 && time.Now().Before(deadline); left = w.users(t) {
		time.Sleep(10 * time.Millisecond)
	}
	for _, p := range left {
		name, _ := os.ReadFile(filepath.Join("/", "proc", strings.Split(p, "/")[2], "comm"))
		t.Errorf("still in a namespace of the lab, or about it: %s %s", strings.TrimSpace(string(name)), p)
	}
}

// threads are those in a namespace of the lab.
func (w labWatch) threads(t *testing.T) []string {
	t.Helper()
	out := []string{}
	links, err := filepath.Glob("/proc/[0-9]*/task/*/ns/[mnu]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		for _, ino := range w.nets {
			if strings.HasSuffix(target, fmt.Sprintf("[%d]", ino)) {
				out = append(out, link+" "+target)
			}
		}
	}
	return out
}

// users are the threads in a namespace of the lab and the processes with its directory in their command line.
func (w labWatch) users(t *testing.T) []string {
	t.Helper()
	out := slices.DeleteFunc(w.threads(t), func(thread string) bool {
		return !slices.Contains(w.members, thread)
	})
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range cmdlines {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), w.dir) {
			out = append(out, path+" "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return out
}

func nodeExec(t *testing.T, l *Lab, name string, argv ...string) string {
	t.Helper()
	out, err := l.NodeExec(labtest.Within(t, 20*time.Second), name, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func podExec(t *testing.T, l *Lab, pod string, argv ...string) string {
	t.Helper()
	out, err := l.PodExec(labtest.Within(t, 20*time.Second), pod, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually polls until ok returns true, or fails the test with what it waited for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := labtest.Limit(10 * time.Second)
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not after %s: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
