package crash

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// TestRootSteerLeavesHostAlone runs a node whose uplink.mode auto resolves to steer. Whatever happens to the agent and
// to Open vSwitch, the host loses no packet, and its TCP connection continues. The other node is left alone.
func TestRootSteerLeavesHostAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	config := "uplink: {mode: auto}"
	if ovstest.UnderTest(t) == ovstest.Netdev { // there tunnels end on a bridge of Open vSwitch
		config += "\ntrafficEncapMode: noEncap"
	}
	l, err := lab.Up(t.Context(), lab.Options{Dir: filepath.Join(t.TempDir(), "lab"), BinDir: binDir, Nodes: 2,
		Datapath: vswitch.Datapath(ovstest.UnderTest(t)), Mode: underlay.Bridge, Uplink: api.UplinkSteer,
		Config: []byte(config)})
	must(t, err)
	t.Cleanup(func() { must(t, lab.Down(context.Background(), l.Dir(), nil)) })
	h, err := l.Host(node)
	must(t, err)
	c := cluster{Lab: l, node: h}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.agentLog(t))
			t.Log(c.exec(t, "tail", "-n", "100", "/var/log/openvswitch/ovs-vswitchd.log"))
		}
	})
	c.steers(t)
	if os.Getenv("FAIRLEAD_BENCH_ROUNDS") != "" {
		t.Run("gaps", c.gaps)
		return
	}
	c.apply(t, steeredPod)
	c.apply(t, steeredByHand)
	must(t, c.WaitPods(labtest.Within(t, time.Minute)))
	_, err = c.NodeExec(labtest.Within(t, time.Minute), "router", "ip", "addr", "add", newNeighbour+"/24", "dev", "eth0")
	must(t, err)
	t.Run("pods are known before their flows", c.knownBeforeFlows)
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

// steerEvent is an event on the node. After it the pod is reachable, except where the uplink is detached.
type steerEvent struct {
	name string
	do   func(*testing.T)
}

// steerDeaths are each daemon, each pair and all three; in a long run each by either signal, at once and after 3 s.
func (c cluster) steerDeaths() (events []steerEvent) {
	deaths := []death{{agent: true, kill: true}, {agent: true}, {vswitchd: true, kill: true, down: time.Second},
		{ovsdb: true, kill: true, down: time.Second}, {agent: true, vswitchd: true, kill: true, down: time.Second},
		{agent: true, ovsdb: true, kill: true}, {vswitchd: true, ovsdb: true, kill: true},
		{agent: true, vswitchd: true, ovsdb: true, kill: true, down: 3 * time.Second},
		{agent: true, vswitchd: true, ovsdb: true}}
	if long() {
		deaths = slices.DeleteFunc(c.deaths(), func(d death) bool { return d.down > 3*time.Second })
	}
	for _, d := range deaths {
		events = append(events, steerEvent{d.String(), func(t *testing.T) {
			c.end(t, d)
			c.newFlow(t)
			time.Sleep(d.down) // the host must work without them meanwhile
			c.begin(t, d)
			must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
			c.podReached(t)
		}})
	}
	return events
}

