package suite

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// All pods and nodes reach each other over every kind of tunnel and in both families, with small packets, full packets
// and streams, and the outside sees nodes' addresses, not pods'.
func TestRootNetwork(t *testing.T) {
	for _, n := range []struct {
		tunnel   string
		family   underlay.IPFamily
		overhead int // bytes that the tunnel adds, outer IP header included, without the outer Ethernet header
		config   string
	}{
		{"geneve", underlay.Dual, 50, ""},
		{"vxlan", underlay.Dual, 50, ""},
		{"gre", underlay.Dual, 42, ""},
		{"geneve", underlay.IPv4, 50, "tunnelPort: 16081\ntunnelCsum: true\nsnatFullyRandomPorts: true\n"},
		{"geneve", underlay.IPv6, 70, ""},
		{"vxlan", underlay.IPv6, 70, ""},
	} {
		t.Run(n.tunnel+" "+string(n.family), func(t *testing.T) {
			c := up(t, lab.Options{IPFamily: n.family, Config: []byte("tunnelType: " + n.tunnel + "\n" + n.config)})
			if got := c.host(t, "node1").exec(t, "ovs-vsctl get Interface fairlead-tun0 type"); got != n.tunnel+"\n" {
				t.Fatalf("the tunnel is of type %s", got)
			}
			kernel := ovstest.UnderTest(t) == ovstest.System
			if kernel { // the userspace datapath's tunnel bypasses the host's netfilter
				firewalled(t, c)
			}
			c.addPods(t, "a@node1", "b@node1", "c@node2")
			c.warm(t)
			t.Run("all reach all", func(t *testing.T) { allReachAll(t, c) })
			t.Run("masquerade", func(t *testing.T) { masqueraded(t, c) })
			t.Run("MTU", func(t *testing.T) { fullPackets(t, c, 1500-n.overhead) })
			t.Run("TCP", func(t *testing.T) { streams(t, c) })
			t.Run("capture", func(t *testing.T) { capturedOnNode(t, c) })
			if kernel {
				untracked(t, c)
				doctorOpens(t, c)
			}
		})
	}
}

// doctorOpens checks that doctor finds an nftables firewall that drops the tunnel's packets after our ACCEPT, and that
// the command which it prints opens it.
func doctorOpens(t *testing.T, c cluster) {
	node, a, remote := c.host(t, "node1"), c.pod(t, "a"), c.pod(t, "c")
	doctor := func() (string, error) { return node.run(filepath.Join(binDir, "fairleadctl"), "doctor", "firewall") }
	if out, err := doctor(); err != nil {
		t.Errorf("behind rules of iptables doctor says %v\n%s", err, out)
	}
	node.exec(t, "nft add table inet theirs")
	node.exec(t, "nft add chain inet theirs in { type filter hook input priority 10; }")
	node.exec(t, "nft add rule inet theirs in meta l4proto { udp, gre } drop")
	for i := range a.ips {
		noReach(t, a, remote.ips[i])
	}
	out, err := doctor()
	if err == nil || !strings.Contains(out, "drops the tunnel's packets") || !strings.Contains(out, "from node node2") {
		t.Errorf("doctor says %v\n%s", err, out)
	}
	command := regexp.MustCompile(`nft insert rule .*`).FindString(out)
	if _, err := node.run("sh", "-c", command); err != nil {
		t.Errorf("the remedy %q: %v", command, err)
	}
	for i := range a.ips {
		reach(t, a, remote.ips[i])
	}
}

// firewalled makes every node drop UDP and GRE, in and out, like an administrator who forgot the tunnel.
func firewalled(t *testing.T, c cluster) {
	for _, node := range c.Nodes() {
		for _, program := range []string{"iptables", "ip6tables"} {
			for _, rule := range []string{"INPUT -i eth0 -p udp", "INPUT -i eth0 -p gre", "OUTPUT -o eth0 -p udp", "OUTPUT -o eth0 -p gre"} {
				c.host(t, node).exec(t, program+" -w -A "+rule+" -j DROP")
			}
		}
	}
}

// untracked checks that no node has a conntrack entry for the tunnel, and that there are others. An entry from before
// the node's agent wrote its rules lasts for half a minute, and agents send probes all the time.
func untracked(t *testing.T, c cluster) {
	for _, node := range c.Nodes() {
		wait(t, 90*time.Second, func() string {
			all := c.conntrack(t, node)
			if len(all) == 0 {
				t.Errorf("%s tracks nothing: this test is worth nothing", node)
			}
			for _, f := range all {
				tunnel := slices.Contains([]uint16{6081, 16081, 4789}, f.Forward.DstPort)
				if p := f.Forward.Protocol; p == unix.IPPROTO_GRE || p == unix.IPPROTO_UDP && tunnel {
					return fmt.Sprintf("%s tracks a flow of the tunnel: %s", node, f)
				}
			}
			return ""
		})
	}
}

