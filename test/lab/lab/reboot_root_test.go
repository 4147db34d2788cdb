package lab

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// After a reboot a node has its files and its addresses, and nothing else of the previous boot. Its pods are recreated.
func TestRootReboot(t *testing.T) {
	l := upWithAgents(t, Options{Nodes: 1, Mode: underlay.Bridge})
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: node1, containers: [{name: c, image: x}]}\n"
	if _, err := l.Apply("test", []byte(pod)); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitPods(labtest.Within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	before, err := l.Records().Load("default/a")
	if err != nil {
		t.Fatal(err)
	}
	bootID := func() string { return nodeExec(t, l, "node1", "cat", "/proc/sys/kernel/random/boot_id") }
	first, db := bootID(), nodeExec(t, l, "node1", "ovs-vsctl", "get", "Bridge", "br-int", "_uuid")
	machine, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || first == string(machine) || len(first) != len(machine) {
		t.Errorf("the boot ID of the node is %q, and of the machine %q, %v", first, machine, err)
	}
	nodeExec(t, l, "node1", "sh", "-c", "touch /run/volatile /etc/lasting; ip link add stale type veth peer name stale2")

	if err := l.Reboot(labtest.Within(t, 20*time.Second), "node1"); err != nil {
		t.Fatal(err)
	}
	if got := nodeExec(t, l, "node1", "sh", "-c",
		"ls /run/volatile /etc/lasting 2>/dev/null; ls /sys/class/net/stale 2>/dev/null; true"); got != "/etc/lasting\n" {
		t.Errorf("there is %q, want /etc/lasting only", got)
	}
	if again := bootID(); again == first {
		t.Errorf("the boot ID stayed %s", again)
	}
	if again := nodeExec(t, l, "node1", "ovs-vsctl", "get", "Bridge", "br-int", "_uuid"); again != db {
		t.Errorf("br-int was %s, and is %s: the database is another", db, again)
	}
	if got := nodeExec(t, l, "node1", "ovs-vsctl", "list-br"); got != "br-int\n" {
		t.Errorf("Open vSwitch came back with the bridges %q, want br-int only: the NIC is the host's", got)
	}
	if s, err := l.AgentState(t.Context(), "node1"); err != nil || s.PID != 0 {
		t.Errorf("the agent is %s, %v", s, err)
	}
	for _, to := range l.spec.IPFamily.FarAddrs() {
		nodeExec(t, l, "node1", "ping", "-c1", "-w30", to.Addr().String())
	}

	if err := l.AgentStart(labtest.Within(t, 5*time.Second), "node1"); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitReady(labtest.Within(t, 20*time.Second), "node1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is recreated", func() bool {
		now, err := l.Records().Load("default/a")
		return err == nil && now != nil && now.ContainerID != before.ContainerID && len(now.IPs) > 0
	})
	if got := podExec(t, l, "default/a", "ip", "-br", "addr"); !strings.Contains(got, "10.77.1.") {
		t.Errorf("the pod has\n%s", got)
	}
}
