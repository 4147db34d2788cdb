package crash

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// fault is something that goes wrong.
type fault struct {
	name  string
	begin func(t *testing.T)
	// end is nil where heal ends it, or the agent puts it right.
	end func(t *testing.T)
}

// faults are all that can happen to node1 at any time, in any number. Faults of the API server belong here as well.
func (c cluster) faults(r *rand.Rand) []fault {
	type do = func(t *testing.T)
	signal := func(d lab.Daemon, sig unix.Signal) do {
		return func(*testing.T) {
			if pid := d.PID(c.node); pid != 0 {
				unix.Kill(pid, sig) // it may just have ended
			}
		}
	}
	// shell may fail: another fault may have taken away what it works on.
	shell := func(script string) do {
		return func(t *testing.T) {
			port := ""
			if s, err := nodestate.Veths(c.node); err == nil && len(s) > 0 {
				port = s[r.IntN(len(s))]
			}
			if err := run(c.node.Start, node, []string{"timeout", "10", "sh", "-c", script, "sh", port}); err != nil {
				t.Logf("  %v", err)
			}
		}
	}
	return []fault{
		{name: "agent killed", begin: func(t *testing.T) { must(t, c.AgentKill(within(t, 10*time.Second), node)) }},
		{name: "agent stopped", begin: func(t *testing.T) { must(t, c.AgentStop(within(t, 40*time.Second), node)) }},
		{name: "ovs-vswitchd killed", begin: signal(lab.Vswitchd, unix.SIGKILL)},
		{name: "ovs-vswitchd stopped", begin: signal(lab.Vswitchd, unix.SIGTERM)},
		{name: "ovs-vswitchd hangs", begin: signal(lab.Vswitchd, unix.SIGSTOP)},
		{name: "ovs-vswitchd cleans up", begin: shell("ovs-appctl -T 2 exit --cleanup")},
		{name: "ovsdb-server killed", begin: signal(lab.OVSDB, unix.SIGKILL)},
		{name: "ovsdb-server stopped", begin: signal(lab.OVSDB, unix.SIGTERM)},
		{name: "ovsdb-server hangs", begin: signal(lab.OVSDB, unix.SIGSTOP)},
		{name: "guard killed", begin: signal(lab.Guard, unix.SIGKILL)},
		{name: "database lost", begin: func(t *testing.T) {
			signal(lab.OVSDB, unix.SIGKILL)(t)
			os.Remove(c.node.Private("/etc/openvswitch/conf.db")) // it may be gone
		}},
		{name: "bridge deleted", begin: shell("ovs-vsctl -t 2 --no-wait del-br br-int")},
		{name: "port deleted", begin: shell(`ovs-vsctl -t 2 --no-wait --if-exists del-port "$1"`)},
		{name: "port moved", begin: shell(`ovs-vsctl -t 2 --no-wait --may-exist add-br theirs -- set Bridge theirs datapath_type=` +
			string(c.Datapath()) + ` -- --if-exists del-port br-int "$1" -- add-port theirs "$1"`)},
		{name: "record lost", begin: shell(`ovs-vsctl -t 2 --no-wait clear Port "$1" external_ids`)},
		{name: "flows deleted", begin: shell("ovs-ofctl -t 2 -O OpenFlow15 del-flows br-int")},
		{name: "flows altered", begin: shell("ovs-ofctl -t 2 -O OpenFlow15 mod-flows br-int table=3,actions=drop")},
		{name: "controller set", begin: shell("ovs-vsctl -t 2 --no-wait set-controller br-int tcp:127.0.0.1:9")},
		{name: "gateway bare", begin: shell("ip addr flush dev fairlead-gw0; ip link set fairlead-gw0 down")},
		{name: "routes gone", begin: shell("ip route flush proto 102; ip neigh flush nud permanent")},
		{name: "iptables gone", begin: shell("iptables -w -t nat -F; iptables -w -F; ip6tables -w -t nat -F")},
		{name: "veth down", begin: shell(`ip link set "$1" down`)},
	}
}

// scheduleTime is how long random faults go on. The environment variable FAIRLEAD_TEST_CHAOS sets another time.
const scheduleTime = 50 * time.Second

// Whatever happens, in any order, and while pods come and go: when all runs again the node has what it should have
// and nothing else. A schedule that fails is repeated by its seed.
func TestRootRandomFaults(t *testing.T) {
	r := dice(t)
	limit := scheduleTime
	if s := os.Getenv("FAIRLEAD_TEST_CHAOS"); s != "" {
		var err error
		limit, err = time.ParseDuration(s)
		must(t, err)
	}
	c := up(t)
	c.apply(t, podYAML("a", node), podYAML("b", node))
	c.settle(t)
	order := c.hostOrder(t)
	stopWatching := c.watchAddresses(t)
	defer stopWatching()
	churn := churn{c: c, r: r, pods: map[string]bool{}}
	ways := c.ways(t)
	streams := start(t, ways, 20*time.Millisecond)
	defer stopAll(streams)
	t.Cleanup(func() {
		if t.Failed() {
			c.tellNeighbours(t)
		}
	})
	faults, had := c.faults(r), map[string]int{}
	began := time.Now()
	for round := 1; time.Since(began) < limit && !t.Failed(); round++ {
		chosen := choose(r, faults)
		t.Logf("round %d: %s", round, names(chosen))
		for _, f := range chosen {
			f.begin(t)
			had[f.name]++
			churn.step(t)
			pause(r, 400*time.Millisecond)
		}
		pause(r, 1500*time.Millisecond)
		for _, f := range chosen {
			if f.end != nil {
				f.end(t)
			}
		}
		c.heal(t)
		c.sound(t, order)
		c.heard(t, ways, streams)
	}
	t.Logf("faults: %v", had)
}

