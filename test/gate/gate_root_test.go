package gate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

var binDir string

func TestMain(m *testing.M) { labtest.Main(m, &binDir) }

const node = "node1"

// calls is the number of ADDs and DELs that are counted, one after the other.
const calls = 10

// most is the maximum cost of one call for the agent. The first three are exact. Of the others there were 230 to 430
// and 8,500 in an ADD, 67 and 8,200 in a DEL; the rest is for the agent's other work: it resyncs every 15 s.
type most struct {
	transactions, operations, flows float64
	systemCalls, allocations        float64
}

func TestRootCounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	l, err := lab.Up(t.Context(), lab.Options{Dir: filepath.Join(t.TempDir(), "lab"), BinDir: binDir,
		Datapath: vswitch.Datapath(ovstest.UnderTest(t)), ProductIntervals: true,
		Config: []byte("reachability: none\n")}) // agent/reach and test/scale count what probing costs
	must(t, err)
	t.Cleanup(func() { must(t, lab.Down(context.Background(), l.Dir(), nil)) })
	call := func(verb lab.Verb, i int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if out, err := l.CNI(ctx, node, verb, fmt.Sprintf("default/p%d", i)); err != nil {
			t.Fatal(verb, err, out)
		}
	}
	call(lab.ADD, -1) // initialisation is done
	call(lab.DEL, -1)

	// An ADD writes Interface, Port, the bridge's list of ports and next_cfg, and 9 flows for each of two families, and
	// 2 by which the pod is a client of Services, which have IPv4 alone here; a DEL marks the port as retired.
	count(t, l, "ADD", func(i int) { call(lab.ADD, i) },
		most{transactions: 1, operations: 4, flows: 20, systemCalls: 500, allocations: 12_000})
	tables(t, l)
	count(t, l, "DEL", func(i int) { call(lab.DEL, i) },
		most{transactions: 1, operations: 1, flows: 20, systemCalls: 150, allocations: 12_000})
}

// count makes calls, and compares the cost of each with its maximum.
func count(t *testing.T, l *lab.Lab, verb string, call func(i int), may most) {
	t.Helper()
	state, err := l.AgentState(t.Context(), node)
	must(t, err)
	before := metrics(t, l)
	stop := follow(t, state.PID)
	for i := range calls {
		call(i)
	}
	trace := stop()
	answered := withoutRemovals(trace)
	after := metrics(t, l)
	per := func(n float64) float64 { return n / calls }
	changed := func(name string) float64 { return per(after[name] - before[name]) }
	flows := 0.0
	for _, change := range []string{"added", "modified", "deleted"} {
		flows += changed(fmt.Sprintf("fairlead_flow_changes_total{change=%q}", change))
	}
	for _, c := range []struct {
		what      string
		got, most float64
		exact     bool
	}{
		{"transactions of OVSDB", per(float64(strings.Count(answered, `\"method\":\"transact\"`))), may.transactions, true},
		{"operations of OVSDB", per(float64(strings.Count(answered, `\"op\":\"`))), may.operations, true},
		{"flows changed", flows, may.flows, true},
		{"system calls", per(float64(len(systemCalls(trace)))), may.systemCalls, false},
		{"allocations", changed("go_memstats_mallocs_total"), may.allocations, false},
	} {
		t.Logf("%s: %.1f %s", verb, c.got, c.what)
		if c.got > c.most || c.exact && c.got != c.most {
			t.Errorf("%s: %.1f %s, want %.0f", verb, c.got, c.what, c.most)
		}
	}
}

// withoutRemovals is a trace without the transactions that remove ports: these follow the answer to a DEL, and how many
// ports one removes is random.
func withoutRemovals(trace string) string {
	var kept strings.Builder
	for line := range strings.Lines(trace) {
		if !strings.Contains(line, `[\"ports\",\"delete\",`) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// follow records the system calls of a process until stop is called.
func follow(t *testing.T, pid int) (stop func() (trace string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	var out bytes.Buffer
	cmd := exec.Command("strace", "-f", "-qq", "-s", "100000", "-o", file, "-p", strconv.Itoa(pid))
	cmd.Stderr = &out
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() }) // kills the tracer; it may have exited
	for limit := time.Now().Add(time.Minute); !traced(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("strace does not begin: %s", out.String())
		}
	}
	return func() string {
		must(t, cmd.Process.Signal(syscall.SIGINT))
		cmd.Wait() // it exits by the signal
		text, err := os.ReadFile(file)
		must(t, err)
		return string(text)
	}
}

// traced reports whether all threads of a process are traced.
func traced(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "TracerPid:\t0\n")
	})
}

// systemCalls are the names of the calls in a trace except those by which threads wait and memory is managed: their
// number is random.
func systemCalls(trace string) (names []string) {
	name := regexp.MustCompile(`^\d+ +([a-z0-9_]+)\(`)
	chance := regexp.MustCompile(`^(futex|epoll_.*|nanosleep|clock_.*|sched_.*|m(map|unmap|advise|protect)|tgkill|getpid|rt_sig.*|clone3?|set_robust_list|rseq|sigaltstack|gettid|prctl)$`)
	for line := range strings.Lines(trace) {
		if m := name.FindStringSubmatch(line); m != nil && !chance.MatchString(m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

func metrics(t *testing.T, l *lab.Lab) map[string]float64 {
	t.Helper()
	text, err := l.NodeExec(t.Context(), node, "curl", "-sf", "http://127.0.0.1:10350/metrics")
	must(t, err)
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			out[name], err = strconv.ParseFloat(value, 64)
			must(t, err)
		}
	}
	return out
}

// tables checks that a packet from pod to pod of one node traverses at most four tables, and none twice.
func tables(t *testing.T, l *lab.Lab) {
	t.Helper()
	steps, err := l.Trace(t.Context(), "default/p0", "default/p1")
	must(t, err)
	table := regexp.MustCompile(`^\s*table (\d+) `)
	var passed []string
	for _, line := range steps {
		if m := table.FindStringSubmatch(line); m != nil {
			passed = append(passed, m[1])
		}
	}
	text := strings.Join(steps, "\n")
	if len(passed) == 0 || len(passed) > 4 || strings.Contains(text, "recirc") {
		t.Errorf("a packet takes tables %v, want 4 at most and no recirculation:\n%s", passed, text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
