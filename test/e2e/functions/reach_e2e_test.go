package functions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// blocked checks that doctor, reach and status, run outside the nodes, an Event on each Node and each agent's metric
// report an underlay that drops tunnel packets, and that commands and metrics report no fault once it delivers them.
func (c functions) blocked(t *testing.T) {
	well := func() {
		t.Helper()
		c.says(t, "", []string{"reach ok"}, "doctor")
		c.says(t, "", pairOf("pass"), "reach", "node1", "node2")
		c.says(t, "", []string{"ready 2/2"}, "status")
		c.counts(t, "broken", 0)
	}
	well()
	begun := time.Now()
	c.onSwitch(t, "add-flow", "br0", "priority=1000,udp,tp_dst=6081,actions=drop")
	out := c.says(t, "exit status 4", []string{"Problem 1: reach: pods-blocked", "may be blocked between the nodes",
		"from node1 to node3 in IPv4", "node node2: ping of its node's address: answered"}, "doctor")
	t.Logf("doctor names it after %.0f s:\n%s", time.Since(begun).Seconds(), out)
	c.says(t, "exit status 4", append(pairOf("do not pass"), "reach: pods-blocked"), "reach", "node1", "node2")
	c.says(t, "", []string{"ready 0/2, not: node2,node3", "ready 0/2, not: node1,node3", "ready 0/2, not: node1,node2"}, "status")
	c.counts(t, "broken", 2)
	for _, node := range c.Nodes() {
		cluster.Eventually(t, func() error { return c.event(t, node, "udp port 6081 may be blocked") })
	}
	if out := c.says(t, "exit status 4", []string{"reach 1 finding"}, "doctor"); strings.Contains(out, "Problem 2") {
		t.Errorf("one fault is several problems:\n%s", out)
	}

	begun = time.Now()
	c.onSwitch(t, "del-flows", "br0", "udp,tp_dst=6081")
	well()
	t.Logf("it is over after %.0f s", time.Since(begun).Seconds())
	for _, node := range c.Nodes() { // the last Event on each still names the cause
		cluster.Must(t, c.event(t, node, "udp port 6081 may be blocked"))
	}
}

// pairOf is what reach prints about all paths between node1 and node2.
func pairOf(packets string) (lines []string) {
	for _, family := range []string{"IPv4", "IPv6"} {
		lines = append(lines, "node1 node2 "+family+" "+packets, "node2 node1 "+family+" "+packets)
	}
	return lines
}

// says runs fairleadctl until it prints all of these words and ends with that error, empty for none, and returns its
// output.
func (c functions) says(t *testing.T, end string, words []string, args ...string) (out string) {
	t.Helper()
	cluster.Eventually(t, func() (err error) {
		out, err = c.Fairleadctl(t, args...)
		flat := strings.Join(strings.Fields(fmt.Sprint(out, err)), " ")
		for _, w := range append(words, end) {
			if !strings.Contains(flat, w) {
				return fmt.Errorf("%v: %w\n%s\nwant %q and %q", args, err, out, end, w)
			}
		}
		if end == "" && err != nil {
			return err
		}
		return nil
	})
	return out
}

// onSwitch changes what the underlay's switch forwards.
func (c functions) onSwitch(t *testing.T, args ...string) {
	t.Helper()
	_, err := c.NodeExec(t.Context(), underlay.Switch, append([]string{"ovs-ofctl"}, args...)...)
	cluster.Must(t, err)
}

// counts checks on each node the number of peers that its agent has in a state.
func (c functions) counts(t *testing.T, state string, want int) {
	t.Helper()
	for _, node := range c.Nodes() {
		line := fmt.Sprintf("fairlead_reach_peers{state=%q} %d\n", state, want)
		cluster.Eventually(t, func() error {
			out, err := c.NodeExec(t.Context(), node, "curl", "-sf", "http://127.0.0.1:10350/metrics")
			if err == nil && !strings.Contains(out, line) {
				err = fmt.Errorf("%s: no %q in its metrics", node, line)
			}
			return err
		})
	}
}

// event checks that the last Event on a Node about pods that are not reached has these words.
func (c functions) event(t *testing.T, node, words string) error {
	events, err := c.API.CoreV1().Events("").List(t.Context(), metav1.ListOptions{
		FieldSelector: "reason=PodsNotReached,involvedObject.kind=Node,involvedObject.name=" + node})
	if err != nil {
		return err
	}
	if len(events.Items) != 1 || !strings.Contains(events.Items[0].Message, words) {
		return fmt.Errorf("%s has %d Events, want one with %q: %v", node, len(events.Items), words, events.Items)
	}
	return nil
}