// heard waits until every stream has an answer. The userspace datapath of Open vSwitch 3.1.0 was seen to keep a
// megaflow that drops although its flow was back, as long as packets came. That is told, and the megaflows are thrown
// away once.
func (c cluster) heard(t *testing.T, ways []way, streams []*probe.Stream) {
	t.Helper()
	up, purged := time.Now(), false
	eventually(t, 15*time.Second, func() []string {
		wrong := silent(ways, streams, up)
		if len(wrong) > 0 && !purged && c.Datapath() == lab.Netdev && time.Since(up) > 5*time.Second {
			purged = true
			t.Logf("  %s: throwing megaflows away", strings.Join(wrong, "; "))
			c.exec(t, "ovs-appctl", "-T", "10", "revalidator/purge")
		}
		return wrong
	})
}

// tellNeighbours logs what node1 and its pods know of their neighbours, and what connections node1 translates.
func (c cluster) tellNeighbours(t *testing.T) {
	for _, cmd := range []string{"ip neigh", "ip route show table all", "conntrack -L -p udp", "conntrack -L -f ipv6 -p udp",
		"ovs-appctl -T 5 dpctl/dump-flows", "for n in /run/netns/*; do echo $n; nsenter --net=$n ip neigh; nsenter --net=$n ip -6 addr; done"} {
		t.Logf("%s: %v", cmd, run(c.node.Start, node, []string{"sh", "-c", cmd + "; false"}))
	}
}

// choose takes one to three.
func choose(r *rand.Rand, faults []fault) (chosen []fault) {
	for range 1 + r.IntN(3) {
		chosen = append(chosen, faults[r.IntN(len(faults))])
	}
	return chosen
}

func names(faults []fault) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.name)
	}
	return strings.Join(all, ", ")
}

// heal has everything run again that does on a healthy node.
func (c cluster) heal(t *testing.T) {
	t.Helper()
	for _, d := range lab.Daemons() {
		if pid := d.PID(c.node); pid != 0 {
			unix.Kill(pid, unix.SIGCONT) // it may just have ended
		}
	}
	must(t, c.OVSStart(within(t, 30*time.Second), node))
	// It may have a port that was moved there just when its pod went.
	c.exec(t, "ovs-vsctl", "--timeout=20", "--no-wait", "--if-exists", "del-br", "theirs")
	ctx := within(t, 30*time.Second)
	if s, err := c.AgentState(ctx, node); err != nil || s.PID == 0 {
		must(t, c.startAgent(ctx))
	}
	must(t, c.WaitReady(within(t, 40*time.Second), node))
}

// sound is the one check after every fault: each pod has what it needs, is reached, and nothing else is there.
func (c cluster) sound(t *testing.T, order []string) {
	t.Helper()
	must(t, c.WaitPods(within(t, time.Minute)))
	eventually(t, 30*time.Second, func() []string { // the agent looks every 15 s
		wrong := append(difference("node", c.hostOrder(t), order), c.downVeths(t)...)
		return append(wrong, c.ref.Differences(c.state(t), c.pods(t))...)
	})
	c.reach(t, c.pods(t))
}

// hostOrder is what the agent keeps in order beside pods, without what changes by itself.
func (c cluster) hostOrder(t *testing.T) (lines []string) {
	t.Helper()
	changing := regexp.MustCompile(`^\d+: |(valid_lft|expires) \S+( preferred_lft \S+)?| state \w+| tentative| linkdown| qlen \d+`)
	for _, cmd := range []string{
		"ip -o addr show dev fairlead-gw0", "ip -o link show dev fairlead-gw0", "ip route show proto 102",
		"ip -6 route show proto 102", "ip neigh show nud permanent dev fairlead-gw0",
		"iptables -w -t nat -S FAIRLEAD-POSTROUTING", "ip6tables -w -t nat -S FAIRLEAD-POSTROUTING",
		"iptables -w -S FAIRLEAD-FORWARD", "iptables -w -t nat -S POSTROUTING",
	} {
		out, err := c.output(t, cmd)
		if err != nil {
			out = err.Error()
		}
		for line := range strings.Lines(out) {
			lines = append(lines, strings.TrimSpace(changing.ReplaceAllString(line, "")))
		}
	}
	slices.Sort(lines)
	return lines
}

// downVeths are the pods' interfaces on the node that are not up.
func (c cluster) downVeths(t *testing.T) (names []string) {
	t.Helper()
	for line := range strings.Lines(c.exec(t, "ip", "-o", "link", "show", "group", fmt.Sprint(link.Group))) {
		if !strings.Contains(line, ",UP") {
			names = append(names, "not up: "+line)
		}
	}
	return names
}

func (c cluster) output(t *testing.T, line string) (string, error) {
	t.Helper()
	argv := strings.Fields(line)
	cmd := exec.CommandContext(within(t, 20*time.Second), argv[0], argv[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := c.node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", line, err, out.String())
	}
	return out.String(), err
}

// difference says which lines are missing and which are too many.
func difference(what string, have, want []string) (wrong []string) {
	count := map[string]int{}
	for _, l := range have {
		count[l]++
	}
	for _, l := range want {
		count[l]--
	}
	for _, l := range slices.Sorted(maps.Keys(count)) {
		if count[l] != 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %+d times: %s", what, count[l], l))
		}
	}
	return wrong
}
