package podcidr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// 300 nodes, and a cluster CIDR and node mask that were changed twice, on the real kube-controller-manager: the case of
// docs/troubleshooting.md. The third settings appear to hold 4096 nodes, but hold not a single additional one.
func TestKubeTwoChangesOfTheMask(t *testing.T) {
	nodes := map[string]inputs.Node{}
	for i := range 300 {
		n := node(i+1, fmt.Sprintf("worker-%03d", i+1))
		nodes[n.Name] = n
	}
	c := newRealCluster(t, allocatorWith(rangeOf("10.244.0.0/16", 24)), nodes)
	for _, step := range []struct {
		settings Range
		have     int
		says     string
	}{
		{rangeOf("10.244.0.0/16", 24), 256, "holds 256 nodes, and 300 exist (256 have one, 44 wait)"},
		{rangeOf("10.240.0.0/12", 16), 256 + 15, "holds 16 nodes, and 300 exist (271 have one, 29 wait)"},
		{rangeOf("10.240.0.0/12", 24), 256 + 15, "holds 4096 nodes, and 300 exist (271 have one, 29 wait); podCIDRs that are " +
			"shorter than /24 take several blocks each, 4096 in all"},
	} {
		c.facts.Ranges = []Range{step.settings}
		c.must(c.start())
		have := func() (n int) {
			for _, node := range c.nodes() {
				n += min(1, len(node.PodCIDRs))
			}
			return n
		}
		for start := time.Now(); have() != step.have && time.Since(start) < patience; {
			time.Sleep(100 * time.Millisecond)
		}
		c.settled(false)
		d := c.problem(Exhausted)
		if have() != step.have || !strings.Contains(d.Cause, step.says) {
			t.Errorf("%s: %d have one, want %d; the diagnosis is %s", step.settings, have(), step.have, d.Message())
		}
	}
	d := c.problem(Exhausted)
	if len(d.Remedies) != 1 || !slices.Equal(changeOf(t, d.Remedies[0]).ranges, []Range{rangeOf("10.224.0.0/11", 24)}) ||
		!strings.Contains(d.Message(), "A longer node mask does not help") {
		t.Fatalf("got %s", d.Message())
	}
	c.carryOut(d.Remedies[0])
	if left := FindAll(c.settled(true), c.facts, time.Now()); len(left) > 0 {
		t.Errorf("still wrong: %+v", left)
	}
}

// When a Node is deleted the real allocator releases its block, even if other nodes have it or parts of it, and assigns
// it to the next Node: therefore it is stopped while Nodes are deleted.
func TestKubeDeletedNodeFreesWhatOthersHave(t *testing.T) {
	for _, s := range []struct {
		name     string
		settings Range
		nodes    map[string]inputs.Node
		gets     string
	}{
		{"a twin", rangeOf("10.244.0.0/23", 24),
			nodeMap(node(1, "a", "10.244.0.0/24"), node(2, "b", "10.244.0.0/24"), node(3, "c", "10.244.1.0/24")), "10.244.0.0/24"},
		{"after a change of the mask", rangeOf("10.244.0.0/15", 16),
			nodeMap(node(1, "a", "10.244.0.0/24"), node(2, "b", "10.244.1.0/24"), node(3, "c", "10.245.0.0/16")), "10.244.0.0/16"},
	} {
		for _, stopped := range []bool{false, true} {
			c := newRealCluster(t, allocatorWith(s.settings), s.nodes)
			c.must(c.start())
			c.settled(true)
			want := s.gets
			if stopped {
				c.stop()
				want = ""
			}
			c.must(c.Admin().CoreV1().Nodes().Delete(t.Context(), "b", metav1.DeleteOptions{}))
			if stopped {
				c.must(c.start())
			}
			c.create(node(4, "d"))
			if got := report.Join(c.settled(!stopped)["d"].PodCIDRs, ","); got != want {
				t.Errorf("%s, stopped %v: the next node got %q, want %q", s.name, stopped, got, want)
			}
			c.stop()
		}
	}
}
