package crash

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// The next start of ovs-vswitchd keeps the kernel's megaflows only while a guard runs, and a key that was set
// externally stays for some seconds. ovs-vswitchd never waits forever.
func TestRootRestoreWait(t *testing.T) {
	c := up(t)
	armed := "{}"
	if c.Datapath() == vswitch.System {
		armed = "{flow-restore-wait=True}"
	}
	c.key(t, armed)
	restart := func() {
		must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.Vswitchd))
		must(t, c.OVSStart(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	}
	set := func(value string) {
		c.exec(t, "ovs-vsctl", "--timeout=10", "--no-wait", "set", "Open_vSwitch", ".", "other_config:flow-restore-wait="+value)
	}
	t.Run("a new agent writes nothing", func(t *testing.T) {
		c.readyForCNI(t)
		before := c.rows(t)
		c.kill(t)
		c.readyForCNI(t)
		if now := c.rows(t); now != before {
			t.Errorf("OVSDB before:\n%s\nafter:\n%s", before, now)
		}
	})
	t.Run("no agent", func(t *testing.T) {
		must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
		restart()
		c.key(t, "{}") // by the guard, where there is one
		must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
		must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
		c.key(t, armed)
		c.check(t)
	})
	t.Run("no guard", func(t *testing.T) {
		must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.Guard))
		c.key(t, "{}")
		must(t, c.AgentKill(labtest.Within(t, time.Minute), node))
		set("True") // as if both had died before they could remove it
		must(t, c.startAgent(labtest.Within(t, time.Minute)))
		c.key(t, "{}")
		must(t, c.OVSStart(labtest.Within(t, time.Minute), node))
		c.key(t, armed)
	})
	t.Run("left behind by another program", func(t *testing.T) {
		set("true")
		restart()
		c.key(t, armed)
		must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
		c.check(t)
	})
	t.Run("ovs-ctl restart", func(t *testing.T) {
		// What ovs-ctl does, with its own helper ovs-save; it could not start the daemons of a lab.
		c.readyForCNI(t)
		saved := c.exec(t, "env", "TMPDIR=/tmp", "/usr/share/openvswitch/scripts/ovs-save", "save-flows", "br-int")
		set("true")
		restart()
		c.exec(t, "sh", "-ec", saved)
		c.exec(t, "ovs-vsctl", "--timeout=10", "--no-wait", "--if-exists", "remove", "Open_vSwitch", ".", "other_config",
			"flow-restore-wait=true")
		must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
		c.key(t, armed)
		c.check(t)
	})
}

// key waits until other_config of the Open_vSwitch row is want: no later than after the grace time of a start.
func (c cluster) key(t *testing.T, want string) {
	t.Helper()
	eventually(t, 15*time.Second, func() []string {
		got := c.exec(t, "ovs-vsctl", "--timeout=10", "get", "Open_vSwitch", ".", "other_config")
		if strings.TrimSpace(got) != want {
			return []string{fmt.Sprintf("other_config is %s, want %s", got, want)}
		}
		return nil
	})
}
