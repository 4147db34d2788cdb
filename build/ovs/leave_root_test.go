package ovs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// binDir has the agent's program.
var binDir string

func TestMain(m *testing.M) { labtest.Main(m, &binDir) }

// bridged is a node whose NIC is attached in mode bridge, with Open vSwitch in a pod. It has its own /run and /var/lib,
// in the pod's directory.
type bridged struct {
	pod
	bin string // has programs that replace others
}

const hostIP = "192.0.2.11"

func newBridged(t *testing.T) bridged {
	t.Helper()
	p := newPod(t)
	b := bridged{p, filepath.Join(p.dir, "bin")}
	for _, dir := range []string{"bin", "run/fairlead", "var/fairlead"} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.wrap = append([]string{"unshare", "--mount", "sh", "-ec",
		`mount --bind "$0/run" /run; mount --bind "$0/var" /var/lib; PATH=$0/bin:$1:$PATH; shift; exec "$@"`, p.dir, binDir}, p.wrap...)
	nstest.Veth(b.node, "eth0", nstest.New(t), "far0")
	b.node.IP("addr add " + hostIP + "/24 dev eth0")
	return b
}

// begin starts Open vSwitch, and attaches the NIC.
func (b *bridged) begin() *entry {
	b.t.Helper()
	e := b.start()
	conf := filepath.Join(b.dir, "agent.conf")
	text := fmt.Sprintf("enableBridgingMode: true\nuplink: {mode: bridge}\ntransportInterface: eth0\novsRunDir: %s\n"+
		"ovsDatapathType: %s\n", b.dir, ovstest.UnderTest(b.t))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	if out, err := b.run("fairlead-agent", "--config", conf, "uplink", "attach").CombinedOutput(); err != nil {
		b.t.Fatalf("attach: %v\n%s", err, out)
	}
	b.holds("br-uplink")
	return e
}

// holds checks which interface has the host's address.
func (b *bridged) holds(want string) {
	b.t.Helper()
	if out := b.node.IP("-o -4 addr show"); !strings.Contains(out, want+"    inet "+hostIP+"/") ||
		strings.Count(out, hostIP+"/") != 1 {
		b.t.Errorf("want the host's address on %s, and not elsewhere:\n%s", want, out)
	}
}

// agent holds the lock of a running agent until it is ended.
func (b *bridged) agent() (ended func()) {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.dir, "run/fairlead/agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() { f.Close() }
}

// instead runs a shell script before a program; REAL is the program itself, DIR the pod's directory.
func (b *bridged) instead(program, script string) {
	b.t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		path = filepath.Join(binDir, program)
	}
	script = strings.NewReplacer("REAL", path, "DIR", b.dir).Replace("#!/bin/bash\n" + script + "\nexec REAL \"$@\"\n")
	if err := os.WriteFile(filepath.Join(b.bin, program), []byte(script), 0o755); err != nil {
		b.t.Fatal(err)
	}
}

// stops sends SIGTERM, and requires the exit within the grace period of the pod.
func (e *entry) stops() {
	e.t.Helper()
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		e.t.Fatal(err)
	}
	if code := e.ends(); code != 0 {
		e.t.Errorf("exit code %d:\n%s", code, e.log)
	}
}

// When agent and Open vSwitch leave the node together, or the agent has left before in whatever state, the host has its
// NIC, also after Open vSwitch is back.
func TestRootOVSLeavesWithTheAgent(t *testing.T) {
	b := newBridged(t)
	e := b.begin()
	e.stops()
	b.holds("eth0")
	e = b.start()
	b.holds("eth0")
	if out := b.vsctl("list-br"); strings.Contains(out, "br-uplink") {
		t.Errorf("bridges: %s", out)
	}
	e.stops()
}

// While an agent runs, the kernel datapath keeps the NIC when Open vSwitch is replaced: the agent returns it if Open
// vSwitch stays away. If the agent stops in the meantime, the NIC is returned nevertheless.
func TestRootOVSLeavesTheNICToTheAgent(t *testing.T) {
	ovstest.KernelOnly(t, "the userspace datapath ends with ovs-vswitchd, and the NIC is returned before")
	b := newBridged(t)
	ended := b.agent()
	e := b.begin()
	e.stops()
	b.holds("br-uplink")
	b.instead("ovs-appctl", `[[ $* != *exit* ]] || { touch DIR/ending; until [[ -e DIR/go ]]; do sleep 0.02; done; }`)
	e = b.start()
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	nstest.Wait(t, ends, "it to stop ovs-vswitchd", func() bool { return b.has("ending") })
	b.holds("br-uplink")
	ended()
	if err := os.WriteFile(filepath.Join(b.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := e.ends(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, e.log)
	}
	b.holds("eth0")
}

// The entry point ends in time, and the host has its NIC, even if ovs-vswitchd hangs and the program that returns the
// NIC hung, too.
func TestRootOVSEndsThoughAllHangs(t *testing.T) {
	b := newBridged(t)
	e := b.begin()
	b.instead("fairlead-agent", `[[ -e DIR/hung ]] || { touch DIR/hung; trap '' TERM; for _ in {1..50}; do sleep 1; done; }`)
	hung := b.pid("ovs-vswitchd")
	if err := syscall.Kill(hung, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(hung, syscall.SIGCONT) }) // should be gone
	e.stops()
	b.holds("eth0")
}