// conntrack lists the conntrack entries of a node's kernel.
func (c cluster) conntrack(t *testing.T, node string) (all []*netlink.ConntrackFlow) {
	t.Helper()
	must(t, 0, c.host(t, node).do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			all = append(all, flows...)
		}
		return nil
	}))
	return all
}

func allReachAll(t *testing.T, c cluster) {
	a, b, remote := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	node1, node2, outside := c.host(t, "node1"), c.host(t, "node2"), c.host(t, underlay.Outside)
	families := len(c.family.NodeAddrs(1))
	if len(a.ips) != families || len(b.ips) != families || len(remote.ips) != families {
		t.Fatalf("pods have %v, %v and %v, want %d addresses each", a.ips, b.ips, remote.ips, families)
	}
	for i := range families {
		gateway := func(n int) netip.Addr { return gatewayOf(c.family.PodCIDRs(n)[i]) }
		node := func(n int) netip.Addr { return c.family.NodeAddrs(n)[i].Addr() }
		for _, way := range []struct {
			from place
			to   netip.Addr
		}{
			{a, b.ips[i]}, {b, a.ips[i]}, {a, a.ips[i]}, // same node
			{a, remote.ips[i]}, {remote, b.ips[i]}, // across
			{a, gateway(1)}, {remote, gateway(2)}, {a, gateway(2)},
			{a, node(1)}, {a, node(2)}, {remote, node(1)}, {remote, node(2)},
			{a, c.family.GatewayAddrs()[i].Addr()}, {remote, c.family.FarAddrs()[i].Addr()},
			{node1, a.ips[i]}, {node1, remote.ips[i]}, {node1, gateway(2)},
			{node2, remote.ips[i]}, {node2, b.ips[i]},
		} {
			reach(t, way.from, way.to)
		}
		// The test can fail: an unused address, on either node and outside.
		noReach(t, a, unusedOf(c.family.PodCIDRs(1)[i]))
		noReach(t, a, unusedOf(c.family.PodCIDRs(2)[i]))
		// Nodes do not forward for hosts that have a route to the pods.
		route := fmt.Sprintf("ip route replace %s via %s", c.family.PodCIDRs(1)[i], node(1))
		outside.exec(t, route)
		reach(t, outside, a.ips[i])
	}
}

// unusedOf is the last address of the prefix but two: no test has as many pods, and the last one is probed.
func unusedOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] = 0xfd
	a, _ := netip.AddrFromSlice(b)
	return a
}

// reach expects three replies to three requests, each once. ping(8) waits for the last reply only as long as its
// interval. That is too short for a busy machine, so a failed try is followed by one with a long timeout.
func reach(t *testing.T, from place, to netip.Addr, flags ...string) {
	t.Helper()
	var out string
	var err error
	for _, interval := range []string{"-i0.02", "-i6"} {
		out, err = from.run(append(append([]string{"ping", "-c3", "-W2", interval}, flags...), to.String())...)
		twice := strings.Contains(out, "DUP!") || strings.Contains(out, "duplicates")
		if err == nil && strings.Contains(out, " 3 received") && !twice {
			return
		}
		if twice {
			break
		}
	}
	t.Errorf("%s to %s: want 3 answers, each once: %v\n%s", from.name, to, err, out)
}

// noReach expects no reply.
func noReach(t *testing.T, from place, to netip.Addr, flags ...string) {
	t.Helper()
	argv := append([]string{"ping", "-c2", "-i0.02", "-W0.4"}, flags...)
	out, err := from.run(append(argv, to.String())...)
	if err == nil || !strings.Contains(out, " 0 received") {
		t.Errorf("%s reaches %s:\n%s", from.name, to, out)
	}
}

// masqueraded checks that a server outside sees the address of the pod's node, and a server in a pod the client's.
func masqueraded(t *testing.T, c cluster) {
	outside := c.host(t, underlay.Outside)
	for i, far := range c.family.FarAddrs() {
		for n, name := range map[int]string{1: "a", 2: "c"} {
			pod, want := c.pod(t, name), c.family.NodeAddrs(n)[i].Addr()
			for _, network := range []string{"udp", "tcp"} {
				if got := peerSeen(t, network, pod, outside, far.Addr()); got != want {
					t.Errorf("%s %s to %s: the server sees %s, want %s", network, name, far.Addr(), got, want)
				}
			}
		}
		a, b, remote := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
		for _, server := range []place{b, remote} {
			if got := peerSeen(t, "tcp", a, server, server.ips[i]); got != a.ips[i] {
				t.Errorf("a to %s: the server sees %s, want %s", server.name, got, a.ips[i])
			}
		}
	}
}
