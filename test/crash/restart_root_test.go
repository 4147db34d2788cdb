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
	"github.com/fairlead-cni/fairlead/test/probe"
)

// restarts with either signal that must lose no packet.
const restarts = 2

// patience bounds the restarts on a machine that is too busy for its own Open vSwitch.
const patience = 3 * time.Minute

// An agent that is stopped, with either signal, and started again loses no packet and rewrites nothing.
func TestRootRestart(t *testing.T) {
	ovstest.UserspaceOnly(t, "it sends more packets than a guest's one processor can take")
	c := up(t)
	c.apply(t, podYAML("a", node), podYAML("b", node))
	c.settle(t)
	ways := c.ways(t)
	controls, remove := c.onOtherBridge(t)
	controls = append(controls, c.controls(t)...)
	for i := range restarts {
		t.Run(fmt.Sprintf("SIGKILL %d", i+1), func(t *testing.T) {
			c.unnoticed(t, ways, controls, func() { must(t, c.AgentKill(labtest.Within(t, time.Minute), node)) })
		})
		t.Run(fmt.Sprintf("SIGTERM %d", i+1), func(t *testing.T) {
			c.unnoticed(t, ways, controls, func() { must(t, c.AgentStop(labtest.Within(t, time.Minute), node)) })
		})
	}
	remove()
	c.check(t)
}

// unnoticed restarts the agent under streams. A busy machine loses packets by itself, since Open vSwitch's datapath is
// a process here. The controls pass through the same process, or the other node's, but nothing that is this agent's. A
// loss that they do not excuse is an error; after one that they excuse, the agent is restarted again.
func (c cluster) unnoticed(t *testing.T, ways, controls []way, end func()) {
	t.Helper()
	run1s(t, slices.Concat(ways, controls), func() {}) // neighbours and flows are known
	for try, began := 1, time.Now(); time.Since(began) < patience; try++ {
		before, rows, at := c.flowAges(t), c.rows(t), time.Now()
		reports := run1s(t, slices.Concat(ways, controls), func() {
			end()
			must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
			c.readyForCNI(t)
		})
		c.untouched(t, before, time.Since(at))
		if now := c.rows(t); now != rows {
			t.Errorf("OVSDB before:\n%s\nafter:\n%s", rows, now)
		}
		lost, control := worst(reports[:len(ways)]), worst(reports[len(ways):])
		t.Logf("try %d: lost | ms: %s; without the agent: %s", try, lost, control)
		if lost.lost == 0 {
			return
		}
		if !probe.Excused(reports[:len(ways)], reports[len(ways):]) {
			for i, w := range ways {
				t.Errorf("a restart loses packets: %s: %s", w.name, reports[i])
			}
			return
		}
	}
	t.Errorf("in %s every restart lost packets, and what the agent has nothing to do with was not well either", patience)
}

// run1s sends on all paths while f runs, and for a second more.
func run1s(t *testing.T, ways []way, f func()) []probe.Report {
	t.Helper()
	streams := start(t, ways, 5*time.Millisecond)
	time.Sleep(300 * time.Millisecond) // streams before f
	f()
	time.Sleep(700 * time.Millisecond) // and after it
	reports := stopAll(streams)
	for i, r := range reports {
		if r.Sent < 50 {
			t.Errorf("%s: not enough was sent: %s", ways[i].name, r)
		}
	}
	return reports
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
	cmd := exec.CommandContext(labtest.Within(t, time.Minute), argv[0], argv[1:]...)
	out := host.Collect(cmd, argv[0])
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out.Text(err))
	}
	return out.Text(err)
}
