package suite

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/api"
	judge "github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Agents detect by themselves that pods of two nodes do not reach each other, and in which direction. A dead agent is
// not such a fault.
func TestRootProbe(t *testing.T) {
	c := up(t, lab.Options{})
	c.awaitReach(t, "at the start", "reached", "reached")
	if out := c.host(t, "node1").exec(t, "ip netns exec fairlead-reach ip -br addr show dev eth0"); !strings.Contains(out, "10.77.1.254/24") ||
		!strings.Contains(out, "fd77::1:ffff:ffff:ffff:fffe/64") {
		t.Errorf("node1's end is %s", out)
	}
	c.host(t, "node1").exec(t, "ping -c1 -W20 10.77.2.254")

	t.Run("the main thread", func(t *testing.T) {
		ovstest.UserspaceOnly(t, "which thread Go takes does not depend on the datapath")
		c.staysAtHome(t, "node1")
	})
	t.Run("a dead agent", func(t *testing.T) {
		must(t, 0, c.AgentKill(labtest.Within(t, 10*time.Second), "node2"))
		c.awaitReach(t, "node2's agent is dead", "away", "")
		c.neverBroken(t, "node1", 3*time.Second)
		must(t, 0, c.AgentStart(labtest.Within(t, 10*time.Second), "node2"))
		c.awaitReach(t, "node2's agent is back", "reached", "reached")
	})
	t.Run("a reboot", func(t *testing.T) {
		ovstest.UserspaceOnly(t, "a guest stands still for longer than the lab's agents give a node to come back")
		c.setReady(t, "node2", corev1.ConditionFalse)
		c.drop(t, "underlay", "bridge", "forward", "") // else the lab's is too short to be seen
		c.awaitReach(t, "node2 is down", "away", "")
		must(t, 0, c.Reboot(labtest.Within(t, 20*time.Second), "node2"))
		c.pass(t, "underlay", "bridge")
		c.neverBroken(t, "node1", 5*time.Second)
		must(t, 0, c.AgentStart(labtest.Within(t, 10*time.Second), "node2"))
		c.awaitReach(t, "node2 is back", "reached", "reached")
		c.setReady(t, "node2", corev1.ConditionTrue)
	})
	paths := []brokenPath{
		{"the tunnel from node1 to node2", "underlay", "bridge", "forward", "ip saddr 192.168.77.11 ip daddr 192.168.77.12 udp dport 6081",
			[2]string{"works fails", "fails unknown"}, [2]string{"not-found", "not-found"}, "from pods on this node to pods on node node2",
			[2]string{"fails between ", "works  "}},
	}
	if ovstest.UnderTest(t) == ovstest.System { // the userspace datapath's tunnel bypasses the host's netfilter
		paths = append(paths, brokenPath{"node2's firewall", "node2", "inet", "input", "udp dport 6081",
			[2]string{"works fails", "fails unknown"}, [2]string{"not-found", "firewall"}, "from pods on this node to pods on node node2",
			[2]string{"fails firewall node2", "works  "}})
	} else { // what two agents conclude does not depend on the datapath
		paths = append(paths, brokenPath{"the tunnel in both directions", "underlay", "bridge", "forward", "udp dport 6081",
			[2]string{"fails unknown", "fails unknown"}, [2]string{"not-found", "not-found"}, "from pods on node node2 to pods on this node",
			[2]string{"fails between ", "fails between "}})
	}
	if os.Getenv("FAIRLEAD_TEST_LONG") != "" { // 15 intervals
		paths = append(paths, brokenPath{"full-size packets", "underlay", "bridge", "forward", "udp dport 6081 udp length > 1300",
			[2]string{"narrow narrow", "narrow narrow"}, [2]string{"not-found", "not-found"}, "small packets pass",
			[2]string{"narrow between ", "narrow between "}})
	}
	for _, way := range paths {
		t.Run(way.name, func(t *testing.T) { c.tellsBroken(t, way) })
	}
	t.Run("switched off", func(t *testing.T) { c.switchedOff(t) })
	for _, node := range c.Nodes() {
		if n := strings.Count(c.log(t, node), "pods of another node are not reached"); n == 0 {
			t.Errorf("the log of %s's agents does not name the fault", node)
		}
	}
}

