package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

func TestRootNodesAndOutsideTalk(t *testing.T) {
	for _, f := range []underlay.IPFamily{underlay.IPv4, underlay.IPv6, underlay.Dual} {
		t.Run(string(f), func(t *testing.T) {
			l := up(t, Options{Nodes: 2, IPFamily: f})
			targets := slices.Concat(f.NodeAddrs(2), f.GatewayAddrs(), f.FarAddrs())
			if want := map[underlay.IPFamily]int{underlay.IPv4: 3, underlay.IPv6: 3, underlay.Dual: 6}[f]; len(targets) != want {
				t.Fatalf("%d targets, want %d", len(targets), want)
			}
			for _, to := range targets {
				ping(t, nodeExec(t, l, "node1", "ping", "-c3", "-i0.02", "-w30", to.Addr().String()))
			}
			for _, to := range f.NodeAddrs(1) {
				ping(t, nodeExec(t, l, underlay.Outside, "ping", "-c3", "-i0.02", "-w30", to.Addr().String()))
			}
			for _, node := range l.Nodes() {
				if got := nodeExec(t, l, node, "hostname"); got != node+"\n" {
					t.Errorf("%s calls itself %q", node, got)
				}
			}
		})
	}
}

// ping expects three replies without duplicates. Call ping(8) with -w: otherwise it gives up on the last reply after
// two round trips, too early on a busy machine. With -w it sends more than three requests if replies take long.
func ping(t *testing.T, out string) {
	t.Helper()
	if !regexp.MustCompile(` ([3-9]|\d\d+) received`).MatchString(out) || strings.Contains(out, "DUP!") || strings.Contains(out, "duplicates") {
		t.Errorf("want 3 answers, each once:\n%s", out)
	}
}

// TCP with large segments passes between the host outside and the nodes: all checksums are complete.
func TestRootLargeTCPPasses(t *testing.T) {
	l := up(t, Options{Nodes: 2, IPFamily: underlay.IPv4})
	addrs := map[string]string{underlay.Outside: "192.168.77.1", "node1": "192.168.77.11"}
	for _, pair := range [][2]string{{underlay.Outside, "node1"}, {"node1", underlay.Outside}, {"node2", "node1"}} {
		if n, err := transfer(t, l, pair[0], pair[1], addrs[pair[1]], 5_000_000); n != 5_000_000 || err != nil {
			t.Errorf("%s to %s: %d of 5000000 bytes, %v", pair[0], pair[1], n, err)
		}
	}
}

// transfer sends size bytes over TCP from one host to another and returns how many arrived.
func transfer(t *testing.T, l *Lab, from, to, addr string, size int64) (int64, error) {
	sender, err := l.Host(from)
	if err != nil {
		return 0, err
	}
	receiver, err := l.Host(to)
	if err != nil {
		return 0, err
	}
	var listener net.Listener
	err = receiver.Do(func() error {
		listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
		return err
	})
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	limit := labtest.Limit(10 * time.Second)
	sent := make(chan error, 1)
	go func() {
		var conn net.Conn
		err := sender.Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", listener.Addr().String(), limit)
			return err
		})
		if err == nil {
			conn.SetDeadline(time.Now().Add(limit))
			_, err = conn.Write(make([]byte, size))
			conn.Close()
		}
		sent <- err
	}()
	listener.(*net.TCPListener).SetDeadline(time.Now().Add(limit))
	conn, err := listener.Accept()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(limit))
	n, err := io.Copy(io.Discard, conn)
	return n, errors.Join(err, <-sent)
}

func TestRootEveryAddressAnswersARPOnce(t *testing.T) {
	l := up(t, Options{Nodes: 2, IPFamily: underlay.IPv4})
	outside, err := l.Host(underlay.Outside)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 2; n++ {
		addr := underlay.IPv4.NodeAddrs(n)[0].Addr()
		// On a busy machine ovs-vswitchd does not read a new port at once, and arpReplies sends its request only once.
		nodeExec(t, l, underlay.Outside, "ping", "-c1", "-w30", addr.String())
		macs := arpReplies(t, outside, "", "eth0", netip.MustParseAddr("192.168.77.1"), addr, 1)
		if want := []string{underlay.NodeMAC(n).String()}; !slices.Equal(macs, want) {
			t.Errorf("ARP for %s was answered by %v, want %v", addr, macs, want)
		}
	}
}

