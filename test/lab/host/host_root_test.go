package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// labDir is a directory on a private mount of its own, as Create requires.
func labDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: hosts of a lab are namespaces, and making them needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("lab-test", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

func create(t *testing.T, dir, name string, binds ...Bind) Host {
	t.Helper()
	h, err := Create(dir, name, binds...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := Kill(ctx, h); err != nil {
			t.Error(err)
		}
		if err := h.Destroy(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func output(t *testing.T, h Host, script string) string {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command("sh", "-ec", script)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &out)
	}
	return out.String()
}

func TestRootHostIsAMachineOfItsOwn(t *testing.T) {
	dir := labDir(t)
	shared := t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "seen"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	a := create(t, dir, "hosta", Bind{Source: shared, Target: "/etc/fairlead/manifests", ReadOnly: true})
	b := create(t, dir, "hostb")

	got := output(t, a, `hostname; ls /sys/class/net; ip -br link show up | cut -d' ' -f1
		ls /etc/fairlead/manifests; ls /run /opt/cni /var/lib/fairlead /etc/openvswitch | grep -v '^/' | grep . || echo empty
		touch /etc/fairlead/manifests/x 2>/dev/null && echo writable; touch /etc/made-on-a /run/made-on-a; id -u root`)
	if want := "hosta\nlo\nlo\nseen\nempty\n0\n"; got != want {
		t.Errorf("host a shows\n%s\nwant\n%s", got, want)
	}
	for _, file := range []string{"/etc/made-on-a", "/run/made-on-a"} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s appeared on the machine", file)
		}
	}
	if _, err := os.Stat(a.Private("/run/made-on-a")); err != nil {
		t.Errorf("a file in a private directory is not seen from the machine: %v", err)
	}
	if got := output(t, b, "hostname; ls /etc /run | grep made || true"); got != "hostb\n" {
		t.Errorf("host b shows %q, want only its name", got)
	}
}

func TestRootNetnsOnAHost(t *testing.T) {
	h := create(t, labDir(t), "hosta")
	const file = "/run/pod"
	if h.HasNetns(file) {
		t.Error("a namespace that was not made is there")
	}
	if err := h.MakeNetns(file); err != nil {
		t.Fatal(err)
	}
	if err := h.MakeNetns(file); err == nil {
		t.Error("the same namespace could be made twice")
	}
	if !h.HasNetns(file) {
		t.Error("the namespace is not there")
	}
	err := h.DoNet(file, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "inpod"}})
	})
	if err != nil {
		t.Fatal(err)
	}
	got := output(t, h, "ls /sys/class/net; nsenter --net="+file+" ip -br link | cut -d' ' -f1")
	if got != "lo\nlo\ninpod\n" {
		t.Errorf("interfaces of host and pod: %q", got)
	}
	for range 2 {
		if err := h.RemoveNetns(file); err != nil {
			t.Error(err)
		}
	}
	if h.HasNetns(file) {
		t.Error("the namespace is still there")
	}
	if _, err := os.Stat(h.Private(file)); err == nil {
		t.Error("its file is still there")
	}
}

func TestRootKillEndsTheHostsProcessesAndNoOthers(t *testing.T) {
	dir := labDir(t)
	a, b := create(t, dir, "hosta"), create(t, dir, "hostb")
	start := func(h Host, argv ...string) *exec.Cmd {
		cmd := exec.Command(argv[0], argv[1:]...)
		if err := h.Start(cmd); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ofB := start(b, "sleep", "1000")
	outside := exec.Command("sleep", "1000")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer outside.Process.Kill()
	// One in the host's namespaces, and one that shares only the UTS namespace with it.
	ofA := []*exec.Cmd{start(a, "sleep", "1000"), start(a, "unshare", "--net", "--mount", "sleep", "1000")}

	if !a.Runs(ofA[0].Process.Pid) || a.Runs(ofB.Process.Pid) || a.Runs(outside.Process.Pid) {
		t.Error("Runs does not find the processes of host a")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := Kill(ctx, a); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range ofA {
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
			t.Errorf("%v ended with %v, want a kill", cmd.Args, cmd.ProcessState)
		}
	}
	for _, cmd := range []*exec.Cmd{ofB, outside} {
		if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
			t.Errorf("%v is gone too: %v", cmd.Args, err)
		}
	}
	if err := Kill(ctx, b); err != nil {
		t.Fatal(err)
	}
	if err := ofB.Wait(); err == nil {
		t.Error("the process of host b was not killed")
	}
}