// staysAtHome checks that the main thread of an agent is in the node's network namespace while another thread is in
// that of its end: a command that is run in the agent's Pod gets the namespaces of the main thread. Which thread Go
// uses is random, so it is tried often.
func (c cluster) staysAtHome(t *testing.T, node string) {
	home := strings.TrimSpace(c.host(t, node).exec(t, "readlink /proc/self/ns/net"))
	for range 10 {
		must(t, 0, c.AgentKill(labtest.Within(t, 10*time.Second), node))
		must(t, 0, c.AgentStart(labtest.Within(t, 10*time.Second), node))
		state, err := c.AgentState(t.Context(), node)
		must(t, 0, err)
		wait(t, time.Minute, func() string {
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", state.PID))
			for _, thread := range threads {
				if at, _ := os.Readlink(thread); at != "" && at != home {
					return ""
				}
			}
			return fmt.Sprintf("none of %d threads is in another namespace: %v", len(threads), err)
		})
		if at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", state.PID)); at != home {
			t.Fatalf("the main thread is in %s, the node in %s (%v)", at, home, err)
		}
	}
}

// setReady sets the condition Ready of a Node.
func (c cluster) setReady(t *testing.T, name string, ready corev1.ConditionStatus) {
	t.Helper()
	nodes, err := c.Manifests().Nodes()
	must(t, 0, err)
	for _, n := range nodes {
		if n.Name == name {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
			data, err := json.Marshal(n)
			must(t, 0, err)
			c.apply(t, string(data))
		}
	}
}

// switchedOff checks that an agent that no longer probes removes its end and releases the address.
func (c cluster) switchedOff(t *testing.T) {
	node1 := c.host(t, "node1")
	must(t, 0, c.AgentStop(labtest.Within(t, 20*time.Second), "node1"))
	_, err := node1.run("sh", "-c", "echo reachability: none >>/etc/fairlead/agent.conf")
	must(t, 0, err)
	must(t, 0, c.AgentStart(labtest.Within(t, 10*time.Second), "node1"))
	must(t, 0, c.WaitReady(labtest.Within(t, time.Minute), "node1"))
	wait(t, labtest.Patience(t, 20*time.Second), func() string {
		left, err := node1.run("sh", "-c", "ls /run/netns/fairlead-reach /var/lib/fairlead/host-local/10.77.1.254; "+
			"ovs-vsctl list-ports br-int | grep ^fl.............$")
		if err == nil || left != "" && !strings.Contains(left, "No such file") || strings.Count(left, "No such file") != 2 {
			return fmt.Sprintf("%s, %v", left, err)
		}
		return ""
	})
	if r := c.reach(t, "node1"); r != nil {
		t.Errorf("node1 says %+v", *r)
	}
}

// brokenPath is where an nftables rule drops packets, and what each of two nodes then reports: directions as "from to",
// and the cause. text is in node1's report. joined is what both conclude together, there and back: state, cause and
// node.
type brokenPath struct {
	name, host, family, hook, match string
	directions, causes              [2]string
	text                            string
	joined                          [2]string
}

func (c cluster) tellsBroken(t *testing.T, way brokenPath) {
	c.drop(t, way.host, way.family, way.hook, way.match)
	for i, node := range c.Nodes() {
		f := c.awaitFinding(t, node, way.directions[i], way.causes[i])
		if i == 0 && (!strings.Contains(f.Text, way.text) || !strings.Contains(fmt.Sprint(f.Seen), "ping of its node's address: answered")) {
			t.Errorf("node1 says %+v", f)
		}
	}
	wait(t, labtest.Patience(t, 20*time.Second), func() string {
		got, directions := c.directions(t, "IPv4")
		if got != way.joined {
			return fmt.Sprintf("both ends know %q, want %q: %+v", got, way.joined, directions)
		}
		return ""
	})
	c.pass(t, way.host, way.family)
	c.awaitReach(t, "the packets pass again", "reached", "reached")
}

