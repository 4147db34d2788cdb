package crash

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// limits returns a stream's send interval, and the time limit for recovery after the daemons' start. An idle machine
// takes 0.3 s; the promise is 2 s. The rest is slack for a busy machine: the kernel's datapath is mostly tested in a
// guest with one slow processor, which all nodes and tests share.
func (c cluster) limits() (every, back time.Duration) {
	if c.Datapath() == vswitch.System {
		return 20 * time.Millisecond, 7 * time.Second
	}
	return 10 * time.Millisecond, 3500 * time.Millisecond
}

// death stops some of the three daemons of a node at the same moment, and starts them again.
type death struct {
	agent, vswitchd, ovsdb bool
	kill                   bool // SIGKILL, not SIGTERM
	down                   time.Duration
}

func (d death) who() string {
	var who []string
	for _, v := range []struct {
		dies bool
		name string
	}{{d.agent, "agent"}, {d.vswitchd, "ovs-vswitchd"}, {d.ovsdb, "ovsdb-server"}} {
		if v.dies {
			who = append(who, v.name)
		}
	}
	return strings.Join(who, " + ")
}

func (d death) signal() string {
	if d.kill {
		return "SIGKILL"
	}
	return "SIGTERM"
}

func (d death) String() string { return fmt.Sprintf("%s, %s, down %s", d.who(), d.signal(), d.down) }

// deaths are each daemon, each pair and all three. A long run has every signal and every delay; otherwise those that
// have found most are chosen, and fewer where they take long.
func (c cluster) deaths() (all []death) {
	for _, d := range []death{{agent: true}, {vswitchd: true}, {ovsdb: true}, {agent: true, vswitchd: true},
		{agent: true, ovsdb: true}, {vswitchd: true, ovsdb: true}, {agent: true, vswitchd: true, ovsdb: true}} {
		for _, kill := range []bool{true, false} {
			for _, down := range []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second} {
				d.kill, d.down = kill, down
				brief := kill && down <= time.Second || down == 0 && !d.agent
				if c.Datapath() == vswitch.System {
					brief = kill && down == 0 // each combination once; all three with other signals and delays
					if d.agent && d.vswitchd && d.ovsdb {
						brief = !kill && down == 0 || kill && down == 3*time.Second
					}
				}
				if long() && down != time.Second || !long() && brief {
					all = append(all, d)
				}
			}
		}
	}
	return all
}

// long reports whether long runs are enabled.
func long() bool { return os.Getenv("FAIRLEAD_TEST_LONG") != "" }

// toll is the cost of a death.
type toll struct {
	death
	// Losses of the host, of pods to pods on their node, of pods to other nodes and the outside, and of a pod without
	// established flows.
	host, near, far, fresh cost
	// control is what was lost between the other node and the outside, which the death does not affect.
	control cost
	// waited is how long ovs-vswitchd waited for a processor, if it did not die.
	waited time.Duration
	// reconnect is when ovs-vswitchd was connected to ovsdb-server again, back when the last packet was lost (it may be
	// before), ready when the agent was ready. All count from the start of the daemons that were stopped.
	reconnect, back, ready time.Duration
}

// worst is the longest gap of any stream.
func (t toll) worst() time.Duration { return max(t.near.gap, t.far.gap, t.fresh.gap, t.host.gap) }

// cost is what the worst of several streams lost.
type cost struct {
	lost, sent int
	gap        time.Duration
	last       time.Time // of the last lost packet
}

func (c cost) String() string {
	return fmt.Sprintf("%d of %d | %d", c.lost, c.sent, c.gap.Milliseconds())
}

// The cost of each kind of death for host and pods, one row per try. It is the source of the table in docs/restarts.md.
func TestRootDeaths(t *testing.T) {
	c := up(t)
	c.apply(t, podYAML("a", node), podYAML("b", node))
	c.settle(t)
	var table []toll
	defer func() { t.Log(asTable(c, table)) }()
	for _, d := range c.deaths() {
		t.Run(d.String(), func(t *testing.T) {
			var now toll
			for range 8 { // a busy machine loses packets by itself, and then the control loses some, too
				now = c.die(t, d)
				table = append(table, now)
				stalled := now.control.gap > stall
				if !stalled && (len(c.tooMuch(now)) == 0 || now.control.lost == 0 && now.waited < now.worst()/2) {
					break
				}
			}
			for _, wrong := range c.tooMuch(now) {
				t.Errorf("%s (without a death, lost | ms: %s; ovs-vswitchd waited %s for a processor)", wrong, now.control, now.waited)
			}
		})
	}
	c.check(t)
}

