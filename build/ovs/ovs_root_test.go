package ovs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// pod is a container of Open vSwitch: the entry point in a network namespace, with a run directory that outlives it.
type pod struct {
	t    *testing.T
	node *nstest.NS
	dir  string
	wrap []string // a command that wraps others
}

func newPod(t *testing.T) pod {
	t.Helper()
	node := nstest.New(t)
	dir, err := os.MkdirTemp("/tmp", "fl-ovs") // the path of a unix socket is limited to 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return pod{t: t, node: node, dir: dir, wrap: []string{"setpriv", "--inh-caps=-all", "--bounding-set=" + bounding(t)}}
}

// bounding is the container's set of capabilities, in setpriv(1)'s syntax, as in docs/image.md.
func bounding(t *testing.T) string {
	if ovstest.UnderTest(t) == "system" {
		return "-all,+net_admin"
	}
	return "-all,+net_admin,+net_raw,+mknod"
}

// entry is a run of the entry point.
type entry struct {
	pod
	cmd  *exec.Cmd
	log  *buffer
	done chan error
}

// buffer may be read while a program writes to it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// ends is the time limit of its exit: terminationGracePeriodSeconds of its pod.
const ends = 30 * time.Second

// run returns a command that runs on the node.
func (p pod) run(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", slices.Concat([]string{"--net=" + p.node.Path, "--"}, p.wrap, args)...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+p.dir)
	return cmd
}

func (p pod) command(env string, args ...string) *exec.Cmd {
	cmd := p.run(append([]string{"./fairlead-ovs"}, args...)...)
	cmd.Env = append(cmd.Env, "FAIRLEAD_OVS_DATAPATH="+env)
	return cmd
}

func (p pod) start() *entry {
	p.t.Helper()
	e := &entry{pod: p, cmd: p.command(string(ovstest.UnderTest(p.t))), log: &buffer{}, done: make(chan error, 1)}
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	if err := e.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() { e.done <- e.cmd.Wait() }()
	p.t.Cleanup(func() {
		_ = e.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		select {
		case <-e.done:
		case <-time.After(ends):
			p.t.Errorf("it did not end:\n%s", e.log)
		}
		if p.t.Failed() {
			p.t.Logf("it said:\n%s", e.log)
		}
	})
	e.ready(0)
	return e
}

func (p pod) pid(daemon string) int {
	text, _ := os.ReadFile(filepath.Join(p.dir, daemon+".pid")) // missing: 0
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// ready waits until both daemons answer and the PID of ovs-vswitchd differs from not.
func (e *entry) ready(not int) {
	e.t.Helper()
	nstest.Wait(e.t, 30*time.Second, "Open vSwitch to answer", func() bool {
		return e.pid("ovs-vswitchd") != not && e.command("", "ready").Run() == nil
	})
}

// kill kills a daemon by the PID in its file.
func (e *entry) kill(daemon string) {
	e.t.Helper()
	if err := syscall.Kill(e.pid(daemon), syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
}

// ends waits for the exit and returns the exit code.
func (e *entry) ends() int {
	e.t.Helper()
	select {
	case <-e.done:
		e.done <- nil
	case <-time.After(ends):
		e.t.Fatalf("it goes on:\n%s", e.log)
	}
	return e.cmd.ProcessState.ExitCode()
}

func (p pod) vsctl(args ...string) string {
	p.t.Helper()
	out, err := exec.Command("ovs-vsctl", append([]string{"--db=unix:" + p.dir + "/db.sock", "-t", "10"}, args...)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("ovs-vsctl %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (p pod) has(file string) bool {
	_, err := os.Stat(filepath.Join(p.dir, file))
	return err == nil
}

// A daemon that dies is restarted immediately; a container that is replaced leaves its state to its successor, and one
// without remaining state leaves no files. In User-Mode Linux openvswitch is built into the kernel: there is no module.
func TestRootOVSInAPod(t *testing.T) {
	p := newPod(t)
	e := p.start()
	p.vsctl("add-br", "br-x", "--", "set", "Bridge", "br-x", "datapath_type="+string(ovstest.UnderTest(t)))
	for _, daemon := range []string{"ovs-vswitchd", "ovsdb-server"} {
		before := 0
		if daemon == "ovs-vswitchd" {
			before = p.pid(daemon)
		}
		e.kill(daemon)
		e.ready(before)
		if !strings.Contains(e.log.String(), daemon+" was killed by signal 9: it is started again") {
			t.Errorf("nothing of %s's death in\n%s", daemon, e.log)
		}
	}
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := e.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !p.has("conf.db") {
		t.Error("the database is gone, and there is a bridge in it")
	}

	e = p.start()
	if got := p.vsctl("list-br"); got != "br-x" {
		t.Errorf("bridges %q", got)
	}
	p.vsctl("del-br", "br-x")
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code := e.ends()
	left, err := filepath.Glob(p.dir + "/*")
	if code != 0 || len(left) > 0 || err != nil {
		t.Errorf("exit code %d; left: %q, %v", code, left, err)
	}
}

// An ovs-vswitchd with another database is recognised by its network, without permission to inspect other processes.
func TestRootOVSRefusesASecond(t *testing.T) {
	ovstest.UserspaceOnly(t, "what it checks before it starts")
	p := newPod(t)
	p.start()
	second := p
	second.dir, second.wrap = t.TempDir(), []string{"setpriv", "--inh-caps=-all", "--bounding-set=-all"} // fewer caps
	out, err := second.command("system").CombinedOutput()
	want := "another ovs-vswitchd runs on this node, process " + strconv.Itoa(p.pid("ovs-vswitchd")) + ":"
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, want %s\n%s", err, want, out)
	}
}

// Errors at the start, and persistent errors, make it exit with a reason.
func TestRootOVSExitsWithReason(t *testing.T) {
	ovstest.UserspaceOnly(t, "what it checks before it starts")
	p := newPod(t)
	if out, err := p.command("kernel").CombinedOutput(); err == nil || !strings.Contains(string(out), "can be system or netdev") {
		t.Errorf("a wrong datapath: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "conf.db"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := p.start()
	if !p.has("conf.db.broken") || !strings.Contains(e.log.String(), "could not be read") {
		t.Errorf("a database that can't be read:\n%s", e.log)
	}
	out, err := p.command("netdev").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another Open vSwitch runs on this node") {
		t.Errorf("a second one: %v\n%s", err, out)
	}
	for range 4 {
		pid := p.pid("ovs-vswitchd")
		e.kill("ovs-vswitchd")
		e.ready(pid)
	}
	e.kill("ovs-vswitchd")
	if code := e.ends(); code != 1 || !strings.Contains(e.log.String(), "the fifth death within a minute: giving up") {
		t.Errorf("exit code %d", code)
	}
	if p.command("", "ready").Run() == nil {
		t.Error("it is ready")
	}
}
