package uml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/uml/kernel"
)

// childScript is the environment variable that makes the test binary run a script in a guest.
const childScript = "FAIRLEAD_UML_TEST_SCRIPT"

func TestMain(m *testing.M) {
	Init()
	if script := os.Getenv(childScript); script != "" {
		c := command("/", script)
		c.Stdout = os.Stdout
		_, err := Run(context.Background(), c)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(Inside) != "" {
		fmt.Fprintln(os.Stderr, "these tests start User-Mode Linux, which does not run in itself")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// command runs a script of sh in dir.
func command(dir, script string) Command {
	k, err := kernel.Get(context.Background(), os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return Command{Kernel: k, Argv: []string{"sh", "-c", script}, Dir: dir, Env: os.Environ(), Memory: 256,
		Timeout: time.Minute}
}

// output runs a script and returns what it wrote to stdout and stderr.
func output(t *testing.T, c Command) (exit int, stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	exit, err = Run(t.Context(), c)
	return exit, out.String(), errs.String(), err
}

func TestUMLCommandAndItsOutput(t *testing.T) {
	dir := t.TempDir()
	c := command(dir, `pwd; echo $WORD $FAIRLEAD_UML; echo no >&2; id -u; printf 'a\r\n\t\001'; cat; exit 7`)
	c.Env = append(c.Env, "WORD=two words")
	exit, stdout, stderr, err := output(t, c)
	if want := dir + "\ntwo words 1\n0\na\r\n\t\x01"; err != nil || exit != 7 || stdout != want || stderr != "no\n" {
		t.Errorf("exit %d, error %v, stdout %q, stderr %q; want 7, %q, no", exit, err, stdout, stderr, want)
	}
}

func TestUMLMuchOutput(t *testing.T) {
	_, stdout, _, err := output(t, command("/", "seq 200000"))
	lines := strings.Split(stdout, "\n")
	if err != nil || len(lines) != 200001 || lines[199999] != "200000" {
		t.Errorf("%d lines, error %v; want 200001", len(lines), err)
	}
}

func TestUMLWritesReachTheHostOnlyWhereAllowed(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	c := command(dir, "echo in >in; mkdir -p sub; echo x >sub/f; echo out >"+other+"/out && cat "+other+"/out")
	c.Writable = []string{dir}
	if exit, stdout, stderr, err := output(t, c); err != nil || exit != 0 || stdout != "out\n" {
		t.Errorf("exit %d, error %v, output %q %q", exit, err, stdout, stderr)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "sub/f")); err != nil || string(data) != "x\n" {
		t.Errorf("in the writable directory: %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(other, "out")); err == nil {
		t.Error("a write outside of it has reached the host")
	}
}

func TestUMLWhatTheDatapathNeeds(t *testing.T) {
	exit, stdout, stderr, err := output(t, command("/", `set -e
ip -o link | wc -l; ip -br link show lo | grep -o UNKNOWN
ip netns add a; ip link add v type veth peer name w netns a; ip -n a link show w >/dev/null
ip netns exec a ip -o link | wc -l
test -c /dev/net/tun; unshare -Urn true; test $(cut -d. -f1 /proc/uptime) -ge 3600
sleep 0.1 & nft add table inet x; iptables -t nat -A POSTROUTING -j MASQUERADE
ls -d /sys/class/net/lo >/dev/null; setsid -f true
for try in $(seq 100); do ! ps -eo stat | grep -q Z || { sleep 0.2; continue; }; echo good; exit; done; echo zombies`))
	if err != nil || exit != 0 || !strings.HasSuffix(stdout, "good\n") {
		t.Errorf("exit %d, error %v, output %q %q", exit, err, stdout, stderr)
	}
}

func TestUMLTimeout(t *testing.T) {
	c := command("/", "echo begun; sleep 100")
	c.Timeout = 10 * time.Second // the test takes all of it, and a guest can stall for seconds
	if _, stdout, _, err := output(t, c); !errors.Is(err, ErrTimeout) || stdout != "begun\n" {
		t.Errorf("error %v, output %q; want a time-out", err, stdout)
	}
}

func TestUMLSignalEndsTheCommand(t *testing.T) {
	if exit, _, _, err := output(t, command("/", "kill -9 $$")); exit != 128+9 || err != nil {
		t.Errorf("exit %d, error %v; want 137", exit, err)
	}
}

func TestUMLErrorsSayWhatIsWrong(t *testing.T) {
	good := command("/", "true")
	for want, change := range map[string]func(*Command){
		`"nosuch": executable file not found in $PATH`: func(c *Command) { c.Argv = []string{"nosuch"} },
		"chdir /nosuch: no such file or directory":     func(c *Command) { c.Dir = "/nosuch" },
		"starting the kernel":                          func(c *Command) { c.Kernel = "/nosuch" },
		"/nosuch is to be writable":                    func(c *Command) { c.Writable = []string{"/nosuch"} },
		// sysrq-trigger is not built in. Killing init panics every kernel.
		"Attempted to kill init": func(c *Command) { c.Argv = []string{"sh", "-c", "kill -SEGV 1; sleep 50"} },
	} {
		c := good
		change(&c)
		if _, _, _, err := output(t, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// However a run ends, nothing of it is left.
func TestUMLNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(child *os.Process, cancel func()){
		"the context":   func(_ *os.Process, cancel func()) { cancel() },
		"kill -9 of us": func(child *os.Process, _ func()) { _ = child.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			var child *os.Process
			if strings.HasPrefix(name, "kill") {
				cmd := exec.Command("/proc/self/exe")
				// No process is created after this output: one that is being created requests to be traced when its
				// parent is dead, and stops forever.
				cmd.Env = append(os.Environ(), childScript+"=echo up; while :; do :; done")
				says, err := cmd.StdoutPipe()
				if err == nil {
					err = cmd.Start()
				}
				if err == nil {
					_, err = io.ReadFull(says, make([]byte, len("up\n")))
				}
				if err != nil {
					t.Fatal(err)
				}
				child = cmd.Process
				go func() { ended <- cmd.Wait() }()
			} else {
				go func() { _, err := Run(ctx, command("/", "sleep 100")); ended <- err }()
			}
			eventually(t, "guest", func() bool { booted, _ := filepath.Glob(tmp + "/*/booted"); return len(booted) == 1 })
			if len(processes(t, tmp)) == 0 {
				t.Fatal("no process of the guest found: this test looks for the wrong thing")
			}
			end(child, cancel)
			if err := <-ended; err == nil {
				t.Error("no error")
			}
			eventually(t, "end of all processes", func() bool { return len(processes(t, tmp)) == 0 })
			if left, _ := os.ReadDir(tmp); child == nil && len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// processes are those with word on their command line; all processes of a guest have the kernel's command line.
func processes(t *testing.T, word string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if line, err := os.ReadFile(f); err == nil && bytes.Contains(line, []byte(word)) {
			pids = append(pids, f)
		}
	}
	return pids
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute: no %s", what)
		}
	}
}