// stall is the longest stall of the machine, or of a guest, with which a try is still conclusive.
const stall = time.Second

// waits is the maximum number of consecutive waits for a processor while daemons start.
const waits = 10

// tooMuch lists violations of what a death may cost. A stall of a busy machine affects the control as well, but
// starting daemons several times: that time is added to their limit.
func (c cluster) tooMuch(t toll) (wrong []string) {
	_, back := c.limits()
	back += waits * t.control.gap
	worst := t.worst()
	switch system := c.Datapath() == vswitch.System; {
	case !t.vswitchd && !t.ovsdb:
		if t.near.lost+t.far.lost+t.fresh.lost+t.host.lost > 0 {
			wrong = append(wrong, "an agent that dies costs packets")
		}
	case system && t.host.lost > 0:
		wrong = append(wrong, "the host lost packets")
	case system && !t.vswitchd && t.near.lost+t.far.lost+t.fresh.lost > 0:
		wrong = append(wrong, "without ovsdb-server packets were lost")
	case system && t.down+t.reconnect+t.control.gap < 10*time.Second && (t.near.lost > 5 || t.far.lost > 50):
		// In longer outages pods resolve their neighbours again. ovs-vswitchd creates a new tunnel port at every start.
		wrong = append(wrong, "flows that were established did not go on")
	case worst > t.down+t.reconnect+back:
		wrong = append(wrong, fmt.Sprintf("silence of %s", worst))
	}
	ready := back
	if c.Datapath() == vswitch.System {
		ready = 3 * back // no packet waits for it, and programs start slowly there: it runs iptables 10 times
	}
	if t.back > t.reconnect+back || t.ready > t.reconnect+ready {
		wrong = append(wrong, fmt.Sprintf("the last packet was lost %s after the daemons' start, and the agent ready after %s; "+
			"ovs-vswitchd was connected after %s", t.back, t.ready, t.reconnect))
	}
	return wrong
}

func asTable(c cluster, table []toll) string {
	var b strings.Builder
	fmt.Fprintf(&b, "datapath %s\n| who dies | signal | down, s | host: lost | gap, ms | pods of the node: lost | gap, ms | pods across: lost | gap, ms "+
		"| new flows: lost | gap, ms | without a death: lost | gap, ms | connected, ms | all back, ms | ready, ms |\n%s|\n",
		c.Datapath(), strings.Repeat("|---", 16))
	for _, t := range table {
		fmt.Fprintf(&b, "| %s | %s | %.0f | %s | %s | %s | %s | %s | %d | %d | %d |\n", t.who(), t.signal(), t.down.Seconds(),
			t.host, t.near, t.far, t.fresh, t.control, t.reconnect.Milliseconds(), t.back.Milliseconds(), t.ready.Milliseconds())
	}
	return b.String()
}

