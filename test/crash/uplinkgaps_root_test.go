package crash

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// bridgedPods are two pods of VLAN 10.
const bridgedPods = `apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: v4}
spec:
  ipRanges: [{start: 192.168.110.100, end: 192.168.110.199}]
  subnetInfo: {gateway: 192.168.110.1, prefixLength: 24, vlan: 10}
---
apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: v6}
spec:
  ipRanges: [{start: "fd77:0:0:a10::100", end: "fd77:0:0:a10::1ff"}]
  subnetInfo: {gateway: "fd77:0:0:a10::1", prefixLength: 64, vlan: 10}
---
apiVersion: v1
kind: Pod
metadata: {name: d, annotations: {ipam.antrea.io/ippools: "v4,v6"}}
spec: {nodeName: node1, containers: [{name: main, image: none}]}
---
apiVersion: v1
kind: Pod
metadata: {name: e, annotations: {ipam.antrea.io/ippools: "v4,v6"}}
spec: {nodeName: node1, containers: [{name: main, image: none}]}
`

// tries limits how often an event is repeated while streams that it does not affect lose packets as well: a busy
// machine loses some by itself, and such a try is inconclusive.
const tries = 8

// event is a failure during which the node's and its bridged pods' packets are counted.
type event struct {
	name string
	do   func(*testing.T)
	// loses means that packet loss is expected.
	loses bool
	host  probe.Rounds
	pods  probe.Rounds
}

// gaps measures the losses of the host and bridged pods when agent and Open vSwitch are killed. "make bench-uplink"
// prints medians of 10 rounds; otherwise it is one round.
func (c cluster) gaps(t *testing.T) {
	rounds, count := 1, os.Getenv("FAIRLEAD_BENCH_ROUNDS")
	if n, err := strconv.Atoi(count); err == nil {
		rounds = n
	}
	c.apply(t, bridgedPods)
	c.settle(t)
	defer func() { c.remove(t, bridgedPods); c.settle(t) }()
	ways, controls, userspace := c.uplinkWays(t), c.otherToRouter(t), c.Datapath() == vswitch.Netdev
	if userspace {
		others, remove := c.onOtherBridge(t)
		defer remove()
		controls = append(controls, others[:4]...) // as many as a bridged pod's and the host's
	}
	run1s(t, slices.Concat(ways, controls), func() {}) // neighbours and flows are known
	events := []*event{
		{name: "agent: SIGKILL, started", do: c.agentAgain(c.AgentKill, "")},
		{name: "agent: SIGTERM, config changed, started", do: c.agentAgain(c.AgentStop, "serviceCIDR")},
		{name: "ovs-vswitchd: SIGKILL, started", do: c.vswitchdAgain, loses: userspace},
	}
	if count != "" {
		events = append(events, &event{name: "nothing", do: func(*testing.T) {}},
			&event{name: "agent: SIGTERM, started (an upgrade)", do: c.agentAgain(c.AgentStop, "")},
			&event{name: "ovsdb-server: SIGKILL, started", do: c.ovsdbAgain},
			&event{name: "ovs-appctl exit --cleanup, started", do: c.cleanedUp})
	}
	var dead []time.Duration
	for range rounds {
		for _, e := range events {
			c.happens(t, e, ways, controls, count != "")
		}
		dead = append(dead, c.newFlowsWithoutAgent(t))
	}
	for _, e := range events {
		t.Logf("GAP %-6s %-6s %-48s %s", c.Datapath(), c.Uplink(), e.name+": host", &e.host)
		t.Logf("GAP %-6s %-6s %-48s %s", c.Datapath(), c.Uplink(), e.name+": pods", &e.pods)
	}
	t.Logf("GAP %-6s %-6s %-48s pass after %s", c.Datapath(), c.Uplink(), "both SIGKILL, agent dead: new host flows", probe.Spread(dead))
}

// hostWays is how many of uplinkWays are the host's: they come first.
const hostWays = 2

// uplinkWays are between host and router, between bridged pods, and from one of them to the router.
func (c cluster) uplinkWays(t *testing.T) []way {
	t.Helper()
	router := c.onHost(t, "router", netip.MustParsePrefix("192.168.77.1/24"), netip.MustParsePrefix("fd77::1/64"))
	leg := c.onHost(t, "router", underlay.Dual.VLANGatewayAddrs(10)...)
	self := c.onHost(t, node, c.NodeAddrs(1)...)
	d, e := c.at(t, "d"), c.at(t, "e")
	return []way{self.to(t, "host to router", router, 0), router.to(t, "router to host, IPv6", self, 1),
		d.to(t, "bridged pod to bridged pod", e, 0), d.to(t, "bridged pod to router, IPv6", leg, 1)}
}