func TestRootOneLabPerDirectory(t *testing.T) {
	l := up(t, Options{Nodes: 1})
	_, err := Up(t.Context(), Options{Nodes: 1, Dir: l.dir, BinDir: binDir, NoAgent: true})
	if err == nil || !strings.Contains(err.Error(), "a lab is up in "+l.dir) {
		t.Errorf("a second lab in the directory: %v", err)
	}
	ping(t, nodeExec(t, l, "node1", "ping", "-c3", "-i0.02", "-w30", "192.168.77.1")) // the first lab is not affected

	t.Run("a second one elsewhere with the same addresses", func(t *testing.T) {
		other := up(t, Options{Nodes: 1})
		ping(t, nodeExec(t, other, "node1", "ping", "-c3", "-i0.02", "-w30", "192.168.77.1"))
	})
	ping(t, nodeExec(t, l, "node1", "ping", "-c3", "-i0.02", "-w30", "192.168.77.1"))
}

func TestRootNotALabsDirectory(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(t.Context(), Options{Dir: dir, BinDir: binDir, NoAgent: true}); err == nil ||
		!strings.Contains(err.Error(), "is not empty") {
		t.Errorf("up in a directory with a file: %v", err)
	}
	if err := Down(t.Context(), dir, nil); err != nil {
		t.Errorf("down where no lab is: %v", err)
	}
	if !exists(file) {
		t.Error("the file is gone")
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "no lab is up in "+dir) {
		t.Errorf("opening it: %v", err)
	}
}

// Down removes a lab in any broken state; up's Cleanup checks that nothing is left.
func TestRootDownOfABrokenLab(t *testing.T) {
	for name, destroy := range map[string]func(*testing.T, *Lab){
		"runner killed": func(t *testing.T, l *Lab) {
			if err := l.RunnerKill(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"runner stopped for good": func(t *testing.T, l *Lab) {
			if err := unix.Kill(l.RunnerPID(), unix.SIGSTOP); err != nil {
				t.Error(err)
			}
		},
		"Open vSwitch killed and its files gone": func(t *testing.T, l *Lab) {
			if err := l.OVSKill(labtest.Within(t, 5*time.Second), "node1"); err != nil {
				t.Error(err)
			}
			if err := os.RemoveAll(filepath.Join(l.path("hosts/node1/root/run/openvswitch"))); err != nil {
				t.Error(err)
			}
		},
		"records gone": func(t *testing.T, l *Lab) {
			for _, name := range []string{"lab.json", "runner.pid", "pods", "manifests"} {
				if err := os.RemoveAll(l.path(name)); err != nil {
					t.Error(err)
				}
			}
		},
		"a namespace unpinned": func(t *testing.T, l *Lab) {
			if err := unix.Unmount(l.path("hosts/node1/ns/mnt"), unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := up(t, Options{Nodes: 1})
			background := exec.Command("sh", "-c", "sleep 1000 & exec sleep 1000")
			h, err := l.Host("node1")
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Start(background); err != nil {
				t.Fatal(err)
			}
			destroy(t, l)
			for range 2 {
				if err := Down(t.Context(), l.dir, nil); err != nil {
					t.Error(err)
				}
			}
			if err := background.Wait(); err == nil {
				t.Error("a process on the node was not killed")
			}
		})
	}
}

// An up that is interrupted at any step leaves nothing.
func TestRootUpInterrupted(t *testing.T) {
	needRoot(t)
	for step := 0; ; step++ {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		dir := filepath.Join(t.TempDir(), "lab")
		l, err := Up(ctx, Options{Nodes: 2, Dir: dir, BinDir: binDir, NoAgent: true, Progress: func(string) {
			if n == step {
				cancel()
			}
			n++
		}})
		cancel()
		if err == nil { // up has no further step
			if step < 4 {
				t.Errorf("only %d steps", step)
			}
			if err := Down(t.Context(), l.dir, nil); err != nil {
				t.Error(err)
			}
			labWatch{dir: dir}.checkGone(t)
			return
		}
		if !strings.Contains(err.Error(), "interrupted") {
			t.Errorf("step %d: %v", step, err)
		}
		labWatch{dir: dir}.checkGone(t)
	}
}

// An up that was killed leaves a state that down can remove.
func TestRootDownAfterUpWasKilled(t *testing.T) {
	needRoot(t)
	for _, after := range []time.Duration{5, 20, 40, 80, 120, 200, 300} {
		dir := filepath.Join(t.TempDir(), "lab")
		cmd := exec.Command(filepath.Join(binDir, "lab"), "up", "--no-agent", "--dir", dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after * time.Millisecond) // at any step
		if err := cmd.Process.Kill(); err != nil && err != os.ErrProcessDone {
			t.Fatal(err)
		}
		cmd.Wait()
		w := labWatch{dir: dir}
		if l := (&Lab{dir: dir}); exists(l.path("hosts/node2/ns/mnt")) {
			w = watchLab(t, l)
		}
		if err := Down(t.Context(), dir, nil); err != nil {
			t.Error(err)
		}
		w.checkGone(t)
	}
}