// die runs d under streams.
func (c cluster) die(t *testing.T, d death) toll {
	t.Helper()
	c.readyForCNI(t)
	// A pod that has not sent anything yet: its flows are new to the datapath.
	fresh := fmt.Sprintf("fresh%d", time.Now().UnixNano()%1e6)
	c.apply(t, podYAML(fresh, node))
	c.settle(t)
	defer func() { c.remove(t, podYAML(fresh, node)); c.settle(t) }()
	ways := c.streams(t, fresh)
	c.forgetNeighbours(t, "a", "b")
	every, _ := c.limits()
	waited := c.waited(t, d)
	controls := start(t, c.controls(t), every)
	runs := start(t, slices.Concat(ways[:3]...), every)
	c.established(t, slices.Concat(ways[:3]...), runs)
	time.Sleep(500 * time.Millisecond) // streams before the death
	c.end(t, d)
	runs = append(runs, start(t, ways[3], every)...)
	time.Sleep(d.down)
	began := time.Now()
	c.begin(t, d)
	out := toll{death: d}
	if d.vswitchd || d.ovsdb {
		eventually(t, 20*time.Second, func() (wrong []string) {
			var ok bool
			if out.reconnect, ok = c.connected(t, began); !ok {
				wrong = append(wrong, "ovs-vswitchd has not connected to ovsdb-server")
			}
			return wrong
		})
	}
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
	out.ready = time.Since(began)
	up := time.Now()
	eventually(t, 20*time.Second, func() []string { return silent(slices.Concat(ways[:]...), runs, up) })
	time.Sleep(500 * time.Millisecond) // streams after it
	out.control, out.waited = worst(stopAll(controls)), c.waited(t, d)-waited
	reports := stopAll(runs)
	out.back = -d.down
	for i, c := range []*cost{&out.host, &out.near, &out.far, &out.fresh} {
		*c, reports = worst(reports[:len(ways[i])]), reports[len(ways[i]):]
		if !c.last.IsZero() {
			out.back = max(out.back, c.last.Sub(began))
		}
	}
	return out
}

// forgetNeighbours has pods resolve their neighbours again: they are reachable for 15 s at least then, in which a pod
// does not ask whether they still are (base_reachable_time_ms of arp(7)).
func (c cluster) forgetNeighbours(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		must(t, c.at(t, pod).netns.Do(func(ns.NetNS) error { return exec.Command("ip", "neigh", "flush", "dev", "eth0").Run() }))
	}
}

// established waits until the kernel's datapath has the flows of all streams: each gets answers while no packet misses
// them. ovs-vswitchd installs several for a stream, and deletes some after its OpenFlow tables have changed, or when it
// has too little processor time to check them.
func (c cluster) established(t *testing.T, ways []way, streams []*probe.Stream) {
	t.Helper()
	if c.Datapath() != vswitch.System {
		return // ovs-vswitchd has the flows itself, and takes them with it
	}
	every, _ := c.limits()
	var since time.Time
	var missed string
	eventually(t, time.Minute, func() []string {
		if wrong := silent(ways, streams, since); len(wrong) > 0 {
			return wrong
		}
		if now := c.missed(t); now != missed {
			since, missed = time.Now().Add(10*every), now
			return []string{"the datapath's flows do not match all packets: " + now}
		}
		return nil
	})
}

// missed is the number of packets for which the datapath had no flow, as ovs-dpctl(8) shows it.
func (c cluster) missed(t *testing.T) string {
	t.Helper()
	show := c.exec(t, "ovs-appctl", "--timeout=20", "dpctl/show")
	_, missed, _ := strings.Cut(show, "missed:")
	missed, _, found := strings.Cut(missed, " ")
	if !found {
		t.Fatalf("no number of missed packets in %q", show)
	}
	return missed
}

// waited is lab.OVSWaited; 0 if ovs-vswitchd dies.
func (c cluster) waited(t *testing.T, d death) time.Duration {
	t.Helper()
	if d.vswitchd {
		return 0
	}
	waited, err := c.OVSWaited(labtest.Within(t, time.Minute), node)
	must(t, err)
	return waited
}

// connected returns the time from began until ovs-vswitchd was connected to ovsdb-server again, by its log; 0 if it was
// never disconnected.
func (c cluster) connected(t *testing.T, began time.Time) (after time.Duration, ok bool) {
	t.Helper()
	data, err := os.ReadFile(c.node.Private("/var/log/openvswitch/ovs-vswitchd.log"))
	must(t, err)
	for line := range strings.Lines(string(data)) {
		when, event, _ := strings.Cut(line, "|")
		if at, err := time.Parse("2006-01-02T15:04:05.999Z", when); err == nil && at.After(began.Truncate(time.Millisecond)) &&
			strings.HasSuffix(event, "/db.sock: connected\n") {
			return at.Sub(began), true
		}
	}
	return 0, false
}

// silent names the paths without an answer since then.
func silent(ways []way, streams []*probe.Stream, since time.Time) (names []string) {
	for i, s := range streams {
		if !s.Answers(since) {
			names = append(names, "silent: "+ways[i].name)
		}
	}
	return names
}

