package nstest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestRootNamespaces(t *testing.T) {
	a, b := New(t), New(t)
	Veth(a, "left", b, "right")
	a.IP("addr add 10.99.0.1/24 dev left")
	b.IP("addr add 10.99.0.2/24 dev right")
	a.Exec("ping", "-c1", "-W5", "10.99.0.2")

	a.Must(func() error {
		_, err := net.InterfaceByName("left")
		return err
	})
	if _, err := net.InterfaceByName("left"); err == nil {
		t.Error("the test's own goroutine sees the namespace's devices")
	}
	fault := errors.New("fault")
	if err := a.Do(func() error { return fault }); err != fault {
		t.Errorf("Do returned %v, want the function's error", err)
	}
	if _, err := a.Run("false"); err == nil {
		t.Error("a program that failed gave no error")
	}
}

func TestRootNothingIsLeft(t *testing.T) {
	var n *NS
	t.Run("inner", func(t *testing.T) { n = New(t) })
	if _, err := os.Stat(n.Path); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", n.Path, err)
	}
}

// ip resolves the peer namespaces of interfaces, and complains, with exit code 0, about each that is deleted meanwhile.
func TestRootNamespacesThatEnd(t *testing.T) {
	a, b := New(t), New(t)
	Veth(a, "left", b, "right")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range 50 {
			name := fmt.Sprintf("fltest-%d-ends%d", os.Getpid(), i)
			_ = exec.Command("ip", "netns", "add", name).Run()
			_ = exec.Command("ip", "netns", "del", name).Run()
		}
	}()
	for during := true; during; {
		select {
		case <-ended:
			during = false
		default:
		}
		if out := a.IP("-o link show left"); strings.Contains(out, "Error") || strings.Count(out, "\n") != 1 {
			t.Errorf("ip link says %q", out)
		}
	}
	if _, err := a.Run("ip", "link", "show", "other"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("an interface that does not exist: %v, without what ip says about it", err)
	}
}

// The namespaces of a killed test process are removed, those of a running one stay.
func TestRootSweep(t *testing.T) {
	Need(t)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	left := fmt.Sprintf("fltest-%d-1", dead.Process.Pid)
	living := fmt.Sprintf("fltest-%d-9999", os.Getpid())
	for _, name := range []string{left, living} {
		ip(t, "netns", "add", name)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	}
	New(t)
	if _, err := os.Stat(dir + "/" + left); !os.IsNotExist(err) {
		t.Errorf("%s, of a dead process, is still there (%v)", left, err)
	}
	if _, err := os.Stat(dir + "/" + living); err != nil {
		t.Errorf("%s, of a living process, was removed", living)
	}
}
