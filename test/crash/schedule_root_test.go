package crash

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/chaos"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// fault is a failure.
type fault struct {
	name  string
	begin func(t *testing.T)
	// end is nil if heal ends it, or the agent repairs it.
	end func(t *testing.T)
}

// scheduleTime is the duration of random faults in every run of the suite.
const scheduleTime = 15 * time.Second

// Faults in any order, while pods are created and deleted: when everything runs again the node has exactly its desired
// state. A failed schedule is repeated by its seed.
func TestRootRandomFaults(t *testing.T) {
	c := up(t)
	c.schedules(t, func(r *rand.Rand) (first, more []fault) {
		faults := c.faults(r)
		return faults, faults
	})
}

// schedules runs one for each stored seed, and one with a new seed. chosen are the faults of each.
func (c cluster) schedules(t *testing.T, chosen func(*rand.Rand) (first, more []fault)) {
	t.Helper()
	for _, seed := range chaos.Seeds(t) {
		r := diceOf(t, seed)
		first, more := chosen(r)
		c.schedule(t, r, first, more)
	}
	if !chaos.OneSeed() {
		r := diceOf(t, uint64(time.Now().UnixNano()))
		first, more := chosen(r)
		c.schedule(t, r, first, more)
	}
}

// schedule is rounds of faults: one of the first, and up to two more.
func (c cluster) schedule(t *testing.T, r *rand.Rand, first, more []fault) {
	t.Helper()
	limit := chaos.Time(t, scheduleTime)
	c.apply(t, podYAML("a", node), podYAML("b", node))
	c.settle(t)
	order, other := c.hostOrder(t), c.otherNode(t)
	stopWatching := c.watchAddresses(t)
	defer stopWatching()
	churn := &churn{c: c, r: r, pods: map[string]bool{}}
	ways := c.ways(t)
	streams := start(t, ways, 100*time.Millisecond) // only whether there are answers matters
	defer stopAll(streams)
	t.Cleanup(func() {
		if t.Failed() {
			c.tellNeighbours(t)
		}
	})
	had := map[string]int{}
	began := time.Now()
	for round := 1; time.Since(began) < limit && !t.Failed(); round++ {
		chosen := choose(r, first, more)
		t.Logf("round %d, after %s: %s", round, time.Since(began).Round(time.Second/10), names(chosen))
		for _, f := range chosen {
			had[f.name]++
		}
		if c.api != nil {
			c.guestDuring(t, r, func() { c.round(t, churn, chosen) })
		} else {
			c.round(t, churn, chosen)
		}
		c.sound(t, order, other)
		c.heard(t, ways, streams)
	}
	t.Logf("faults: %v", had)
}

// round starts the faults, changes pods meanwhile, and ends the faults.
func (c cluster) round(t *testing.T, churn *churn, chosen []fault) {
	t.Helper()
	for _, f := range chosen {
		f.begin(t)
		churn.step(t)
		pause(churn.r, 400*time.Millisecond)
	}
	pause(churn.r, 1500*time.Millisecond)
	for _, f := range chosen {
		if f.end != nil {
			f.end(t)
		}
	}
	c.heal(t)
	if c.api != nil {
		c.api.catchUp(t, churn.pods)
	}
}

// heard waits until every stream has an answer.
func (c cluster) heard(t *testing.T, ways []way, streams []*probe.Stream) {
	t.Helper()
	up := time.Now()
	eventually(t, 15*time.Second, func() []string { return silent(ways, streams, up) })
}

// tellNeighbours logs the neighbour tables of node1 and its pods, and node1's connection tracking entries.
func (c cluster) tellNeighbours(t *testing.T) {
	for _, cmd := range []string{"ip neigh", "ip route show table all", "conntrack -L -p udp", "conntrack -L -f ipv6 -p udp",
		"ovs-appctl -T 5 dpctl/dump-flows", "for n in /run/netns/*; do echo $n; nsenter --net=$n ip neigh; nsenter --net=$n ip -6 addr; done"} {
		t.Logf("%s: %v", cmd, run(c.node.Start, node, []string{"sh", "-c", cmd + "; false"}))
	}
}

// choose chooses one to three.
func choose(r *rand.Rand, first, more []fault) []fault {
	number := r.IntN(3)
	chosen := []fault{first[r.IntN(len(first))]}
	for range number {
		chosen = append(chosen, more[r.IntN(len(more))])
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

// heal starts everything that runs on a healthy node.
func (c cluster) heal(t *testing.T) {
	t.Helper()
	for _, d := range lab.Daemons() {
		if pid := d.PID(c.node); pid != 0 {
			unix.Kill(pid, unix.SIGCONT) // it may have exited
		}
	}
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node))
	if c.api != nil {
		c.api.heal(t)
	}
	// The bridge may have a port that was moved there just when its pod was deleted.
	c.exec(t, "ovs-vsctl", "--timeout=20", "--no-wait", "--if-exists", "del-br", "theirs")
	ctx := labtest.Within(t, time.Minute)
	if s, err := c.AgentState(ctx, node); err != nil || s.PID == 0 {
		must(t, c.startAgent(ctx))
	}
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
}

// sound is the check after every fault: each pod has what it needs and is reachable, and nothing else exists.
func (c cluster) sound(t *testing.T, order, other []string) {
	t.Helper()
	must(t, c.WaitPods(labtest.Within(t, time.Minute)))
	eventually(t, 30*time.Second, func() []string { // the agent resyncs every 15 s on the kernel's datapath
		wrong := append(difference("node", c.hostOrder(t), order), c.downVeths(t)...)
		wrong = append(wrong, c.differences(t, c.pods(t))...)
		if len(wrong) > 0 {
			return wrong
		}
		return append(c.wrongAddresses(t), difference("node2", c.otherNode(t), other)...)
	})
	c.reach(t, c.pods(t))
}
