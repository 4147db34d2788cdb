package ovstest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestDummy(t *testing.T) {
	o := Start(t, Options{})
	o.AddBridge("br0", Port{Name: "p1", OFPort: 7}, Port{Name: "gw0", OFPort: 8, Type: "internal"})
	if got := o.OFPort("p1"); got != 7 {
		t.Errorf("p1 has OpenFlow port %d, want 7", got)
	}
	if got := o.Ofctl("dump-flows", "br0"); strings.Contains(got, "actions=") {
		t.Errorf("a fresh bridge in fail mode secure has flows:\n%s", got)
	}
	o.Ofctl("add-flow", "br0", "in_port=7,ip,actions=output:8")
	if got := o.Trace("br0", "in_port=7,ip"); !strings.Contains(got, "output:8") {
		t.Errorf("trace does not show output:8:\n%s", got)
	}
}

// After a crash of either daemon Start restores the instance.
func TestRestart(t *testing.T) {
	o := Start(t, Options{})
	o.AddBridge("br0", Port{Name: "p1", OFPort: 7})
	o.Ofctl("add-flow", "br0", "in_port=7,actions=drop")

	before := o.Vswitchd.PID()
	o.Vswitchd.Kill()
	if _, err := o.Run("ovs-ofctl", "dump-flows", "unix:"+o.Mgmt("br0")); err == nil {
		t.Error("OpenFlow is served although ovs-vswitchd was killed")
	}
	o.Vswitchd.Start()
	if o.Vswitchd.PID() == before {
		t.Error("ovs-vswitchd was not restarted")
	}
	if got := o.Ofctl("dump-flows", "br0"); strings.Contains(got, "in_port") {
		t.Errorf("flows outlived ovs-vswitchd:\n%s", got)
	}
	o.Server.Kill()
	o.Server.Start()
	if got := o.OFPort("p1"); got != 7 {
		t.Errorf("p1 has OpenFlow port %d after the restarts, want 7", got)
	}
}

// A test that requires an Open vSwitch release that is not installed fails, and does not run on another.
func TestAnotherRelease(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDummy$")
	cmd.Env = append(os.Environ(), "FAIRLEAD_TEST_OVS=1.0")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "FAIRLEAD_TEST_OVS is 1.0, and \"ovsdb-server (Open vSwitch) ") {
		t.Errorf("%v: %s", err, out)
	}
}

// Whatever state a test leaves behind, nothing outlives it.
func TestNothingIsLeft(t *testing.T) {
	var o *OVS
	var pids []int
	t.Run("instance", func(t *testing.T) {
		o = Start(t, Options{})
		pids = []int{o.Server.PID(), o.Vswitchd.PID()}
		o.Vswitchd.Signal(syscall.SIGSTOP)
	})
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("process %d is still there (%v)", pid, err)
		}
	}
	if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", o.Dir, err)
	}
}
