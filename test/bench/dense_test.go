package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// Numbers of pods on the node while one more is measured: kubelet's default maximum, and nearly the 253 addresses of a
// /24 podCIDR, which the lab's nodes have.
const kubelets, fullest = 110, 250

// The costs of each of our ADDs, until ovs-vswitchd has no more work for it.
const (
	reconfigured = "reconfigurations of ovs-vswitchd"
	ofSwitch     = "CPU of ovs-vswitchd"
	ofAgent      = "CPU of the agent"
)

// curve is ADD and DEL as a function of the number of pods that remain on the node.
type curve struct {
	bed *bed
	// datapath is its name in plots, prefix that in rows, and note the explanation of the costs.
	datapath, prefix, note string
	lines                  []report.Line
}

// at fills both networks up to that many pods, measures one more, and adds the rows and points. A target of 0 means
// none.
func (c *curve) at(b *testing.B, stay, rounds int, add, del float64) {
	b.Helper()
	c.bed.fill(b, stay)
	pods := ""
	if stay > 0 {
		pods = fmt.Sprintf(", %d pods stay", stay)
	}
	t := c.bed.compare(b, 1, rounds)
	t.report(b, c.prefix+"one at a time"+pods, add, del)
	for _, what := range []string{reconfigured, ofSwitch, ofAgent} {
		r := report.Result{Group: "CNI, what an ADD costs", Name: c.prefix + what + pods, Unit: "ms", Ours: t[what], Note: c.note}
		if what == reconfigured {
			r.Unit, r.Note = "times", ""
		}
		report.Add(b, r)
	}
	for what, samples := range t {
		c.point(what, float64(stay), report.Median(samples))
	}
}

func (c *curve) point(line string, x, y float64) {
	i := slices.IndexFunc(c.lines, func(l report.Line) bool { return l.Name == line })
	if i < 0 {
		i = len(c.lines)
		c.lines = append(c.lines, report.Line{Name: line})
	}
	c.lines[i].Points = append(c.lines[i].Points, [2]float64{x, y})
}

// draw adds a plot of the times and one of the costs.
func (c *curve) draw(b *testing.B) {
	b.Helper()
	slices.SortFunc(c.lines, func(a, b report.Line) int { return strings.Compare(a.Name, b.Name) })
	plots := map[string]report.Curve{}
	for _, l := range c.lines {
		name, y := "ADD and DEL", "ms"
		switch verb, peer := strings.CutSuffix(l.Name, " "+c.bed.pe.Name); {
		case peer:
			l.Name = verb + " " + peerName
		case l.Name == reconfigured, l.Name == ofSwitch, l.Name == ofAgent:
			name, y = "what an ADD costs", "ms of CPU, or times"
		}
		plot := plots[name]
		plots[name] = report.Curve{Name: name + " by pods on the node, " + c.datapath, X: "pods that stay on the node", Y: y,
			Lines: append(plot.Lines, l)}
	}
	for _, plot := range plots {
		report.AddCurve(b, plot)
	}
}

// fill adds pods that remain to both networks, until each has that many.
func (x *bed) fill(b *testing.B, stay int) {
	b.Helper()
	for x.stay < stay {
		more := min(stay-x.stay, atOnce)
		for _, n := range []network{x.pe, x.fl} {
			x.add(b, n, x.sandboxes(b, n, atOnce+x.stay, more)...)
		}
		x.stay += more
	}
	x.settle(0)
}

// costs returns the costs of f, a request, until ovs-vswitchd has no more work for it.
func (x *bed) costs(b *testing.B, f func()) map[string]float64 {
	b.Helper()
	if x.agent == 0 {
		state, err := x.AgentState(b.Context(), "node1")
		if err != nil {
			b.Fatal(err)
		}
		x.agent = state.PID
	}
	vswitchd, count := lab.Vswitchd.PID(x.host), x.reconfigured(b)
	agentRan, switchRan := cpu(b, x.agent), cpu(b, vswitchd)
	f()
	x.settle(0)
	return map[string]float64{ofAgent: cpu(b, x.agent) - agentRan, ofSwitch: cpu(b, vswitchd) - switchRan,
		reconfigured: x.reconfigured(b) - count}
}

// reconfigured is how often ovs-vswitchd has reconfigured itself.
func (x *bed) reconfigured(b *testing.B) float64 {
	b.Helper()
	text, err := x.NodeExec(b.Context(), "node1", "ovs-appctl", "-T", "5", "coverage/read-counter", "bridge_reconfigure")
	if err != nil {
		b.Fatal(text, err)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// cpu is the CPU time of a process in ms, by its CPU-time clock: clock_getcpuclockid(3). Unlike /proc/PID/schedstat, it
// exists in a guest and includes threads that have exited.
func cpu(b *testing.B, pid int) float64 {
	b.Helper()
	const scheduled = 2 // both user and system time, to the nanosecond
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil || pid == 0 {
		b.Fatalf("CPU time of process %d: %v", pid, err)
	}
	return float64(t.Nano()) / float64(time.Millisecond)
}
