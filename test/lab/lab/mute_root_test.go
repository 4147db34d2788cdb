package lab

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// podOnOVS creates an Open vSwitch bridge on node1 with the node's own leg 10.9.9.1, and a pod 10.9.9.2 behind a veth
// whose host end is named as Fairlead's.
const podOnOVS = `
ovs-vsctl --timeout=60 add-br br-test -- set Bridge br-test datapath_type=netdev fail_mode=standalone
ip addr add 10.9.9.1/24 dev br-test
ip link set br-test up
ip netns add pod
ip link add fltest type veth peer name eth0 netns pod
ip link set fltest up
ovs-vsctl --timeout=60 add-port br-test fltest
ip -n pod addr add 10.9.9.2/24 dev eth0
ip -n pod link set eth0 up
ip -n pod route add default via 10.9.9.1
`

// On the userspace datapath the kernel gets a copy of every frame of an OVS port. The lab must keep it from acting on
// it: from answering ARP, and from routing the packet that Open vSwitch has already delivered.
func TestRootKernelIsDeafOnOVSPorts(t *testing.T) {
	l := up(t, Options{Nodes: 1, IPFamily: underlay.IPv4})
	nodeExec(t, l, "node1", "sh", "-ec", podOnOVS)
	h, err := l.Host("node1")
	if err != nil {
		t.Fatal(err)
	}
	bridge := strings.TrimSpace(nodeExec(t, l, "node1", "cat", "/sys/class/net/br-test/address"))
	pod := func(target string, want int) []string {
		return arpReplies(t, h, "/run/netns/pod", "eth0", netip.MustParseAddr("10.9.9.2"), netip.MustParseAddr(target), want)
	}
	// On a busy machine ovs-vswitchd does not read the port at once, and each request is sent once.
	for tries := 0; tries < 20 && len(pod("10.9.9.1", 0)) == 0; {
		tries++
	}
	for _, target := range []string{"10.9.9.1", "192.168.77.11"} {
		if macs := pod(target, 1); !slices.Equal(macs, []string{bridge}) {
			t.Errorf("the pod's ARP for %s was answered by %v, want once by the bridge, %s", target, macs, bridge)
		}
	}
	if macs := pod("10.9.9.77", 0); len(macs) != 0 {
		t.Errorf("the pod's ARP for an unused address was answered by %v", macs)
	}

	// The node routes the pod's packets to the host outside, once.
	nodeExec(t, l, underlay.Outside, "ip", "route", "add", "10.9.9.0/24", "via", "192.168.77.11")
	out := nodeExec(t, l, "node1", "ip", "netns", "exec", "pod", "ping", "-c3", "-i0.05", "-w30", "192.168.77.1")
	ping(t, out)

	// Without the rules the same pod gets two replies: the test can fail.
	nodeExec(t, l, "node1", "nft", "flush", "ruleset")
	if macs := pod("192.168.77.11", 2); len(macs) < 2 {
		t.Errorf("without muting the pod's ARP was answered by %v only: this test sees nothing", macs)
	}
}
