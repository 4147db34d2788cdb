package crash

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A DEL is answered while the pod's port and veth still exist. Whichever process is killed then, nothing remains.
func TestRootAnsweredAndNotRemoved(t *testing.T) {
	c := up(t)
	w := c.watch(t)
	stopWatching := c.watchAddresses(t)
	defer stopWatching()
	t.Run("agent killed", func(t *testing.T) {
		maxTries, found := 30, 0
		if c.Datapath() == vswitch.System {
			maxTries = 8 // each takes long on a guest's one processor
		}
		for tries := 0; tries < 5 || found == 0 && tries < maxTries; tries++ {
			c.killedAtAnswer(t, w, c.agentPID(t))
			found += len(c.retired(t))
			c.kill(t)
			c.settle(t)
			c.check(t)
		}
		if found == 0 {
			t.Error("the agent had removed the ports each time: this tested nothing")
		}
	})
	t.Run("ovs-vswitchd killed", func(t *testing.T) {
		c.killedAtAnswer(t, w, lab.Vswitchd.PID(c.node))
		eventually(t, time.Minute, func() []string { // the agent first waits 5 s for ovs-vswitchd
			veths, err := nodestate.Veths(c.node)
			must(t, err)
			if left := c.retired(t); len(left)+len(veths) != 1 { // that of the pod that stays
				return []string{fmt.Sprintf("there are still the ports %v and the veths %v", left, veths)}
			}
			return nil
		})
		must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
		c.check(t)
	})
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("all addresses twice, agent killed %v", kill), func(t *testing.T) {
			ovstest.UserspaceOnly(t, "no packet decides it")
			c.allTwice(t, kill)
		})
	}
}

// killedAtAnswer deletes a pod, and kills a process as soon as the runtime has the answer.
func (c cluster) killedAtAnswer(t *testing.T, w *watcher, pid int) {
	t.Helper()
	c.readyForCNI(t)
	c.apply(t, podYAML("x", node))
	c.settle(t)
	killed := w.arm(delDone, pid, 0)
	c.remove(t, podYAML("x", node))
	wait(t, killed, string(delDone))
}

// retired are the rows of retired ports.
func (c cluster) retired(t *testing.T) []string {
	t.Helper()
	return strings.Fields(c.exec(t, "ovs-vsctl", "--timeout=10", "--bare", "--columns=name", "find", "Port",
		"external_ids:fairlead=retired"))
}

// allTwice allocates all addresses to pods, deletes these and allocates the addresses to others at once. Then nothing
// is left.
func (c cluster) allTwice(t *testing.T, kill bool) {
	var pods [2][]string
	for i := range 28 { // of 29 addresses; one pod stays
		pods[0], pods[1] = append(pods[0], podYAML(fmt.Sprint("a", i), node)), append(pods[1], podYAML(fmt.Sprint("b", i), node))
	}
	c.readyForCNI(t)
	for _, p := range pods {
		c.apply(t, p...)
		c.settle(t)
		c.check(t)
		c.remove(t, p...)
		c.settle(t)
		if kill {
			c.kill(t)
		}
	}
	if kill {
		c.readyForCNI(t)
	}
	eventually(t, time.Minute, func() []string { return c.differences(t, c.pods(t)) })
}