// steerEvents run in this order.
func (c cluster) steerEvents() []steerEvent {
	agent := filepath.Join(binDir, "fairlead-agent")
	return append(c.steerDeaths(), []steerEvent{
		{"ovs-appctl exit --cleanup", func(t *testing.T) {
			c.cleanedUp(t)
			c.podReached(t)
		}},
		{"the map can't be written", c.frozenMap},
		{"the programs' pins removed", func(t *testing.T) {
			c.exec(t, "sh", "-c", "rm -r /sys/fs/bpf/fairlead-uplink")
			c.podReached(t)
		}},
		{"the bridge removed", func(t *testing.T) {
			c.exec(t, "ovs-vsctl", "--no-wait", "del-br", "br-uplink")
			c.podReached(t)
		}},
		{"br-uplink changed externally", c.steerChanged},
		{"journal cannot be written", func(t *testing.T) {
			ovstest.UserspaceOnly(t, "the disk is no matter of the datapath")
			c.unwritable(t, func() {
				c.exec(t, "sh", "-c", "rm -r /sys/fs/bpf/fairlead-uplink")
				c.podReached(t)
			})
		}},
		{"ovs-vswitchd is about to end", func(t *testing.T) {
			if out := c.exec(t, agent, "uplink", "yield"); !strings.Contains(out, "nothing to do") {
				t.Error(out)
			}
			c.podReached(t)
		}},
		{"restored manually, and attached by the next agent", func(t *testing.T) {
			c.exec(t, agent, "uplink", "restore")
			c.nothingLeft(t)
			time.Sleep(time.Second) // an agent would have attached it again by then
			c.nothingLeft(t)
			c.agentAgain(c.AgentStop, "")(t)
			c.podReached(t)
		}},
		{"modes steer and auto keep it", func(t *testing.T) {
			for _, mode := range []string{api.UplinkSteer, api.UplinkAuto} {
				c.reconfigured(t, "mode: [a-z]*/mode: "+mode)
				c.podReached(t)
			}
		}},
		{"not wanted any more, and wanted again", func(t *testing.T) {
			c.reconfigured(t, "enableBridgingMode: true/enableBridgingMode: false")
			c.nothingLeft(t)
			c.reconfigured(t, "enableBridgingMode: false/enableBridgingMode: true")
			c.podReached(t)
		}},
	}...)
}

// steerChanged are external changes to the bridge and the NIC. The pod becomes reachable again without help.
func (c cluster) steerChanged(t *testing.T) {
	f := strings.Fields
	for _, changes := range [][][]string{
		{f("ovs-ofctl del-flows br-uplink"), f("ovs-ofctl mod-port br-uplink br-uplink no-forward")},
		{f("ovs-vsctl --no-wait set port br-uplink tag=7"), f("ip link set br-uplink down"), f("ip link set eth0 promisc off")},
	} {
		eventually(t, 30*time.Second, func() []string { return c.bridgeWrong(t, "br-uplink") })
		for _, argv := range changes {
			c.change(t, argv)
		}
		eventually(t, 30*time.Second, func() []string {
			wrong := c.bridgeWrong(t, "br-uplink")
			if out := c.exec(t, "ip", "-d", "link", "show", "dev", "eth0"); !strings.Contains(out, "promiscuity 1") {
				wrong = append(wrong, out)
			}
			return wrong
		})
		if c.podReached(t); t.Failed() {
			t.Fatalf("after %q", changes)
		}
	}
}

// change runs a command that changes the bridge, and again if Open vSwitch closed its connection.
func (c cluster) change(t *testing.T, argv []string) {
	t.Helper()
	eventually(t, 10*time.Second, func() []string {
		out, err := c.NodeExec(labtest.Within(t, time.Minute), node, argv...)
		if err != nil && strings.Contains(out+err.Error(), "onnection reset") {
			return []string{out}
		}
		if err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
		return nil
	})
}

