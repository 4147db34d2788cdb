package crash

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/ovstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// TestRootSteerLeavesHostAlone is a node in uplink mode steer. Whatever happens to the agent and to Open vSwitch, the
// host loses no packet, and a connection of its goes on.
func TestRootSteerLeavesHostAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	l, err := lab.Up(t.Context(), lab.Options{Dir: filepath.Join(t.TempDir(), "lab"), BinDir: binDir, Nodes: 1,
		Datapath: lab.Datapath(ovstest.UnderTest(t)), Mode: lab.Bridge, Uplink: api.UplinkSteer,
		Config: []byte("trafficEncapMode: noEncap")})
	must(t, err)
	t.Cleanup(func() { must(t, lab.Down(context.Background(), l.Dir(), nil)) })
	h, err := l.Host(node)
	must(t, err)
	c := cluster{Lab: l, node: h}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.agentLog(t))
		}
	})
	c.steers(t)
	if os.Getenv("FAIRLEAD_BENCH_ROUNDS") != "" {
		t.Run("gaps", c.gaps)
		return
	}
	c.apply(t, steeredPod)
	must(t, c.WaitPods(within(t, 30*time.Second)))
	for _, e := range c.steerEvents() {
		t.Run(e.name, func(t *testing.T) { c.hostUnmoved(t, e.do) })
	}
}

// steeredPod is one in VLAN 10.
const steeredPod = `apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: v4}
spec:
  ipRanges: [{start: 192.168.110.100, end: 192.168.110.199}]
  subnetInfo: {gateway: 192.168.110.1, prefixLength: 24, vlan: 10}
---
apiVersion: v1
kind: Pod
metadata: {name: s, annotations: {ipam.antrea.io/ippools: "v4"}}
spec: {nodeName: node1, containers: [{name: main, image: none}]}
`

// steerEvents come in this order. After each the pod is reached, but where the uplink is not there.
func (c cluster) steerEvents() []struct {
	name string
	do   func(*testing.T)
} {
	agentAgain := func(end func(context.Context, string) error) func(*testing.T) {
		return func(t *testing.T) {
			must(t, end(within(t, 15*time.Second), node))
			must(t, c.AgentStart(within(t, 5*time.Second), node))
			must(t, c.WaitReady(within(t, 30*time.Second), node))
			c.podReached(t)
		}
	}
	daemonAgain := func(d lab.Daemon) func(*testing.T) {
		return func(t *testing.T) {
			must(t, c.OVSKill(within(t, 10*time.Second), node, d))
			c.forgetNeighbours(t)
			time.Sleep(2 * time.Second) // in which the host is to be at work without it
			must(t, c.OVSStart(within(t, 30*time.Second), node, d))
			c.podReached(t)
		}
	}
	return []struct {
		name string
		do   func(*testing.T)
	}{
		{"agent SIGKILL", agentAgain(c.AgentKill)},
		{"agent SIGTERM", agentAgain(c.AgentStop)},
		{"ovs-vswitchd SIGKILL", daemonAgain(lab.Vswitchd)},
		{"ovsdb-server SIGKILL", daemonAgain(lab.OVSDB)},
		{"ovs-appctl exit --cleanup", func(t *testing.T) {
			c.exec(t, "ovs-appctl", "--timeout=10", "exit", "--cleanup")
			eventually(t, 10*time.Second, func() []string {
				if lab.Vswitchd.PID(c.node) != 0 {
					return []string{"ovs-vswitchd still runs"}
				}
				return nil
			})
			must(t, c.OVSStart(within(t, 30*time.Second), node, lab.Vswitchd))
			c.podReached(t)
		}},
		{"the programs' pins removed", func(t *testing.T) {
			c.exec(t, "sh", "-c", "rm -r /sys/fs/bpf/fairlead-uplink")
			c.podReached(t)
		}},
		{"the bridge removed", func(t *testing.T) {
			c.exec(t, "ovs-vsctl", "--no-wait", "del-br", "br-uplink")
			c.podReached(t)
		}},
		{"restored by hand", func(t *testing.T) {
			c.exec(t, filepath.Join(binDir, "fairlead-agent"), "uplink", "restore")
			c.nothingLeft(t)
			time.Sleep(time.Second) // in which an agent would have put it back
			c.nothingLeft(t)
		}},
		{"attached anew", agentAgain(c.AgentStop)},
		{"mode auto keeps it", func(t *testing.T) {
			c.wantMode(t, api.UplinkAuto)
			c.podReached(t)
		}},
		{"not wanted any more", func(t *testing.T) {
			must(t, c.AgentStop(within(t, 15*time.Second), node))
			c.exec(t, "sed", "-i", "s/enableBridgingMode: true/enableBridgingMode: false/", "/etc/fairlead/agent.conf")
			must(t, c.AgentStart(within(t, 5*time.Second), node))
			must(t, c.WaitReady(within(t, 60*time.Second), node))
			c.nothingLeft(t)
		}},
	}
}

