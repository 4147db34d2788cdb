package allocation

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

func newDirectory(t *testing.T, path string) *Directory {
	t.Helper()
	d, err := NewDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDirectoryStore(t *testing.T) {
	checkStore(t, newDirectory(t, filepath.Join(t.TempDir(), "not", "yet")))
}

// A file that cannot be read may be a running pod's: its address is not allocated until it is released explicitly.
// Other files are left alone.
func TestDirectoryUnreadable(t *testing.T) {
	d := newDirectory(t, t.TempDir())
	made, err := d.Create(t.Context(), allocationOf("10.2.0.9", "p", "n1", "c1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.file(made.Name), d.file("10.2.0.5")); err != nil { // an external mv
		t.Fatal(err)
	}
	for name, content := range map[string]string{"10.2.0.1": "", "10.2.0.2": "{", "10.2.0.3": "null", "README": "x"} {
		if err := os.WriteFile(d.file(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.List(t.Context(), Filter{Pool: "any"})
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v, want the four addresses", list, err)
	}
	for _, a := range list {
		var taken *TakenError
		_, err := d.Create(t.Context(), allocationOf(a.Spec.Address, "p", "n1", "c1"))
		if !errors.As(err, &taken) || !strings.Contains(err.Error(), "is allocated to container "+Unreadable) {
			t.Errorf("%s: %v", a.Name, err)
		}
		if err := d.Delete(t.Context(), a); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
	}
	if _, err := os.Stat(d.file("README")); err != nil {
		t.Error(err)
	}
}

// A missing directory is an error, not an empty store.
func TestDirectoryGone(t *testing.T) {
	d := newDirectory(t, filepath.Join(t.TempDir(), "d"))
	if err := os.Remove(d.path); err != nil {
		t.Fatal(err)
	}
	if list, err := d.List(t.Context(), Filter{}); err == nil {
		t.Errorf("List: %v", list)
	}
	if _, err := d.Create(t.Context(), allocationOf("10.2.0.9", "p", "n1", "c1")); err == nil {
		t.Error("Create succeeded")
	}
}

// childDir in the environment makes the test binary a process that allocates and releases addresses in that directory
// until it is killed.
const childDir = "FAIRLEAD_TEST_ALLOCATIONS_DIR"

// writeForEver logs to stdout what it has done: "+ NAME UID" after a Create, "? NAME" before a Delete. Each line is one
// write, so it is never torn.
func writeForEver(path string) {
	d, err := NewDirectory(path)
	if err != nil {
		fmt.Println("!", err)
		os.Exit(1)
	}
	for g := range 4 {
		go func() {
			for i := 0; ; i++ {
				addr := fmt.Sprintf("10.%d.%d.%d", g, i/100%200, i%100)
				if err := writeOnce(d, addr); err != nil {
					fmt.Println("!", err)
					os.Exit(1)
				}
			}
		}()
	}
	select {}
}

func writeOnce(d *Directory, addr string) error {
	ctx := context.Background()
	a, err := d.Create(ctx, allocationOf(addr, "p", "n", fmt.Sprint(os.Getpid())))
	if taken := (*TakenError)(nil); errors.As(err, &taken) {
		return nil // left by an earlier process
	}
	if err != nil {
		return err
	}
	fmt.Println("+", a.Name, a.UID)
	if rand.IntN(3) == 0 {
		return nil
	}
	a.Spec.Phase = api.PhaseCooling
	if a, err = d.Update(ctx, a); err != nil {
		return err
	}
	fmt.Println("?", a.Name)
	return d.Delete(ctx, a)
}

// The process may be killed at any moment: it holds what it reported, every file is complete, and the next process
// continues.
func TestDirectoryKilledAtAnyMoment(t *testing.T) {
	d := newDirectory(t, t.TempDir())
	held, left := map[string]string{}, 0
	for range 25 {
		for _, line := range runAndKill(t, d.path) {
			switch f := strings.Fields(line); f[0] {
			case "+":
				held[f[1]] = f[2]
			case "?":
				delete(held, f[1])
			default:
				t.Fatal(line)
			}
		}
		for name, uid := range held {
			if a, err := d.Get(t.Context(), name); err != nil || string(a.UID) != uid {
				t.Fatalf("%s was taken as %s: %+v, %v", name, uid, a, err)
			}
		}
		list, err := d.List(t.Context(), Filter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if a.Spec.Owner.ContainerID == Unreadable {
				t.Errorf("%s is no whole file", a.Name)
			}
			if held[a.Name] == "" { // as the agent does with addresses that no pod has
				left++
				if err := d.Delete(t.Context(), a); err != nil {
					t.Error(err)
				}
			}
		}
	}
	t.Logf("%d addresses are held, %d were left by calls without an answer", len(held), left)
	if len(held) == 0 || left == 0 {
		t.Error("the kills never came between a change and its answer: the test shows nothing")
	}
}

// runAndKill starts the process, kills it after some milliseconds of work and returns its output.
func runAndKill(t *testing.T, dir string) (lines []string) {
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
	r := bufio.NewReader(out)
	first, err := r.ReadString('\n')
	if err != nil {
		t.Errorf("the child said nothing: %v", err)
	}
	killer := time.AfterFunc(rand.N(20*time.Millisecond), func() { cmd.Process.Kill() })
	defer killer.Stop()
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	cmd.Wait() // the error is that it was killed
	for line := range strings.Lines(first + string(rest)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}
