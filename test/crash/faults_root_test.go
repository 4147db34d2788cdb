package crash

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// While a daemon of Open vSwitch is down or hangs, readiness and STATUS name it, and ADD and DEL fail with "try again
// later" and the same message. All works again when it is back.
func TestRootFaultsAreReported(t *testing.T) {
	c := up(t)
	signal := func(d lab.Daemon, sig unix.Signal) func() {
		return func() { must(t, unix.Kill(d.PID(c.node), sig)) }
	}
	kill := func(d ...lab.Daemon) func() {
		return func() { must(t, c.OVSKill(labtest.Within(t, time.Minute), node, d...)) }
	}
	begin := func() { must(t, c.OVSStart(labtest.Within(t, time.Minute), node)) }
	for _, f := range []struct {
		what          string
		fault, repair func()
		says          string
	}{
		{"ovs-vswitchd dead", kill(lab.Vswitchd), begin, "ovs-vswitchd is down"},
		{"ovsdb-server dead", kill(lab.OVSDB), begin, "ovsdb-server is down"},
		{"both dead", kill(lab.Vswitchd, lab.OVSDB), begin, "ovsdb-server is down"},
		{"ovs-vswitchd hangs", signal(lab.Vswitchd, unix.SIGSTOP), signal(lab.Vswitchd, unix.SIGCONT),
			"ovs-vswitchd does not answer"},
		{"ovsdb-server hangs", signal(lab.OVSDB, unix.SIGSTOP), signal(lab.OVSDB, unix.SIGCONT),
			"ovsdb-server is down"},
	} {
		t.Run(f.what, func(t *testing.T) {
			c.readyForCNI(t)
			f.fault()
			eventually(t, time.Minute, func() []string {
				s, err := c.AgentState(t.Context(), node)
				if err != nil || s.Ready || !strings.Contains(s.Reason, f.says) {
					return []string{fmt.Sprintf("the agent is %s, %v; want it to say %q", s, err, f.says)}
				}
				return nil
			})
			c.refuses(t, lab.STATUS, f.says, 50)
			c.refuses(t, lab.ADD, f.says, 11, "default/x")
			c.refuses(t, lab.DEL, f.says, 11, "default/near")
			began := time.Now()
			f.repair()
			must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
			_, err := c.CNI(labtest.Within(t, time.Minute), node, lab.DEL, "default/x")
			must(t, err)
			t.Logf("ready %s after the repair", time.Since(began).Round(time.Millisecond))
			// The runner ignores a pod after a manual DEL, so it is recreated.
			c.remove(t, podYAML("near", node))
			c.settle(t)
			c.apply(t, podYAML("near", node))
			c.settle(t)
			c.check(t)
		})
	}
}

// refuses calls a verb that must fail with the code and the message while the fault lasts.
func (c cluster) refuses(t *testing.T, verb lab.Verb, says string, code int, pods ...string) {
	t.Helper()
	out, err := c.CNI(labtest.Within(t, 60*time.Second), node, verb, pods...)
	if err == nil || !strings.Contains(out, says) || !strings.Contains(out, fmt.Sprintf(`"code": %d`, code)) {
		t.Errorf("%s: want code %d and %q: %v %s", verb, code, says, err, out)
	}
}

// However Open vSwitch loses its state, it is restored when it runs again: pods are not affected, and keep their
// addresses.
func TestRootOpenVSwitchLosesAll(t *testing.T) {
	c := up(t)
	c.apply(t, podYAML("a", node))
	c.settle(t)
	pods := c.pods(t)
	restart := func(d ...lab.Daemon) { must(t, c.OVSStart(labtest.Within(t, time.Minute), node, d...)) }
	for what, lose := range map[string]func(){
		"exit --cleanup": func() { // leaves a gateway that is down and has no address
			c.exec(t, "ovs-appctl", "-T", "5", "exit", "--cleanup")
			eventually(t, 5*time.Second, func() []string { return c.runs(lab.Vswitchd) })
			restart(lab.Vswitchd)
		},
		"bridge deleted": func() { c.exec(t, "ovs-vsctl", "--timeout=10", "del-br", "br-int") },
		"database lost": func() {
			must(t, c.OVSKill(labtest.Within(t, time.Minute), node))
			must(t, os.Remove(c.node.Private("/etc/openvswitch/conf.db")))
			restart()
		},
		"database lost under ovs-vswitchd": func() {
			must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.OVSDB))
			must(t, os.Remove(c.node.Private("/etc/openvswitch/conf.db")))
			restart(lab.OVSDB)
		},
	} {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, agent runs %v", what, running), func(t *testing.T) {
				c.readyForCNI(t)
				if !running {
					must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
				}
				lose()
				if !running {
					must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
				}
				must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
				c.check(t)
				for i, p := range c.pods(t) {
					if p.Name != pods[i].Name || p.ContainerID != pods[i].ContainerID {
						t.Errorf("%s was recreated", p.Name)
					}
				}
				c.addAndDelete(t)
			})
		}
	}
}

func (c cluster) runs(d lab.Daemon) []string {
	if pid := d.PID(c.node); pid != 0 {
		return []string{fmt.Sprintf("%s still runs", d)}
	}
	return nil
}

func (c cluster) addAndDelete(t *testing.T) {
	t.Helper()
	c.apply(t, podYAML("passing", node))
	c.settle(t)
	c.check(t)
	c.remove(t, podYAML("passing", node))
	c.settle(t)
	c.check(t)
}

// A datapath that was deleted externally is not recreated automatically: the error names the remedy.
func TestRootDatapathDeleted(t *testing.T) {
	ovstest.KernelOnly(t, "the userspace datapath cannot be deleted under ovs-vswitchd")
	c := up(t)
	c.exec(t, "ovs-dpctl", "del-dp", "ovs-system")
	eventually(t, 30*time.Second, func() []string {
		s, err := c.AgentState(t.Context(), node)
		if err != nil || s.Ready || !strings.Contains(s.Reason, "restart ovs-vswitchd") {
			return []string{fmt.Sprintf("the agent is %s, %v", s, err)}
		}
		return nil
	})
	c.refuses(t, lab.ADD, "restart ovs-vswitchd", 11, "default/x")
	must(t, c.OVSKill(labtest.Within(t, time.Minute), node, lab.Vswitchd))
	must(t, c.OVSStart(labtest.Within(t, time.Minute), node))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
	_, err := c.CNI(labtest.Within(t, time.Minute), node, lab.DEL, "default/x") // as a runtime does after a failed ADD
	must(t, err)
	c.addAndDelete(t)
}
