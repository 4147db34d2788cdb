package crash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// An agent that is stopped finishes the calls in progress, or fails them and leaves nothing, and exits within 15
// seconds.
func TestRootSIGTERMDuringADDs(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	r := dice(t)
	c := up(t)
	longest := time.Duration(0)
	for i := range 10 {
		c.readyForCNI(t)
		var pods []string
		for p := range 8 {
			pods = append(pods, podYAML(fmt.Sprintf("t%d", p), node))
		}
		if i%2 == 0 {
			c.apply(t, pods...)
		} else {
			c.remove(t, pods...)
		}
		pause(r, 120*time.Millisecond)
		began := time.Now()
		stop, cancel := context.WithTimeout(t.Context(), 15*time.Second) // the promise: not as patient as labtest.Within
		must(t, c.AgentStop(stop, node))
		cancel()
		longest = max(longest, time.Since(began))
		s, err := c.AgentState(labtest.Within(t, time.Minute), node)
		must(t, err)
		if s.Exit == nil || *s.Exit != 0 {
			t.Errorf("after SIGTERM the agent is %s, want exit code 0", s)
		}
		must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
		c.settle(t)
		c.check(t)
	}
	t.Logf("the longest stop took %s", longest.Round(time.Millisecond))
}