// reconfigured starts an agent with another config: change is what sed(1) replaces, and by what.
func (c cluster) reconfigured(t *testing.T, change string) {
	t.Helper()
	must(t, c.AgentStop(labtest.Within(t, time.Minute), node))
	c.exec(t, "sed", "-i", "s/"+change+"/", "/etc/fairlead/agent.conf")
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
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

// podReached waits until the router reaches the pod: Open vSwitch may have to recreate its port.
func (c cluster) podReached(t *testing.T) {
	t.Helper()
	c.steers(t)
	ip := c.at(t, "s").ips[0].String()
	eventually(t, 30*time.Second, func() []string {
		if out, err := c.NodeExec(labtest.Within(t, time.Minute), "router", "ping", "-c1", "-W1", ip); err != nil {
			return []string{fmt.Sprintf("the pod does not answer: %v %s", err, out)}
		}
		return nil
	})
}

// nothingLeft checks that no bridge, pin, program or qdisc is left, and that the NIC receives the host's packets.
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

// newNeighbour is an address of the router that the streams do not use: flushing a neighbour drops its queued packets.
const newNeighbour = "192.168.77.2"

// newFlow checks that the host resolves a neighbour that it does not know, and reaches it.
func (c cluster) newFlow(t *testing.T) {
	t.Helper()
	c.exec(t, "ip", "neigh", "flush", "to", newNeighbour)
	// Until the first answer: the lab's switch may lose one, or stall for longer than the kernel solicits (3 s).
	must(t, ping(c.node.Start, node, netip.MustParseAddr(newNeighbour)))
}

// hostUnmoved calls do under streams between host and router, and under TCP connections. It retries if streams between
// the router and the other node lost packets as well: then the machine lost them.
func (c cluster) hostUnmoved(t *testing.T, do func(*testing.T)) {
	every, _ := c.limits()
	router := c.onHost(t, "router", netip.MustParsePrefix("192.168.77.1/24"), netip.MustParsePrefix("fd77::1/64"))
	self := c.onHost(t, node, c.NodeAddrs(1)...)
	var ways []way
	for i := range self.ips {
		ways = append(ways, self.to(t, "host to router", router, i), router.to(t, "router to host", self, i))
	}
	controls := c.otherToRouter(t)
	for try := 1; ; try++ {
		transfers := c.transfer(t)
		streams := start(t, slices.Concat(ways, controls), every)
		time.Sleep(200 * time.Millisecond)
		do(t)
		time.Sleep(300 * time.Millisecond)
		reports := stopAll(streams)
		host, control := worst(reports[:len(ways)]), worst(reports[len(ways):])
		t.Logf("try %d: lost | ms: %s; without the event: %s", try, host, control)
		for _, x := range transfers {
			x.end(t)
		}
		if host.lost == 0 || t.Failed() {
			return
		}
		if !probe.Excused(reports[:len(ways)], reports[len(ways):]) || try == tries {
			t.Errorf("the host lost packets, the last %s ago", time.Since(host.last).Round(time.Millisecond))
			return
		}
	}
}

// transfer is a stream of data from one end of a TCP connection, which the other checks. It is paced: the lab's switch,
// an Open vSwitch in userspace, drops frames when its queue fills up on a busy machine.
type transfer struct {
	name     string
	from, to net.Conn
	received atomic.Int64
	failed   chan error // one of the sender, one of the receiver
}

// transfer starts to send in both directions over one connection of the host with the router.
func (c cluster) transfer(t *testing.T) []*transfer {
	t.Helper()
	h, err := c.Host("router")
	must(t, err)
	var l net.Listener
	must(t, h.Do(func() (err error) { l, err = net.Listen("tcp", "192.168.77.1:0"); return err }))
	defer l.Close()
	var host net.Conn
	must(t, c.node.Do(func() (err error) {
		host, err = net.DialTimeout("tcp", l.Addr().String(), time.Minute)
		return err
	}))
	router, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { host.Close(); router.Close() })
	out := []*transfer{{name: "host to router", from: host, to: router}, {name: "router to host", from: router, to: host}}
	for _, x := range out {
		x.failed = make(chan error, 2)
		go func() { x.failed <- x.send() }()
		go func() { x.failed <- x.receive() }()
	}
	return out
}

// A chunk is sent every sendEvery. It is a multiple of 256.
const sendEvery, chunk = 10 * time.Millisecond, 1 << 10

