package crash

import (
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// restarts with either signal that must lose no packet.
const restarts = 2

const (
	// lossyRestarts is how many restarts may lose packets on a machine that is not busy.
	lossyRestarts = 4
	// patience bounds the wait for a machine that is too busy for its own Open vSwitch.
	patience = 3 * time.Minute
)

// An agent that is stopped, with either signal, and started again loses no packet and rewrites nothing.
func TestRootRestart(t *testing.T) {
	ovstest.UserspaceOnly(t, "it sends more packets than a guest's one processor can take")
	c := up(t)
	c.apply(t, podYAML("a", node), podYAML("b", node), podYAML("far2", "node2"))
	c.settle(t)
	ways := c.ways(t)
	for i := range restarts {
		t.Run(fmt.Sprintf("SIGKILL %d", i+1), func(t *testing.T) {
			c.unnoticed(t, ways, func(node string) { must(t, c.AgentKill(labtest.Within(t, 5*time.Second), node)) })
		})
		t.Run(fmt.Sprintf("SIGTERM %d", i+1), func(t *testing.T) {
			c.unnoticed(t, ways, func(node string) { must(t, c.AgentStop(labtest.Within(t, 15*time.Second), node)) })
		})
	}
	c.check(t)
}

// unnoticed restarts the agent under streams. A busy machine loses packets by itself, since Open vSwitch's datapath is
// a process here: a loss counts only if that process had a processor when it needed one, if streams between pods of
// the other node, whose agent goes on, lose none meanwhile, and if this node's streams lose none while the other node's
// agent is restarted, which is as much work.
func (c cluster) unnoticed(t *testing.T, ways []way, end func(node string)) {
	t.Helper()
	far, far2 := c.at(t, "far"), c.at(t, "far2")
	all := slices.Clone(ways)
	for i := range far.ips {
		all = append(all, far.to(t, "control", far2, i), far2.to(t, "control", far, i))
	}
	run1s(t, all, func() {}) // neighbours and flows are known
	restart := func(node string) {
		end(node)
		must(t, c.AgentStart(labtest.Within(t, 5*time.Second), node))
		c.readyForCNIOn(t, node)
	}
	local := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return strings.Contains(w.name, "other node") })
	lossy := 0
	for start := time.Now(); lossy < lossyRestarts && time.Since(start) < patience; {
		before, rows := c.flowAges(t), c.rows(t)
		began, waited := time.Now(), c.waited(t)
		lost := run1s(t, all, func() { restart(node) })
		passed := time.Since(began)
		waited = c.waited(t) - waited
		c.untouched(t, before, passed)
		if now := c.rows(t); now != rows {
			t.Errorf("OVSDB before:\n%s\nafter:\n%s", rows, now)
		}
		isControl := func(s string) bool { return strings.HasPrefix(s, "control: ") }
		busy := slices.ContainsFunc(lost, isControl) || waited > passed/3
		if lost = slices.DeleteFunc(lost, isControl); len(lost) == 0 {
			return
		}
		busy = busy || len(run1s(t, local, func() { restart("node2") })) > 0
		if !busy {
			lossy++
		}
		t.Logf("during a restart, on a busy machine: %t (of %s ovs-vswitchd waited %s for a processor); %s", busy, passed,
			waited, strings.Join(lost, "; "))
	}
	t.Errorf("no restart without loss; %d on a machine that was not busy", lossy)
}

// waited is how long ovs-vswitchd's main thread, which forwards all packets, has been ready to run and did not run
// (Documentation/scheduler/sched-stats.rst of Linux).
func (c cluster) waited(t *testing.T) time.Duration {
	t.Helper()
	out := c.exec(t, "sh", "-c", "cat /proc/$(cat /run/openvswitch/ovs-vswitchd.pid)/schedstat")
	var ran, waits int64
	if _, err := fmt.Sscan(out, &ran, &waits); err != nil {
		t.Fatal(out, err)
	}
	return time.Duration(waits)
}

// run1s sends on all paths while f runs, and for a second more, and returns the reports of those that lost packets.
func run1s(t *testing.T, ways []way, f func()) (lost []string) {
	t.Helper()
	streams := start(t, ways, 2*time.Millisecond)
	time.Sleep(300 * time.Millisecond) // of the stream, before
	f()
	time.Sleep(700 * time.Millisecond) // and after
	for i, r := range stopAll(streams) {
		if r.Lost > 0 || r.Sent < 100 {
			lost = append(lost, ways[i].name+": "+r.String())
		}
	}
	return lost
}

// flowAges are the flows of node1 and their ages.
func (c cluster) flowAges(t *testing.T) map[string]time.Duration {
	t.Helper()
	out := c.exec(t, "ovs-ofctl", "-O", "OpenFlow15", "dump-flows", nodestate.Bridge)
	changing := regexp.MustCompile(`duration=([0-9.]+)s, |n_packets=\d+, |n_bytes=\d+, |(idle|hard)_age=\d+, `)
	ages := map[string]time.Duration{}
	for line := range strings.Lines(out) {
		m := changing.FindStringSubmatch(line)
		if m == nil || m[1] == "" {
			continue
		}
		seconds, err := strconv.ParseFloat(m[1], 64)
		must(t, err)
		ages[strings.TrimSpace(changing.ReplaceAllString(line, ""))] = time.Duration(seconds * float64(time.Second))
	}
	return ages
}

// untouched compares the flows with earlier ones, which must all still exist and be as much older.
func (c cluster) untouched(t *testing.T, before map[string]time.Duration, passed time.Duration) {
	t.Helper()
	after := c.flowAges(t)
	if len(before) < 30 || !slices.Equal(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))) {
		t.Errorf("%d flows before, others or more or less after: %d", len(before), len(after))
	}
	for flow, age := range before {
		if grown := after[flow] - age; grown < passed-100*time.Millisecond {
			t.Errorf("rewritten: %s is only %s older after %s", flow, grown, passed)
		}
	}
}

// rows are what an agent could change in OVSDB. Every transaction of an agent increments next_cfg.
func (c cluster) rows(t *testing.T) string {
	t.Helper()
	out := c.exec(t, "ovsdb-client", "transact", `["Open_vSwitch",
		{"op":"select","table":"Open_vSwitch","where":[],"columns":["next_cfg"]},
		{"op":"select","table":"Bridge","where":[],"columns":["_uuid","_version"]},
		{"op":"select","table":"Port","where":[],"columns":["_uuid","_version","name"]},
		{"op":"select","table":"Interface","where":[],"columns":["_uuid","name","ofport","type","options","mac"]}]`)
	rows := strings.Split(strings.NewReplacer("[", "", "]", "", "}", "").Replace(out), "{") // their order is undefined
	for i, r := range rows {
		rows[i] = strings.TrimRight(r, ",\n")
	}
	slices.Sort(rows)
	return strings.Join(rows, "\n")
}

// exec runs a program on node1.
func (c cluster) exec(t *testing.T, argv ...string) string { return execOn(t, c.node, argv...) }

func execOn(t *testing.T, h host.Host, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(labtest.Within(t, 20*time.Second), argv[0], argv[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out.String())
	}
	return out.String()
}