// end stops the daemons of d at the same time.
func (c cluster) end(t *testing.T, d death) {
	t.Helper()
	ctx := labtest.Within(t, time.Minute)
	agent, ovs := c.AgentStop, c.OVSStop
	if d.kill {
		agent, ovs = c.AgentKill, c.OVSKill
	}
	var all sync.WaitGroup
	errs := make([]error, 3)
	if d.agent {
		all.Go(func() { errs[0] = agent(ctx, node) })
	}
	if d.vswitchd {
		all.Go(func() { errs[1] = ovs(ctx, node, lab.Vswitchd) })
	}
	if d.ovsdb {
		all.Go(func() { errs[2] = ovs(ctx, node, lab.OVSDB) })
	}
	all.Wait()
	for _, err := range errs {
		must(t, err)
	}
}

// begin starts them again, in the order of a node's boot.
func (c cluster) begin(t *testing.T, d death) {
	t.Helper()
	ctx := labtest.Within(t, time.Minute)
	var ovs []lab.Daemon
	if d.ovsdb {
		ovs = append(ovs, lab.OVSDB)
	}
	if d.vswitchd {
		ovs = append(ovs, lab.Vswitchd)
	}
	var all sync.WaitGroup
	var errs [2]error
	if d.agent {
		all.Go(func() { errs[0] = c.startAgent(ctx) })
	}
	if len(ovs) > 0 {
		all.Go(func() { errs[1] = c.OVSStart(ctx, node, ovs...) })
	}
	all.Wait()
	must(t, errs[0])
	must(t, errs[1])
}

// startAgent starts the agent when all threads of its predecessor are gone.
func (c cluster) startAgent(ctx context.Context) error {
	for {
		s, err := c.AgentState(ctx, node)
		if err != nil {
			return err
		}
		if s.PID == 0 && s.Exit != nil {
			return c.AgentStart(ctx, node)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent is %s: %w", s, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// streams are the paths of the host's packets, of pods' on the node, of pods' across nodes and to the outside, and of a
// pod without established flows.
func (c cluster) streams(t *testing.T, fresh string) [4][]way {
	t.Helper()
	a, b, far := c.at(t, "a"), c.at(t, "b"), c.at(t, "far")
	outside, gateway := c.onHost(t, underlay.Outside, underlay.Dual.FarAddrs()...), c.onHost(t, node, c.gateways(t)...)
	here, there := c.onHost(t, node, underlay.Dual.NodeAddrs(1)...), c.onHost(t, "node2", underlay.Dual.NodeAddrs(2)...)
	return [4][]way{
		{here.to(t, "host to outside", outside, 0), here.to(t, "host to the other node", there, 0)},
		{a.to(t, "pod to pod", b, 0), a.to(t, "pod to pod, IPv6", b, 1), gateway.to(t, "host to pod", b, 0)},
		{a.to(t, "pod to pod on the other node", far, 0), far.to(t, "pod to pod from the other node, IPv6", b, 1),
			a.to(t, "pod to outside", outside, 0)},
		{c.at(t, fresh).to(t, "new pod to pod", a, 0)},
	}
}

// controls are paths that node1 has no part in.
func (c cluster) controls(t *testing.T) []way {
	t.Helper()
	far, outside := c.at(t, "far"), c.onHost(t, underlay.Outside, underlay.Dual.FarAddrs()...)
	there := c.onHost(t, "node2", underlay.Dual.NodeAddrs(2)...)
	return []way{far.to(t, "pod of the other node to outside", outside, 0), there.to(t, "the other node to outside", outside, 0)}
}

func stopAll(streams []*probe.Stream) []probe.Report {
	reports := make([]probe.Report, len(streams))
	var stops sync.WaitGroup
	for i, s := range streams {
		stops.Go(func() { reports[i] = s.Stop() })
	}
	stops.Wait()
	return reports
}

func worst(reports []probe.Report) (c cost) {
	for _, r := range reports {
		if r.Lost >= c.lost {
			c.lost, c.sent = r.Lost, r.Sent
		}
		c.gap = max(c.gap, r.LongestGap)
		if r.LastLost.After(c.last) {
			c.last = r.LastLost
		}
	}
	return c
}
