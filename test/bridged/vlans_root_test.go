package bridged

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// "fairleadctl doctor vlans" distinguishes a VLAN missing on a node's switch port from a gateway that is down.
func TestRootSilentVLANs(t *testing.T) {
	ovstest.UserspaceOnly(t, "the kernel of a pod asks, on both the same")
	c := up(t, lab.Options{})
	pods := c.addPods(t, "a", []string{"10", "20"}, "node1")
	there := c.addPods(t, "b", []string{"10"}, "node2")[0]
	meet := func() {
		t.Helper()
		wait(t, time.Minute, func() string { // the first may get the error of an earlier failed resolution
			if _, err := pods[0].run("ping", "-c1", "-W5", there.of(4).String()); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	router := c.host(t, underlay.Router)
	ofRouter := func(state string) {
		t.Helper()
		_, err := router.run("ip", "link", "set", "eth10", state)
		must(t, err)
	}
	const well = "No problems were found"
	c.doctorSays(t, "at the start", "node1", well)
	ofRouter("down")
	c.doctorSays(t, "VLAN 10's gateway is away", "node1", "gateway-silent", "VLAN 10", "have no other neighbour")
	ofRouter("up")
	meet()
	c.trunk(t, "0,20")
	c.doctorSays(t, "VLAN 10 does not come", "node1", "vlan-silent", "VLAN 10", "192.168.110.1", "pod default/a-10", "switch")
	c.doctorSays(t, "VLAN 10 does not come to node1", "node2", well)
	c.trunk(t, "0,10,20")
	c.doctorSays(t, "VLAN 10 is back", "node1", well)
	meet()
	ofRouter("down")
	c.doctorSays(t, "VLAN 10's gateway is away", "node1", "gateway-silent", "VLAN 10", there.of(4).String()+" answers")
	ofRouter("up")
	c.doctorSays(t, "the gateway is back", "node1", well)
}

// trunk makes the switch carry these VLANs to node1.
func (c cluster) trunk(t *testing.T, vlans string) {
	t.Helper()
	_, err := c.host(t, underlay.Switch).run("ovs-vsctl", "set", "Port", underlay.NodeName(1), "trunks="+vlans)
	must(t, err)
}

// doctorSays waits until the check on a node says all words.
func (c cluster) doctorSays(t *testing.T, when, node string, words ...string) {
	t.Helper()
	wait(t, time.Minute, func() string {
		out, err := c.host(t, node).run(filepath.Join(binDir, "fairleadctl"), "doctor", "vlans")
		if err != nil {
			out += err.Error()
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				return when + ": " + node + " says, without \"" + w + "\": " + out
			}
		}
		return ""
	})
}
