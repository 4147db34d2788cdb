package suite

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// Agents find out by themselves that pods of two nodes do not reach each other, in which direction, and that a dead
// agent is not such a fault.
func TestRootProbe(t *testing.T) {
	c := up(t, lab.Options{Config: []byte("reachability: probe\n")})
	c.awaitReach(t, "at the start", "reached", "reached")
	if out := c.host(t, "node1").exec(t, "ip netns exec fairlead-reach ip -br addr show dev eth0"); !strings.Contains(out, "10.77.1.254/24") ||
		!strings.Contains(out, "fd77::1:ffff:ffff:ffff:fffe/64") {
		t.Errorf("node1's end is %s", out)
	}
	if err := c.CheckEnd(t, "10.77.2.254"); err != nil {
		t.Error(err)
	}

	t.Run("a dead agent", func(t *testing.T) {
		must(t, 0, c.AgentKill(labtest.Within(t, 10*time.Second), "node2"))
		c.awaitReach(t, "node2's agent is dead", "away", "")
		c.neverBroken(t, "node1", 3*time.Second)
		must(t, 0, c.AgentStart(labtest.Within(t, 10*time.Second), "node2"))
		c.awaitReach(t, "node2's agent is back", "reached", "reached")
	})
	t.Run("a reboot", func(t *testing.T) {
		c.dropBetween(t, "") // else the lab's takes too short to be seen
		c.awaitReach(t, "node2 is down", "away", "")
		must(t, 0, c.Reboot(labtest.Within(t, 20*time.Second), "node2"))
		c.passBetween(t)
		c.neverBroken(t, "node1", 5*time.Second)
		must(t, 0, c.AgentStart(labtest.Within(t, 10*time.Second), "node2"))
		c.awaitReach(t, "node2 is back", "reached", "reached")
	})
	for _, way := range []struct {
		name, rule   string
		node1, node2 string // the directions as each has them, "from to"
		text1        string
	}{
		{"the tunnel from node1 to node2", "ip saddr 192.168.77.11 ip daddr 192.168.77.12 udp dport 6081", "works fails", "fails unknown",
			"from pods here to pods of node node2"},
		{"the tunnel in both directions", "udp dport 6081", "fails unknown", "fails unknown",
			"from pods of node node2 to pods here"},
	} {
		t.Run(way.name, func(t *testing.T) {
			c.dropBetween(t, way.rule)
			for node, want := range map[string]string{"node1": way.node1, "node2": way.node2} {
				c.awaitFinding(t, node, want)
			}
			if f := c.reach(t, "node1").Findings[0]; f.Cause != "not-found" && f.Cause != "cut-off" || !strings.Contains(f.Text, way.text1) ||
				!strings.Contains(fmt.Sprint(f.Seen), "ping of its node's address: answered") {
				t.Errorf("node1 says %+v", f)
			}
			c.passBetween(t)
			c.awaitReach(t, "the packets pass again", "reached", "reached")
		})
	}
	for _, node := range c.Nodes() {
		if n := strings.Count(c.log(t, node), "pods of another node are not reached"); n == 0 {
			t.Errorf("the log of %s's agents does not name the fault", node)
		}
	}
}

// CheckEnd sees that the address of an end is a pod's, and nobody else's.
func (c cluster) CheckEnd(t *testing.T, addr string) error {
	t.Helper()
	_, err := c.host(t, "node1").run("ping", "-c1", "-W2", addr)
	return err
}

// dropBetween has the underlay drop packets between nodes, on their way through its bridge.
func (c cluster) dropBetween(t *testing.T, match string) {
	t.Helper()
	u := c.host(t, "underlay")
	u.exec(t, "nft add table bridge lost")
	must(t, "", second(u.run("nft", "add chain bridge lost forward { type filter hook forward priority 0; }")))
	u.exec(t, "nft add rule bridge lost forward "+match+" drop")
	t.Cleanup(func() { u.run("nft", "delete", "table", "bridge", "lost") })
}

func second(_ string, err error) error { return err }

func (c cluster) passBetween(t *testing.T) {
	t.Helper()
	c.host(t, "underlay").exec(t, "nft delete table bridge lost")
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

// awaitReach waits until each of two nodes has the other in that state; empty: its agent is not asked.
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

// awaitFinding waits until a node tells that of its path to the other in IPv4.
func (c cluster) awaitFinding(t *testing.T, node, want string) {
	t.Helper()
	took := wait(t, labtest.Patience(t, 30*time.Second), func() string {
		r := c.reach(t, node)
		for _, f := range r.Findings {
			if f.Family == "IPv4" && f.FromThere+" "+f.ToThere == want {
				return ""
			}
		}
		return fmt.Sprintf("%s has %+v, want %s", node, *r, want)
	})
	t.Logf("%s reports %q after %s", node, want, took)
}

// neverBroken sees that a node tells no fault for a while.
func (c cluster) neverBroken(t *testing.T, node string, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if r := c.reach(t, node); len(r.Findings) > 0 {
			t.Fatalf("%s reports %+v", node, r.Findings)
		}
	}
}