// directions are what both nodes conclude together for one family: from node1 to node2, and back.
func (c cluster) directions(t *testing.T, family string) (words [2]string, directions []judge.Direction) {
	t.Helper()
	var sides [2]judge.Side
	for i, node := range c.Nodes() {
		sides[i] = judge.Side{Node: node, Paths: c.reach(t, node).Paths}
	}
	other := func(d judge.Direction) bool { return d.Family != family }
	directions = slices.DeleteFunc(judge.Join(sides[0], sides[1]), other)
	for i, w := range directions {
		words[i] = fmt.Sprintf("%s %s %s", w.Is, w.Cause, w.At)
	}
	return words, directions
}

// drop makes a host drop packets.
func (c cluster) drop(t *testing.T, name, family, hook, match string) {
	t.Helper()
	h := c.host(t, name)
	h.exec(t, "nft add table "+family+" lost")
	_, err := h.run("nft", "add chain "+family+" lost drops { type filter hook "+hook+" priority 0; }")
	must(t, 0, err)
	h.exec(t, "nft add rule "+family+" lost drops "+match+" drop")
}

func (c cluster) pass(t *testing.T, name, family string) {
	t.Helper()
	c.host(t, name).exec(t, "nft delete table "+family+" lost")
}

// reach is what a node's agent has found.
func (c cluster) reach(t *testing.T, node string) *api.AgentReach {
	t.Helper()
	var s api.AgentState
	if err := json.Unmarshal([]byte(c.get(t, node, "/state")), &s); err != nil {
		t.Fatal(err)
	}
	return s.Reach
}

// awaitReach waits until each of two nodes has the other in that state; empty: its agent is not queried.
func (c cluster) awaitReach(t *testing.T, when string, states ...string) {
	t.Helper()
	for i, want := range states {
		if want == "" {
			continue
		}
		node := c.Nodes()[i]
		wait(t, labtest.Patience(t, 20*time.Second), func() string {
			if s, err := c.AgentState(t.Context(), node); err != nil || !s.Ready {
				return fmt.Sprintf("%s: %s is %v, %v", when, node, s, err)
			}
			r := c.reach(t, node)
			if n := map[string]int{"reached": r.Reached, "away": r.Away}[want]; n != 1 || r.Asked != 1 || len(r.Findings) > 0 || r.Problem != "" {
				return fmt.Sprintf("%s: %s has %+v, want one node %s", when, node, *r, want)
			}
			return ""
		})
	}
}

// awaitFinding waits until a node reports these directions and this cause for its IPv4 path to the other.
func (c cluster) awaitFinding(t *testing.T, node, directions, cause string) (found api.ReachFinding) {
	t.Helper()
	took := wait(t, labtest.Patience(t, 30*time.Second), func() string {
		r := c.reach(t, node)
		for _, found = range r.Findings {
			if found.Family == "IPv4" && found.FromThere+" "+found.ToThere == directions && found.Cause == cause {
				return ""
			}
		}
		return fmt.Sprintf("%s has %+v, want %s, cause %s", node, *r, directions, cause)
	})
	t.Logf("%s reports %q, %s, after %s", node, directions, cause, took)
	return found
}

// neverBroken checks that a node reports no fault for a while. A report is excused if an ovs-vswitchd waited for a
// processor for as long as five probes take, after which a path counts as failed; it must end.
func (c cluster) neverBroken(t *testing.T, node string, d time.Duration) {
	t.Helper()
	before, excused := c.waited(t), 0
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		r := c.reach(t, node)
		if len(r.Findings) == 0 {
			continue
		}
		waited := c.waited(t) - before
		if excused++; waited < time.Second || excused > 3 {
			t.Fatalf("%s reports %+v", node, r.Findings)
		}
		t.Logf("an ovs-vswitchd has waited %s for a processor, and %s reports %+v", waited, node, r.Findings)
		wait(t, time.Minute, func() string {
			if r = c.reach(t, node); len(r.Findings) > 0 {
				return fmt.Sprintf("%s reports %+v", node, r.Findings)
			}
			return ""
		})
		before, end = c.waited(t), time.Now().Add(d)
	}
}