// wantMode starts an agent whose config has another uplink.mode.
func (c cluster) wantMode(t *testing.T, mode string) {
	t.Helper()
	must(t, c.AgentStop(within(t, 15*time.Second), node))
	c.exec(t, "sed", "-i", "s/mode: steer/mode: "+mode+"/", "/etc/fairlead/agent.conf")
	must(t, c.AgentStart(within(t, 5*time.Second), node))
	must(t, c.WaitReady(within(t, 30*time.Second), node))
}

// steers waits until the uplink is attached, in mode steer, and the host has its address on the NIC.
func (c cluster) steers(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, func() []string {
		out := c.exec(t, filepath.Join(binDir, "fairlead-agent"), "uplink", "status")
		if !strings.Contains(out, "attached: NIC eth0, mode steer") || strings.Contains(out, "next step") {
			return []string{out}
		}
		if addrs := c.exec(t, "ip", "-br", "addr", "show", "dev", "eth0"); !strings.Contains(addrs, "192.168.77.11/24") {
			return []string{addrs}
		}
		return nil
	})
}

// podReached waits until the router reaches the pod: Open vSwitch may have to make its port again.
func (c cluster) podReached(t *testing.T) {
	t.Helper()
	c.steers(t)
	ip := c.at(t, "s").ips[0].String()
	eventually(t, 30*time.Second, func() []string {
		if out, err := c.NodeExec(within(t, 10*time.Second), "router", "ping", "-c1", "-W1", ip); err != nil {
			return []string{fmt.Sprintf("the pod does not answer: %v %s", err, out)}
		}
		return nil
	})
}

// nothingLeft: no bridge, no pin, no program, no qdisc, and the NIC receives what is its own.
func (c cluster) nothingLeft(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Second, func() (left []string) {
		out := c.exec(t, "sh", "-c", "ip -br link; ls /sys/fs/bpf; tc qdisc show dev eth0; ip -d link show dev eth0")
		for _, word := range []string{"br-uplink", "fairlead-uplink", "clsact", "promiscuity 1"} {
			if strings.Contains(out, word) {
				left = append(left, word+" in "+out)
			}
		}
		return left
	})
}

// forgetNeighbours has the host ask for its neighbours anew.
func (c cluster) forgetNeighbours(t *testing.T) {
	t.Helper()
	c.exec(t, "ip", "neigh", "flush", "dev", "eth0")
}

// hostUnmoved does something under streams between host and router, and under a TCP connection.
func (c cluster) hostUnmoved(t *testing.T, do func(*testing.T)) {
	every := 2 * time.Millisecond
	if c.Datapath() == lab.System { // in User-Mode Linux, whose one processor has no time for more
		every = 20 * time.Millisecond
	}
	router := c.onHost(t, "router", netip.MustParsePrefix("192.168.77.1/24"), netip.MustParsePrefix("fd77::1/64"))
	self := c.onHost(t, node, c.NodeAddrs(1)...)
	var ways []way
	for i := range self.ips {
		ways = append(ways, self.to(t, "host to router", router, i), router.to(t, "router to host", self, i))
	}
	connection := c.connect(t)
	streams := start(t, ways, every)
	time.Sleep(200 * time.Millisecond)
	do(t)
	time.Sleep(300 * time.Millisecond)
	var all probe.Report
	for i, r := range stopAll(streams) {
		all.Sent, all.Lost = all.Sent+r.Sent, all.Lost+r.Lost
		all.LongestGap = max(all.LongestGap, r.LongestGap)
		if r.Lost > 0 {
			t.Errorf("%s: the host lost packets: %s", ways[i].name, r)
		}
	}
	t.Logf("lost %d of %d, longest gap %s", all.Lost, all.Sent, all.LongestGap.Round(time.Millisecond))
	connection.check(t)
}

// tcp is a connection of the host with the router.
type tcp struct{ host, router net.Conn }

func (c cluster) connect(t *testing.T) tcp {
	t.Helper()
	h, err := c.Host("router")
	must(t, err)
	var l net.Listener
	must(t, h.Do(func() (err error) { l, err = net.Listen("tcp", "192.168.77.1:0"); return err }))
	defer l.Close()
	var x tcp
	must(t, c.node.Do(func() (err error) {
		x.host, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		return err
	}))
	x.router, err = l.Accept()
	must(t, err)
	t.Cleanup(func() { x.host.Close(); x.router.Close() })
	return x
}

// check sends something each way.
func (x tcp) check(t *testing.T) {
	t.Helper()
	for _, pair := range [][2]net.Conn{{x.host, x.router}, {x.router, x.host}} {
		deadline := time.Now().Add(5 * time.Second)
		must(t, pair[0].SetDeadline(deadline))
		must(t, pair[1].SetDeadline(deadline))
		_, err := pair[0].Write([]byte("still there"))
		must(t, err)
		_, err = io.ReadFull(pair[1], make([]byte, len("still there")))
		must(t, err)
	}
}
