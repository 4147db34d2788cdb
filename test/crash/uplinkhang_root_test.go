package crash

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// hangLimit is how long a node may be without its network when ovs-vswitchd hangs.
const hangLimit = time.Minute

// hang stops ovs-vswitchd until goOn.
func (c cluster) hang(t *testing.T) (goOn func()) {
	t.Helper()
	pid := lab.Vswitchd.PID(c.node)
	must(t, unix.Kill(pid, unix.SIGSTOP))
	goOn = func() { _ = unix.Kill(pid, unix.SIGCONT) }
	t.Cleanup(goOn)
	return goOn
}

// An ovs-vswitchd that hangs is treated like a dead one: the host has its NIC until it answers again.
func (c cluster) vswitchdHangs(t *testing.T) {
	c.says(t, "attached: ") // else the previous attach may fail, because the gateway did not answer
	goOn, began := c.hang(t), time.Now()
	c.attachedWithin(t, hangLimit, false)
	t.Logf("the host has its network after %s", time.Since(began).Round(time.Second))
	c.says(t, "does not answer")
	goOn()
	c.attached(t, true)
}

// says waits until the uplink's status has all these words: the NIC is restored before the reason is recorded.
func (c cluster) says(t *testing.T, words ...string) {
	t.Helper()
	eventually(t, time.Minute, func() (wrong []string) {
		status := c.exec(t, filepath.Join(binDir, "fairlead-agent"), "uplink", "status")
		for _, w := range words {
			if !strings.Contains(status, w) {
				wrong = append(wrong, fmt.Sprintf("status lacks %q:\n%s", w, status))
			}
		}
		return wrong
	})
}

// An agent that starts while ovs-vswitchd hangs and the node's addresses are gone does not wait for ovs-vswitchd.
func (c cluster) startsBesideHung(t *testing.T) {
	must(t, c.AgentKill(labtest.Within(t, time.Minute), node))
	goOn := c.hang(t)
	if c.Datapath() == vswitch.Netdev {
		c.exec(t, "ip", "link", "del", "br-uplink")
	} else {
		c.exec(t, "ovs-dpctl", "del-if", "ovs-system", "br-uplink")
	}
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	began := time.Now()
	c.attachedWithin(t, hangLimit, false)
	t.Logf("the host has its network after %s", time.Since(began).Round(time.Second))
	goOn()
	c.attached(t, true)
}