// A process whose threads come and go, like an agent's that enter pod namespaces, always counts as running.
func TestRootRunsWhileThreadsExit(t *testing.T) {
	h := create(t, labDir(t), "threads")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, visits)
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for i := range 2000 {
		if !h.Runs(cmd.Process.Pid) {
			t.Fatalf("a process that runs was taken for dead by look %d", i)
		}
	}
}

// End returns only when the process has closed its sockets, however many threads it had.
func TestRootEndWaitsForAllThreads(t *testing.T) {
	h := create(t, labDir(t), "threads")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	socket := filepath.Join(t.TempDir(), "socket")
	p := Process{Host: h, Name: "serves"}
	for range 50 {
		if err := p.Start(self, serves, socket); err != nil {
			t.Fatal(err)
		}
		for {
			if conn, err := net.Dial("unix", socket); err == nil {
				conn.Close()
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("it does not serve: %s", p.Tail(10))
			}
		}
		if err := p.End(ctx, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := net.Dial("unix", socket); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("the socket of what has ended: %v", err)
		}
	}
}

// serves makes the test binary listen on a socket while it has many threads, so that its exit takes a while.
const serves = "serve-with-threads"

func serve(socket string) {
	for range 30 {
		go func() {
			runtime.LockOSThread()
			unix.Pause()
		}()
	}
	_ = os.Remove(socket)
	if l, err := net.Listen("unix", socket); err == nil {
		for {
			_, _ = l.Accept()
		}
	}
	os.Exit(1)
}

// visits makes the test binary behave like an agent: each thread that has been in another network namespace exits.
const visits = "visit-namespaces"

func visit() {
	for {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread ends
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}()
		<-done
	}
}

func TestRootDestroyLeavesNothing(t *testing.T) {
	dir := labDir(t)
	a := create(t, dir, "hosta")
	b := create(t, dir, "hostb") // created later: its mounts were copied when a's pins existed
	if err := a.MakeNetns("/run/pod"); err != nil {
		t.Fatal(err)
	}
	alive, err := a.watchNet()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	if a.Exists() {
		t.Error("the directory is still there")
	}
	mounts, err := Mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.Target, a.Dir) {
			t.Errorf("mount %s is still there", m.Target)
		}
	}
	deadline := time.Now().Add(time.Minute) // the kernel destroys namespaces in a work queue
	for alive() && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if alive() {
		t.Error("the network namespace lives on")
	}
	if output(t, b, "hostname") != "hostb\n" {
		t.Error("host b suffered")
	}
}

// watchNet moves one end of a veth into the host's network namespace; the other end disappears with the namespace.
func (h Host) watchNet() (alive func() bool, err error) {
	ns, err := os.Open(h.pin("net"))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	watcher := Host{Name: "watcher", Dir: filepath.Join(filepath.Dir(h.Dir), "hostb")}
	err = watcher.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "watch"},
			PeerName: "watched", PeerNamespace: netlink.NsFd(ns.Fd())})
	})
	return func() bool {
		return watcher.Do(func() error { _, err := netlink.LinkByName("watch"); return err }) == nil
	}, err
}

// Namespaces that other users of the machine release while hosts are created cause no error.
func TestRootHostsWhileMountsGo(t *testing.T) {
	dir, done := labDir(t), make(chan struct{})
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	for i := range 4 {
		// Some exist at any time; the oldest is deleted in the way "ip netns" does it.
		others.Go(func() {
			var paths []string
			for n, running := 0, true; running || len(paths) > 0; n++ {
				select {
				case <-done:
					running = false
				default:
				}
				var err error
				if len(paths) < 10 && running {
					path := fmt.Sprintf("/run/netns/flhost-%d-%d-%d", os.Getpid(), i, n)
					paths = append(paths, path)
					err = errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, ""))
				} else {
					err = errors.Join(unix.Unmount(paths[0], unix.MNT_DETACH), os.Remove(paths[0]))
					paths = paths[1:]
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer others.Wait()
	defer close(done)
	for i := range 50 {
		create(t, dir, fmt.Sprint("host", i))
	}
}
