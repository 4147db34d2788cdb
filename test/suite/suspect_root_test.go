package suite

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// In a large cluster an agent probes only some of the other nodes. One that does not answer a pod's packets is probed
// as well: here, none of the others exists.
func TestRootTrafficMakesSuspect(t *testing.T) {
	c := up(t, lab.Options{Nodes: 1})
	var manifests []string
	for i := range 60 {
		manifests = append(manifests, nodeYAML(fmt.Sprintf("absent%02d", i), fmt.Sprintf("10.77.%d.0/24", 100+i),
			fmt.Sprintf("192.168.77.%d", 100+i)))
	}
	c.apply(t, manifests...)
	c.addPods(t, "client@node1")
	var others []int
	wait(t, time.Minute, func() string {
		asked := c.asked(t)
		if others = nil; len(asked) < 8 { // the partner may be one of the neighbours, for minutes
			return fmt.Sprintf("%d nodes are asked", len(asked))
		}
		for i := range 60 {
			if !asked[fmt.Sprintf("absent%02d", i)] {
				others = append(others, i)
			}
		}
		return ""
	})
	if len(others) < 30 {
		t.Fatalf("only %d of 60 nodes are not asked", len(others))
	}
	sent, found := others[:3], map[int]bool{} // not all at once: there are more that do not answer, as those asked before
	wait(t, labtest.Patience(t, 2*time.Minute), func() string {
		asked := c.asked(t)
		for _, i := range sent {
			if out, err := c.pod(t, "client").run("ping", "-c1", "-W1", fmt.Sprintf("10.77.%d.9", 100+i)); err == nil {
				t.Fatal(out)
			}
			if asked[fmt.Sprintf("absent%02d", i)] {
				found[i] = true
			}
		}
		if len(found) < len(sent) {
			return fmt.Sprintf("of %v, only %v were asked", sent, found)
		}
		return ""
	})
}

// asked are the nodes that node1's agent probes.
func (c cluster) asked(t *testing.T) map[string]bool {
	t.Helper()
	asked := map[string]bool{}
	if r := c.reach(t, "node1"); r != nil {
		for _, p := range r.Paths {
			asked[p.ReachFinding.Node] = true
		}
	}
	return asked
}
