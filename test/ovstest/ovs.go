package ovstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/ovsrelease"
)

// Datapath is the kind of datapath, spelled as in the datapath_type column of OVSDB's Bridge table.
type Datapath string

const (
	// Dummy has no devices: ports are names, packets are injected.
	Dummy Datapath = "dummy"
	// Netdev is the userspace datapath over the devices of a network
	// namespace; it needs root.
	Netdev Datapath = "netdev"
	// System is the kernel's datapath, one of its own in each network
	// namespace; it needs root and the kernel's module openvswitch.
	System Datapath = "system"
)

// UnderTest is the datapath in FAIRLEAD_TEST_DATAPATH: the tests of packets and devices run once on Netdev, the
// default, and once on System.
func UnderTest(t testing.TB) Datapath {
	t.Helper()
	switch d := Datapath(os.Getenv("FAIRLEAD_TEST_DATAPATH")); d {
	case "", Netdev:
		return Netdev
	case System:
		return System
	default:
		t.Fatalf("FAIRLEAD_TEST_DATAPATH is %q: there are %s and %s", d, Netdev, System)
		return ""
	}
}

// Pause is the interval at which tests poll a condition. A poll often starts programs, each of which takes 25 ms of a
// guest's only CPU: there the interval leaves time for other processes.
func Pause(t testing.TB) time.Duration {
	t.Helper()
	if UnderTest(t) == System {
		return 200 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// ElsewhereMark is in the message of UserspaceOnly, KernelOnly and LinuxFrom: such a test has run in another pass.
const ElsewhereMark = "only in another pass: "

// UserspaceOnly skips a test if System is under test. It is for tests that cover nothing there that they do not cover
// on Netdev, or that cannot run there; why is the reason. Call it first in a test, before anything is started.
// test/summary does not count such tests as skipped.
func UserspaceOnly(t testing.TB, why string) {
	t.Helper()
	if UnderTest(t) == System {
		t.Skip(ElsewhereMark + why)
	}
}

// KernelOnly skips a test if Netdev is under test, as UserspaceOnly does on System.
func KernelOnly(t testing.TB, why string) {
	t.Helper()
	if UnderTest(t) == Netdev {
		t.Skip(ElsewhereMark + why)
	}
}

// LinuxFrom skips a test on kernels older than major.minor, the first that supports what is tested. The pass on the
// newest kernel does; make test-kernel LINUX=6.1 may not.
func LinuxFrom(t testing.TB, major, minor int, what string) {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var isMajor, isMinor int
	if _, err := fmt.Sscanf(string(release), "%d.%d", &isMajor, &isMinor); err != nil {
		t.Fatalf("release of the kernel, %q: %v", release, err)
	}
	if isMajor < major || isMajor == major && isMinor < minor {
		t.Skipf("%sLinux %d.%d has no %s", ElsewhereMark, isMajor, isMinor, what)
	}
}

// Options of Start. The zero value is the dummy datapath.
type Options struct {
	Datapath Datapath
	// Netns is the file of the network namespace (such as /run/netns/NAME) in which ovs-vswitchd runs. Netdev and
	// System require it.
	Netns string
}

// OVS is a running Open vSwitch that belongs to one test. Its methods fail
// the test on error, so they must be called from the test's own goroutine.
type OVS struct {
	// Dir holds sockets, database and logs; it is absolute and short, since the path of a unix socket is limited to 108
	// bytes.
	Dir string
	// DBSocket is the path of ovsdb-server's socket, without "unix:".
	DBSocket string
	// Server is ovsdb-server, Vswitchd is ovs-vswitchd.
	Server, Vswitchd *Daemon

	t        testing.TB
	datapath Datapath
	env      []string
	starts   int // of ovs-vswitchd
}

// Start starts an Open vSwitch without bridges. It ends with the test.
func Start(t testing.TB, opt Options) *OVS {
	t.Helper()
	if opt.Datapath == "" {
		opt.Datapath = Dummy
	}
	if opt.Datapath != Dummy && (opt.Netns == "" || os.Geteuid() != 0) {
		t.Fatalf("ovstest: the %s datapath needs root and Options.Netns", opt.Datapath)
	}
	dir, err := os.MkdirTemp("/tmp", "ovs") // t.TempDir() is too long for sockets
	if err != nil {
		t.Fatalf("ovstest: %v", err)
	}
	o := &OVS{Dir: dir, DBSocket: filepath.Join(dir, "db.sock"), t: t, datapath: opt.Datapath}
	for _, name := range []string{"RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR"} {
		o.env = append(o.env, "OVS_"+name+"="+dir)
	}
	o.env = append(os.Environ(), o.env...)
	t.Cleanup(o.stop)

	o.mustRun("ovsdb-tool", "create", filepath.Join(dir, "conf.db"), schema(t))
	o.Server = o.daemon("ovsdb-server", nil, filepath.Join(dir, "conf.db"), "--remote=punix:"+o.DBSocket)
	o.Server.ready = func() error { return dial(o.DBSocket) }
	o.Server.Start()
	o.Ctl("--no-wait", "init")

	vswitchd := []string{"unix:" + o.DBSocket}
	if opt.Datapath != System {
		vswitchd = append(vswitchd, "--disable-system")
	}
	if opt.Datapath == Dummy {
		// "override" would replace tunnel ports as well, by a dummy that
		// accepts every option and encapsulates nothing.
		vswitchd = append(vswitchd, "--enable-dummy=system", "--disable-system-route")
	}
	o.Vswitchd = o.daemon("ovs-vswitchd", enter(opt.Netns), vswitchd...)
	o.Vswitchd.ready = o.vswitchdReady
	o.Vswitchd.Start()
	for _, d := range []*Daemon{o.Server, o.Vswitchd} {
		version, err := o.appctl(d.name, "version", nil)
		if err == nil {
			err = ovsrelease.Verify(version)
		}
		if err != nil {
			t.Fatalf("ovstest: %s: %v", d.name, err)
		}
	}
	return o
}

// NameSocket links the name that the control socket has on a node (ovs-vswitchd.PID.ctl) to that of this ovs-vswitchd.
func (o *OVS) NameSocket() {
	o.t.Helper()
	name := fmt.Sprintf("ovs-vswitchd.%d.ctl", o.Vswitchd.PID())
	if err := os.Symlink("ovs-vswitchd.ctl", filepath.Join(o.Dir, name)); err != nil {
		o.t.Fatalf("ovstest: %v", err)
	}
}

// Mgmt is the path of the socket on which ovs-vswitchd serves OpenFlow for
// bridge (ovs-vswitchd(8), "OpenFlow management").
func (o *OVS) Mgmt(bridge string) string { return filepath.Join(o.Dir, bridge+".mgmt") }

func (o *OVS) daemon(program string, prefix []string, args ...string) *Daemon {
	argv := append(prefix, find(o.t, program))
	argv = append(argv, args...)
	argv = append(argv, "--no-chdir", "-vconsole:off", "-vfile:info",
		"--log-file="+filepath.Join(o.Dir, program+".log"),
		"--pidfile="+filepath.Join(o.Dir, program+".pid"), "--unixctl="+o.unixctl(program))
	return &Daemon{t: o.t, name: program, argv: argv, env: o.env, log: filepath.Join(o.Dir, program+".log")}
}

func (o *OVS) unixctl(program string) string { return filepath.Join(o.Dir, program+".ctl") }

// vswitchdReady returns nil once ovs-vswitchd has read the database, so that the bridges of an earlier start are
// restored. ovs-vsctl waits for that by itself, but only when it has something to write.
func (o *OVS) vswitchdReady() error {
	if err := dial(o.unixctl("ovs-vswitchd")); err != nil {
		return err
	}
	o.starts++
	_, err := o.Run("ovs-vsctl", "set", "Open_vSwitch", ".", fmt.Sprintf("external_ids:ovstest-start=%d", o.starts))
	return err
}

func (o *OVS) stop() {
	for _, d := range []*Daemon{o.Vswitchd, o.Server} {
		if d != nil {
			if o.t.Failed() {
				o.t.Log(tail(d.log))
			}
			d.Kill()
		}
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		o.t.Errorf("ovstest: %v", err)
	}
}

// patience is how long daemons and tools may take. Most take milliseconds; a busy machine can stall for seconds, and an
// ovs-vswitchd in User-Mode Linux more than once.
const patience = time.Minute

// toolLimit makes a tool itself report the timeout, shortly before it would be killed.
const toolLimit = "--timeout=55"

// Run runs one of the Open vSwitch tools against this instance and returns its output. The tool is killed after
// patience: without a limit it can hang forever on a switch that does not answer.
func (o *OVS) Run(tool string, args ...string) (string, error) {
	switch tool {
	case "ovs-vsctl":
		args = append([]string{"--db=unix:" + o.DBSocket, toolLimit}, args...)
	case "ovs-ofctl":
		args = append([]string{toolLimit, "-O", "OpenFlow15"}, args...)
	case "ovs-appctl":
		args = append([]string{toolLimit, "-t", o.unixctl("ovs-vswitchd")}, args...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, find(o.t, tool), args...)
	cmd.Env = o.env
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

func (o *OVS) mustRun(tool string, args ...string) string {
	o.t.Helper()
	out, err := o.Run(tool, args...)
	if err != nil {
		o.t.Fatalf("ovstest: %v", err)
	}
	return out
}

// Ctl runs ovs-vsctl.
func (o *OVS) Ctl(args ...string) string { o.t.Helper(); return o.mustRun("ovs-vsctl", args...) }

// Appctl runs a command of ovs-vswitchd(8), as ovs-appctl does, and returns its output. It uses the control socket
// directly instead of starting a program: tests trace thousands of packets.
func (o *OVS) Appctl(command string, args ...string) string {
	o.t.Helper()
	text, err := o.appctl("ovs-vswitchd", command, args)
	if err != nil {
		o.t.Fatalf("ovstest: ovs-appctl %s %s: %v", command, strings.Join(args, " "), err)
	}
	return text
}

// appctl is one request to a daemon in JSON-RPC 1.0 (ovs/lib/unixctl.c).
func (o *OVS) appctl(daemon, command string, args []string) (text string, err error) {
	conn, err := net.Dial("unix", o.unixctl(daemon))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	request := map[string]any{"id": 0, "method": command, "params": append([]string{}, args...)}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return "", err
	}
	var answer struct {
		Result string
		Error  any
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return "", err
	}
	if answer.Error != nil {
		return "", fmt.Errorf("%v", answer.Error)
	}
	return answer.Result, nil
}

// Ofctl runs "ovs-ofctl COMMAND unix:BRIDGE.mgmt ARGS" over OpenFlow 1.5.
func (o *OVS) Ofctl(command, bridge string, args ...string) string {
	o.t.Helper()
	return o.mustRun("ovs-ofctl", append([]string{command, "unix:" + o.Mgmt(bridge)}, args...)...)
}

// find locates a program of Open vSwitch. The daemons are often installed outside of an ordinary user's PATH.
func find(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		path, err = exec.LookPath(filepath.Join("/usr/sbin", program))
	}
	if err != nil {
		t.Fatalf("ovstest: %s not found: install Open vSwitch (Debian, Ubuntu: openvswitch-switch; "+
			"Fedora: openvswitch); its service need not run", program)
	}
	return path
}

func schema(t testing.TB) string {
	t.Helper()
	file, err := ovsrelease.Schema()
	if err != nil {
		t.Fatalf("ovstest: %v", err)
	}
	return file
}

// enter is the command prefix that runs a program in a network namespace. It is nsenter because "ip netns exec" creates
// a mount namespace as well.
func enter(netns string) []string {
	if netns == "" {
		return nil
	}
	return []string{"nsenter", "--net=" + netns, "--"}
}

func dial(socket string) error {
	conn, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return err
	}
	return conn.Close()
}