// happens runs e under streams. Unless onlyMeasured is set, unexpected packet loss is an error: at once if the
// controls, which e does not affect, do not excuse it, and otherwise if it recurs at every try.
func (c cluster) happens(t *testing.T, e *event, ways, controls []way, onlyMeasured bool) {
	t.Helper()
	all := slices.Concat(ways, controls)
	var reports []probe.Report
	for try := 1; ; try++ {
		streams := start(t, all, 2*time.Millisecond)
		time.Sleep(300 * time.Millisecond) // streams before the event
		e.do(t)
		since := time.Now()
		eventually(t, 10*time.Second, func() []string { return silent(all, streams, since) })
		time.Sleep(300 * time.Millisecond) // and after it
		reports = stopAll(streams)
		node, control := worst(reports[:len(ways)]), worst(reports[len(ways):])
		t.Logf("%s: try %d: lost | ms: %s; without the event: %s", e.name, try, node, control)
		for i, r := range reports {
			if r.Lost > 0 {
				t.Logf("%s: %s: %s", e.name, all[i].name, r)
			}
		}
		if node.lost == 0 || e.loses || onlyMeasured {
			break
		}
		if !probe.Excused(reports[:len(ways)], reports[len(ways):]) || try == tries {
			t.Errorf("%s: packets were lost", e.name)
			break
		}
	}
	e.host.Add(reports[:hostWays])
	e.pods.Add(reports[hostWays:len(ways)])
}

// otherToRouter are controls that events on node1 do not affect: between the other node and the router, in both
// families.
func (c cluster) otherToRouter(t *testing.T) []way {
	t.Helper()
	router := c.onHost(t, "router", netip.MustParsePrefix("192.168.77.1/24"), netip.MustParsePrefix("fd77::1/64"))
	other := c.onHost(t, "node2", c.NodeAddrs(2)...)
	return []way{other.to(t, "the other node to the router", router, 0),
		router.to(t, "router to the other node, IPv6", other, 1)}
}

// agentAgain stops the agent and starts it, with another value of a config key if key is not empty.
func (c cluster) agentAgain(end func(context.Context, string) error, key string) func(*testing.T) {
	return func(t *testing.T) {
		must(t, end(labtest.Within(t, time.Minute), node))
		if key != "" {
			c.otherValue(t, key)
		}
		must(t, c.startAgent(labtest.Within(t, time.Minute)))
		must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
	}
}

// otherValue changes a key of the agent's config whose value is an IPv4 range.
func (c cluster) otherValue(t *testing.T, key string) {
	t.Helper()
	line := fmt.Sprintf("%s: 10.%d.0.0/16", key, 100+time.Now().UnixMilli()%100)
	c.exec(t, "sh", "-c", `sed -i "/^$1:/d" "$0" && echo "$2" >>"$0"`, "/etc/fairlead/agent.conf", key, line)
}

// armed waits until ovs-vswitchd would keep the kernel's megaflows if it exited now.
func (c cluster) armed(t *testing.T) {
	t.Helper()
	if c.Datapath() == vswitch.System {
		c.key(t, "{flow-restore-wait=True}")
	}
}

func (c cluster) vswitchdAgain(t *testing.T) {
	c.armed(t)
	must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
}

func (c cluster) ovsdbAgain(t *testing.T) {
	must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.OVSDB))
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.OVSDB))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
}

// cleanedUp makes ovs-vswitchd delete everything that it has created, and starts it.
func (c cluster) cleanedUp(t *testing.T) {
	c.exec(t, "ovs-appctl", "--timeout=10", "exit", "--cleanup")
	eventually(t, 10*time.Second, func() []string { return c.runs(lab.Vswitchd) })
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
}

// newFlowsWithoutAgent stops agent and ovs-vswitchd, flushes the kernel's megaflows, and starts ovs-vswitchd alone. It
// returns when the last packet of the host was lost, counted from ovs-vswitchd's start.
func (c cluster) newFlowsWithoutAgent(t *testing.T) time.Duration {
	t.Helper()
	c.armed(t)
	must(t, c.AgentKill(labtest.Within(t, time.Minute), node))
	must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	if c.Datapath() == vswitch.System {
		c.exec(t, "ovs-dpctl", "--timeout=10", "del-flows")
	}
	ways := c.uplinkWays(t)[:hostWays]
	streams := start(t, ways, 2*time.Millisecond)
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	back := time.Now()
	eventually(t, 10*time.Second, func() []string { return silent(ways, streams, back) })
	time.Sleep(300 * time.Millisecond) // streams after the start
	lost := back
	for i, r := range stopAll(streams) {
		t.Logf("agent dead: %s: last lost %s after ovs-vswitchd's return: %s", ways[i].name, r.LastLost.Sub(back), r)
		if r.LastLost.After(lost) {
			lost = r.LastLost
		}
	}
	must(t, c.startAgent(labtest.Within(t, time.Minute)))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
	return lost.Sub(back)
}