// The bytes sent count up: losses and duplicates are detected.
func (x *transfer) send() error {
	tick := time.NewTicker(sendEvery)
	defer tick.Stop()
	data := make([]byte, chunk)
	for i := range data {
		data[i] = byte(i)
	}
	for range tick.C {
		if _, err := x.from.Write(data); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
	return nil
}

func (x *transfer) receive() error {
	for data, at := make([]byte, 64<<10), int64(0); ; {
		n, err := x.to.Read(data)
		for i, b := range data[:n] {
			if want := byte(at + int64(i)); b != want {
				return fmt.Errorf("byte %d is %d, not %d", at+int64(i), b, want)
			}
		}
		at = x.received.Add(int64(n))
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
	}
}

// end waits until more data has arrived than when it was called, and closes the connection, which must still be open.
func (x *transfer) end(t *testing.T) {
	t.Helper()
	before := x.received.Load()
	eventually(t, 5*time.Second, func() []string {
		if x.received.Load() <= before {
			return []string{"no more data comes from " + x.name}
		}
		return nil
	})
	select {
	case err := <-x.failed:
		t.Errorf("%s, after %d bytes: %v", x.name, x.received.Load(), err)
	default:
	}
	t.Logf("%s: %d bytes", x.name, x.received.Load())
}

// steeredByHand is a pod for which the test calls ADD: no runner of the lab serves its node.
const steeredByHand = `apiVersion: v1
kind: Pod
metadata: {name: m, annotations: {ipam.antrea.io/ippools: "v4"}}
spec: {nodeName: nowhere, containers: [{name: main, image: none}]}
`

// knownBeforeFlows checks the order: while ovs-vswitchd is stopped no flow is removed, and no DEL is answered, but the
// steering programs' map is already up to date. An ADD has the same order, but waits for its port's number before.
func (c cluster) knownBeforeFlows(t *testing.T) {
	before := c.known(t)
	_, err := c.CNI(labtest.Within(t, time.Minute), node, lab.ADD, "default/m")
	must(t, err)
	pid := lab.Vswitchd.PID(c.node)
	must(t, unix.Kill(pid, unix.SIGSTOP))
	defer unix.Kill(pid, unix.SIGCONT)
	answered := make(chan error, 1)
	go func() {
		_, err := c.CNI(labtest.Within(t, 60*time.Second), node, lab.DEL, "default/m")
		answered <- err
	}()
	eventually(t, 4*time.Second, func() []string {
		if n := c.known(t); n != before {
			return []string{fmt.Sprintf("the programs know %d addresses, not %d", n, before)}
		}
		return nil
	})
	select { // the agent waits 5 s for the flows, and then answers with an error
	case err := <-answered:
		if err == nil {
			t.Fatal("the programs were updated after the flows: DEL is answered")
		}
		answered <- err
	case <-time.After(500 * time.Millisecond):
	}
	must(t, unix.Kill(pid, unix.SIGCONT))
	select {
	case <-answered: // without an error or with one
	case <-time.After(60 * time.Second):
		t.Fatal("DEL is not answered though ovs-vswitchd goes on")
	}
	must(t, c.WaitReady(labtest.Within(t, time.Minute), node))
	_, err = c.CNI(labtest.Within(t, time.Minute), node, lab.DEL, "default/m")
	must(t, err)
}

// frozenMap checks that a pod which cannot be added to the programs' map is refused, and leaves nothing. Others are not
// affected.
func (c cluster) frozenMap(t *testing.T) {
	before := c.known(t)
	c.macs(t, func(m *ebpf.Map) error { return m.Freeze() })
	c.refuses(t, lab.ADD, "writing to the map of MAC addresses", 11, "default/m")
	if n := c.known(t); n != before {
		t.Errorf("the programs know %d, not %d", n, before)
	}
	if out := c.exec(t, "ovs-vsctl", "--timeout=10", "--columns=external_ids", "find", "Interface"); strings.Contains(
		out, "default/m") || strings.Contains(out, "name=m,") {
		t.Errorf("the refused pod has a port: %s", out)
	}
	c.podReached(t)
	c.exec(t, "sh", "-c", "rm -r /sys/fs/bpf/fairlead-uplink")
	c.podReached(t)
	_, err := c.CNI(labtest.Within(t, time.Minute), node, lab.ADD, "default/m")
	must(t, err)
	_, err = c.CNI(labtest.Within(t, time.Minute), node, lab.DEL, "default/m")
	must(t, err)
}

// known is the number of addresses in the programs' map.
func (c cluster) known(t *testing.T) (n int) {
	t.Helper()
	c.macs(t, func(m *ebpf.Map) error {
		var k, v []byte
		all := m.Iterate()
		for all.Next(&k, &v) {
			n++
		}
		return all.Err()
	})
	return n
}

// macs opens the map of addresses.
func (c cluster) macs(t *testing.T, f func(*ebpf.Map) error) {
	t.Helper()
	must(t, c.node.Do(func() error {
		m, err := ebpf.LoadPinnedMap("/sys/fs/bpf/fairlead-uplink/macs", nil)
		if err != nil {
			return err
		}
		defer m.Close()
		return f(m)
	}))
}
