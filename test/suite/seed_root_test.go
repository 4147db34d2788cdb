package suite

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Fairlead starts with the unchanged values of a cluster that ran Antrea's bridging mode: pods reach each other without
// a tunnel, and the outside sees their own addresses.
func TestRootConfigOfABridgingCluster(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{Config: []byte(`
featureGates:
  AntreaIPAM: true
enableBridgingMode: true
trafficEncapMode: noEncap
noSNAT: true
`)})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	node1, outside := c.host(t, "node1"), c.host(t, underlay.Outside)
	if ports := node1.exec(t, "ovs-vsctl list-ports br-int"); strings.Contains(ports, "fairlead-tun0") {
		t.Errorf("there is a tunnel:\n%s", ports)
	}
	for _, node := range c.Nodes() {
		for _, key := range []string{"enableBridgingMode", "featureGates.AntreaIPAM"} {
			if n := warnings(c.log(t, node), key); n != 0 {
				t.Errorf("%s warns %d times about %s, want never:\n%s", node, n, key, c.log(t, node))
			}
		}
	}
	a, b, far := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	for i := range a.ips {
		reach(t, a, b.ips[i])
		reach(t, a, gatewayOf(c.family.PodCIDRs(1)[i]))
		reach(t, a, c.family.NodeAddrs(1)[i].Addr())
		reach(t, node1, a.ips[i])
		reach(t, a, far.ips[i])
		outside.exec(t, "ip route add "+c.family.PodCIDRs(1)[i].String()+" via "+c.family.NodeAddrs(1)[i].Addr().String())
		if got := peerSeen(t, "tcp", a, outside, c.family.FarAddrs()[i].Addr()); got != a.ips[i] {
			t.Errorf("the outside sees %s, want the pod's own %s", got, a.ips[i])
		}
	}
	if e := plugin(t, node1, lab.STATUS); e != (cniError{}) {
		t.Errorf("STATUS: %+v", e)
	}
}

// warnings counts the log lines that warn about key.
func warnings(log, key string) (n int) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "warning=") && strings.Contains(line, key) {
			n++
		}
	}
	return n
}
