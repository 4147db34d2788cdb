package bridged

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
	"github.com/fairlead-cni/fairlead/test/traces"
)

// "fairlead-agent uninstall" removes everything that an agent configured on a node with an uplink, pods of both kinds
// and Services in Open vSwitch, and restores what was there before.
func TestRootUninstall(t *testing.T) {
	for _, uplink := range []string{api.UplinkBridge, api.UplinkSteer} {
		for _, dead := range []bool{false, true} {
			name := uplink
			if dead {
				name += " ovs dead"
			}
			t.Run(name, func(t *testing.T) {
				if !dead {
					ovstest.UserspaceOnly(t, "a dead Open vSwitch asks for more")
				}
				testUninstall(t, uplink, dead)
			})
		}
	}
}

// twoEndpoints is a Service for which Open vSwitch has a group.
const twoEndpoints = `apiVersion: v1
kind: Service
metadata: {name: two}
spec: {clusterIP: 10.96.0.2, clusterIPs: [10.96.0.2], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: two, labels: {kubernetes.io/service-name: two}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.77.1.2]}, {addresses: [10.77.1.3]}]
`

func testUninstall(t *testing.T, uplink string, dead bool) {
	c := upBare(t, lab.Options{Nodes: 1, Uplink: uplink, NoAgent: true, Config: []byte("trafficEncapMode: noEncap\nservices: ovs\nserviceCIDR: 10.96.0.0/16\n")})
	node := c.host(t, "node1")
	_, err := node.run("sh", "-ec", "mkdir -p /etc/cni/net.d /opt/cni/bin; echo theirs >/opt/cni/bin/antrea; "+
		"echo '{}' >/etc/cni/net.d/99-other.conflist")
	must(t, err)
	wait(t, 20*time.Second, func() string {
		out, err := node.run("ip", "-6", "-o", "addr")
		if err != nil || strings.Contains(out, "tentative") {
			return fmt.Sprint("every address in use: ", out, err)
		}
		return ""
	})
	before := c.stateOf(t, node)

	must(t, c.AgentStart(labtest.Within(t, 10*time.Second), "node1"))
	must(t, c.WaitReady(labtest.Within(t, 60*time.Second), "node1"))
	c.apply(t, pools(10))
	c.addPods(t, "a", []string{routed, "10"}, "node1")
	c.apply(t, twoEndpoints)
	wait(t, 20*time.Second, func() string {
		if out, err := node.run("ovs-ofctl", "-OOpenFlow15", "dump-groups", "br-int"); !strings.Contains(out, "bucket") {
			return fmt.Sprint("no group of the Service: ", out, err)
		}
		return ""
	})
	agent := filepath.Join(binDir, "fairlead-agent")
	out, err := node.run(agent, "uninstall")
	if err == nil || !strings.Contains(out, "another fairlead-agent is running on this node") {
		t.Errorf("beside an agent: %v\n%s", err, out)
	}
	must(t, c.AgentStop(labtest.Within(t, 20*time.Second), "node1"))
	if dead {
		must(t, c.OVSStop(labtest.Within(t, 10*time.Second), "node1"))
	}

	installed := c.atRest(t, node)
	dry, err := node.run(agent, "uninstall", "--dry-run")
	must(t, err)
	c.is(t, node, installed, "a dry run has changed")
	out, err = node.run(agent, "uninstall")
	must(t, err)
	t.Logf("uninstall said\n%s", out)
	for line := range strings.Lines(dry) {
		if said := strings.TrimPrefix(line, "would be done: "); !strings.Contains(out, said) {
			t.Errorf("a dry run says that this would be done, and it was not: %s", said)
		}
	}
	if dead {
		must(t, c.OVSStart(labtest.Within(t, 20*time.Second), "node1"))
	}
	c.is(t, node, before, "the node is not as it was")
	out, err = node.run(agent, "uninstall")
	if err != nil || strings.Contains(out, "removed\n") || !strings.Contains(out, "there is nothing of Fairlead to remove") {
		t.Errorf("a second time: %v\n%s", err, out)
	}
	if !dead {
		c.interruptedUninstall(t, node, agent)
		c.is(t, node, before, "after an interrupted repetition the node is not as it was")
	}
	// It can be installed again.
	must(t, c.AgentStart(labtest.Within(t, 10*time.Second), "node1"))
	must(t, c.WaitReady(labtest.Within(t, 60*time.Second), "node1"))
}

// interruptedUninstall kills an uninstallation in the middle, after another one has finished: this is how the container
// "stay" of the DaemonSet fairlead-uninstall ends if that is deleted early. It waits for ovsdb-server, which is
// stopped.
func (c cluster) interruptedUninstall(t *testing.T, node place, agent string) {
	t.Helper()
	out, err := node.run("sh", "-c", `ovsdb=$(cat /run/openvswitch/ovsdb-server.pid); kill -STOP $ovsdb; `+agent+` uninstall --stay & pid=$!
		until [ -e /run/fairlead/agent.lock ]; do sleep 0.02; done; kill $pid; wait $pid; kill -CONT $ovsdb`)
	must(t, err)
	if !strings.Contains(out, "Run the command again") {
		t.Errorf("an interrupted uninstallation said %s", out)
	}
}

// atRest waits until nothing has changed for a while.
func (c cluster) atRest(t *testing.T, node place) (state traces.Node) {
	t.Helper()
	c.rests(t, "at rest: last seen to change", func() []string {
		last := state
		state = c.stateOf(t, node)
		return last.Differences(state)
	})
	return state
}

// is waits until the node's state has been that for a while: Linux and Open vSwitch complete some changes later.
func (c cluster) is(t *testing.T, node place, want traces.Node, otherwise string) {
	t.Helper()
	c.rests(t, otherwise, func() []string { return want.Differences(c.stateOf(t, node)) })
}

// rests waits until there are no differences for longer than the second after which Linux reports a lost carrier.
func (c cluster) rests(t *testing.T, otherwise string, differences func() []string) {
	t.Helper()
	since := time.Now()
	wait(t, 20*time.Second, func() string {
		d := differences()
		if len(d) > 0 {
			since = time.Now()
		}
		if time.Since(since) < 1200*time.Millisecond {
			return otherwise + ":\n" + strings.Join(d, "\n")
		}
		return ""
	})
}

// stateOf is all state of a node that an agent may change.
func (c cluster) stateOf(t *testing.T, node place) traces.Node {
	t.Helper()
	n, err := traces.Read(labtest.Within(t, 30*time.Second), node.host)
	must(t, err)
	return n
}
