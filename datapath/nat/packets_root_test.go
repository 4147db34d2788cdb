package nat

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// lan is two pods on the gateway's bridge, their node, and an outside host without a route back to pods. A Linux bridge
// stands in for Open vSwitch: it, too, lets pods reach each other without passing the node.
func lan(t *testing.T) (node, outside, podA, podB *nstest.NS) {
	need(t)
	node, outside, podA, podB = nstest.New(t), nstest.New(t), nstest.New(t), nstest.New(t)
	for _, ns := range []*nstest.NS{node, outside, podA, podB} {
		ns.Exec("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
	}
	node.IP("link add fairlead-gw0 type bridge")
	node.IP("link set fairlead-gw0 up")
	for i, pod := range []*nstest.NS{podA, podB} {
		nstest.Veth(node, fmt.Sprint("p", i), pod, "eth0")
		node.IP(fmt.Sprintf("link set p%d master fairlead-gw0", i))
		pod.IP(fmt.Sprintf("addr add 10.0.1.%d/24 dev eth0", 5+i))
		pod.IP(fmt.Sprintf("addr add fd00:0:0:1::%d/64 dev eth0 nodad", 5+i))
		pod.IP("route add default via 10.0.1.1")
		pod.IP("-6 route add default via fd00:0:0:1::1")
	}
	nstest.Veth(node, "eth0", outside, "out")
	for _, a := range []string{"10.0.1.1/24 dev fairlead-gw0", "fd00:0:0:1::1/64 dev fairlead-gw0 nodad",
		"192.0.2.2/24 dev eth0", "fd00:5::2/64 dev eth0 nodad"} {
		node.IP("addr add " + a)
	}
	outside.IP("addr add 192.0.2.9/24 dev out")
	outside.IP("addr add fd00:5::9/64 dev out nodad")
	node.Exec("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	// With br_netfilter loaded, bridged packets would pass iptables too.
	for _, f := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		if _, err := os.Stat("/proc/sys/net/bridge/" + f); err == nil {
			node.Exec("sysctl", "-qw", "net.bridge."+f+"=0")
		}
	}
	return node, outside, podA, podB
}

// seen is the source address with which a TCP connection made in from to target arrives at a listener on listen in at.
func seen(from, at *nstest.NS, target, listen string) (source string, err error) {
	return within(time.Minute, from, at, target, listen)
}

// within is seen for a connection that must fail: within 2 seconds more than one packet is sent.
func within(limit time.Duration, from, at *nstest.NS, target, listen string) (source string, err error) {
	var l net.Listener
	if err := at.Do(func() (err error) { l, err = net.Listen("tcp", listen); return err }); err != nil {
		return "", err
	}
	defer l.Close()
	arrived := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		arrived <- conn.RemoteAddr().(*net.TCPAddr).IP.String()
		conn.Close()
	}()
	err = from.Do(func() error {
		conn, err := net.DialTimeout("tcp", target, limit)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	if err != nil {
		return "", err
	}
	select {
	case source = <-arrived:
		return source, nil
	case <-time.After(time.Minute):
		return "", fmt.Errorf("connected to %s, but no connection arrived at %s", target, listen)
	}
}

// Docker sets the policy of FORWARD to DROP; some firewalls end it with REJECT.
func TestRootPodsReachOutside(t *testing.T) {
	node, outside, pod, _ := lan(t)
	for _, f := range families() {
		node.Exec(f.program, "-P", "FORWARD", "DROP")
		node.Exec(f.program, "-A", "FORWARD", "-j", "REJECT")
	}
	if _, err := within(2*time.Second, pod, outside, "192.0.2.9:80", "192.0.2.9:80"); err == nil {
		t.Fatal("the pod gets out without our rules: the test is meaningless")
	}
	apply(t, node, desired())
	for _, c := range []struct{ target, want string }{{"192.0.2.9:80", "192.0.2.2"}, {"[fd00:5::9]:80", "fd00:5::2"}} {
		got, err := seen(pod, outside, c.target, c.target)
		if err != nil || got != c.want {
			t.Errorf("from the pod to %s arrives from %q, %v; want %s", c.target, got, err, c.want)
		}
	}
	// Without masquerading the packet leaves with the pod's own address: the outside host gets the connection once it
	// has a route back.
	d := desired()
	d.Masquerade = false
	apply(t, node, d)
	outside.IP("route add 10.0.1.0/24 via 192.0.2.2")
	if got, err := seen(pod, outside, "192.0.2.9:80", "192.0.2.9:80"); err != nil || got != "10.0.1.5" {
		t.Errorf("without masquerade it arrives from %q, %v; want 10.0.1.5", got, err)
	}
}

// Sources that must be preserved are preserved.
func TestRootSourcesThatStay(t *testing.T) {
	node, outside, podA, podB := lan(t)
	apply(t, node, desired())
	outside.IP("route add 10.0.1.0/24 via 192.0.2.2")
	for _, c := range []struct {
		name     string
		from, at *nstest.NS
		target   string
		want     string
	}{
		{"pod to pod", podA, podB, "10.0.1.6:80", "10.0.1.5"},
		{"pod to its node", podA, node, "192.0.2.2:80", "10.0.1.5"},
		{"pod to the gateway", podA, node, "10.0.1.1:80", "10.0.1.5"},
		{"host to pod", node, podA, "10.0.1.5:80", "10.0.1.1"},
		{"host to its own gateway address", node, node, "10.0.1.1:80", "10.0.1.1"},
		{"host to its own gateway address, IPv6", node, node, "[fd00:0:0:1::1]:80", "fd00:0:0:1::1"},
		{"outside to pod", outside, podA, "10.0.1.5:80", "192.0.2.9"},
		{"host to outside", node, outside, "192.0.2.9:80", "192.0.2.2"},
	} {
		if got, err := seen(c.from, c.at, c.target, c.target); err != nil || got != c.want {
			t.Errorf("%s: arrives from %q, %v; want %s", c.name, got, err, c.want)
		}
	}
}

// kube-proxy translates a Service's address back to a pod. The reply must come back through the node, also where the
// node does not masquerade.
func TestRootServiceLeadsBackToAPod(t *testing.T) {
	node, _, podA, podB := lan(t)
	for f, dnat := range map[string]string{
		"iptables":  "-t nat -A PREROUTING -d 10.96.0.10/32 -p tcp --dport 80 -j DNAT --to-destination 10.0.1.6:8080",
		"ip6tables": "-t nat -A PREROUTING -d fd00:96::10/128 -p tcp --dport 80 -j DNAT --to-destination [fd00:0:0:1::6]:8080",
	} {
		node.Exec(append([]string{f}, strings.Fields(dnat)...)...)
	}
	if _, err := within(2*time.Second, podA, podB, "10.96.0.10:80", "10.0.1.6:8080"); err == nil {
		t.Fatal("the Service works without our rules: the test is meaningless")
	}
	for _, masquerade := range []bool{true, false} {
		d := Desired{Gateway: "fairlead-gw0", PodCIDRs: []netip.Prefix{dual[0], dual[1]}, Masquerade: masquerade}
		apply(t, node, d)
		for _, c := range []struct{ target, listen, want string }{
			{"10.96.0.10:80", "10.0.1.6:8080", "10.0.1.1"}, {"[fd00:96::10]:80", "[fd00:0:0:1::6]:8080", "fd00:0:0:1::1"},
		} {
			if got, err := seen(podA, podB, c.target, c.listen); err != nil || got != c.want {
				t.Errorf("masquerade %v: to %s arrives from %q, %v; want %s", masquerade, c.target, got, err, c.want)
			}
		}
	}
}

// Pods of nodes that are reached without a tunnel see the client's address, also where the first packet traverses
// thousands of rules. Other hosts see the node's.
func TestRootNotMasqueraded(t *testing.T) {
	node, outside, pod, _ := lan(t)
	outside.IP("addr add 10.0.2.5/24 dev out")
	outside.IP("addr add fd00:0:0:2::5/64 dev out nodad")
	outside.IP("route add 10.0.1.0/24 via 192.0.2.2")
	outside.IP("-6 route add fd00:0:0:1::/64 via fd00:5::2")
	node.IP("route add 10.0.2.0/24 via 192.0.2.9")
	node.IP("-6 route add fd00:0:0:2::/64 via fd00:5::9")
	d := desired()
	apply(t, node, d)
	if got, err := seen(pod, outside, "10.0.2.5:80", "10.0.2.5:80"); err != nil || got != "192.0.2.2" {
		t.Fatalf("in encap mode it arrives from %q, %v; want the node's address: the test is meaningless", got, err)
	}
	for i := range 5000 { // no two adjacent ones of the same length: nothing to aggregate
		a := netip.AddrFrom4([4]byte{11, byte(i >> 7), byte(i << 1), 0})
		d.NotMasqueraded = append(d.NotMasqueraded, netip.PrefixFrom(a, 24))
	}
	d.NotMasqueraded = append(d.NotMasqueraded, cidrs("10.0.2.0/24", "fd00:0:0:2::/64")...)
	started := countStarts(t)
	few := desired()
	few.NotMasqueraded = cidrs("10.0.2.0/24")
	apply(t, node, few) // creates all chains
	started()
	few.NotMasqueraded = cidrs("10.0.2.0/24", "fd00:0:0:2::/64")
	var control [2]int
	for i := range control { // one round writes the rules, one finds them unchanged
		apply(t, node, few)
		control[i] = started()
	}
	for i := range control {
		apply(t, node, d)
		if n := started(); n == 0 || n != control[i] {
			t.Errorf("pass %d with 5,000 rules started iptables %d times, with 2 rules %d times", i, n, control[i])
		}
	}
	for _, c := range []struct{ target, want string }{
		{"10.0.2.5:80", "10.0.1.5"}, {"[fd00:0:0:2::5]:80", "fd00:0:0:1::5"},
		{"192.0.2.9:80", "192.0.2.2"}, {"[fd00:5::9]:80", "fd00:5::2"},
	} {
		if got, err := seen(pod, outside, c.target, c.target); err != nil || got != c.want {
			t.Errorf("to %s arrives from %q, %v; want %s", c.target, got, err, c.want)
		}
	}
}

// A host on the underlay can't spoof a pod's address towards another pod of the node, whatever rp_filter is.
func TestRootFalseSourceFromOutside(t *testing.T) {
	node, outside, pod, _ := lan(t)
	outside.IP("route add 10.0.1.5/32 via 192.0.2.2")
	outside.IP("-6 route add fd00:0:0:1::5/128 via fd00:5::2")
	outside.IP("addr add 10.0.1.6/32 dev lo")
	outside.IP("addr add fd00:0:0:1::6/128 dev lo")
	node.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.eth0.rp_filter=0")
	counted := func(f string) (n int) {
		for line := range strings.Lines(node.Exec(f, "-t", "mangle", "-vnxL", Forward)) {
			if w := strings.Fields(line); len(w) > 2 && w[2] == "DROP" {
				fmt.Sscan(w[0], &n)
			}
		}
		return n
	}
	apply(t, node, desired())
	for f, from := range map[string][2]string{"iptables": {"10.0.1.6", "10.0.1.5"}, "ip6tables": {"fd00:0:0:1::6", "fd00:0:0:1::5"}} {
		_, _ = outside.Run("ping", "-c2", "-i0.1", "-W0.2", "-I", from[0], from[1]) // no replies
		nstest.Wait(t, time.Minute, f+" to drop both packets with a false source", func() bool { return counted(f) >= 2 })
		if n := counted(f); n != 2 {
			t.Errorf("%s: %d packets with a false source are dropped, want 2", f, n)
		}
	}
	if got, err := seen(outside, pod, "10.0.1.5:80", "10.0.1.5:80"); err != nil || got != "192.0.2.9" {
		t.Errorf("an honest one arrives from %q, %v; want 192.0.2.9", got, err)
	}
}

// A host on the underlay can't spoof the node's address towards its pods, which accept the node whatever policies say.
// IPv6 has no martian source check, and IPv4 none where accept_local is on.
func TestRootNodesAddressFromOutside(t *testing.T) {
	node, outside, pod, _ := lan(t)
	for _, a := range []string{"192.0.2.3/24", "fd00:5::3/64 nodad"} { // next hop: the first is the host's own now
		node.IP("addr add " + a + " dev eth0")
	}
	outside.IP("addr add 192.0.2.2/32 dev lo")
	outside.IP("addr add fd00:5::2/128 dev lo")
	outside.IP("route add 10.0.1.5/32 via 192.0.2.3")
	outside.IP("-6 route add fd00:0:0:1::5/128 via fd00:5::3")
	node.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.eth0.rp_filter=0",
		"net.ipv4.conf.eth0.accept_local=1")
	for program, c := range map[string][2]string{"iptables": {"192.0.2.2:0", "10.0.1.5:6000"},
		"ip6tables": {"[fd00:5::2]:0", "[fd00:0:0:1::5]:6000"}} {
		apply(t, node, desired())
		if arrives(t, outside, pod, c[0], c[1], "", c[1]) {
			t.Errorf("the pod %s has heard a host of the underlay as the node", c[1])
		}
		node.Exec(program, "-t", "mangle", "-F", Forward)
		if !arrives(t, outside, pod, c[0], c[1], "", c[1]) {
			t.Errorf("%s hears nothing without the rules: the test is meaningless", c[1])
		}
	}
}

// leftovers are rules of other programs that accept pods' packets before Fairlead's rules: one set per program, as
// arguments of iptables and ip6tables. %[1]s is the pods' range, %[2]s the other node's tunnel port.
var leftovers = map[string][]string{
	"none":    nil,
	"flannel": {"-I FORWARD -s %[1]s -j ACCEPT", "-I FORWARD -d %[1]s -j ACCEPT"},
	"kube-proxy": {"-N KUBE-FORWARD", "-I FORWARD -j KUBE-FORWARD", "-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
		"-t nat -A PREROUTING -p udp --dport 30081 -j MARK --or-mark 0x4000",
		"-t nat -A PREROUTING -p udp --dport 30081 -j DNAT --to-destination %[2]s"},
	"Calico": {"-N cali-FORWARD", "-I FORWARD -j cali-FORWARD", "-A cali-FORWARD -j MARK --set-xmark 0x10000/0x10000",
		"-A cali-FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT", "-t mangle -N cali-PREROUTING",
		"-t mangle -I PREROUTING -j cali-PREROUTING", "-t mangle -A cali-PREROUTING -j ACCEPT",
		"-t raw -I PREROUTING -j ACCEPT", "-t mangle -N cali-POSTROUTING", "-t mangle -I POSTROUTING -j cali-POSTROUTING",
		"-t mangle -A cali-POSTROUTING -j ACCEPT"},
	"Antrea": {"-N ANTREA-FORWARD", "-I FORWARD -j ANTREA-FORWARD", "-A ANTREA-FORWARD -i fairlead-gw0 -j ACCEPT",
		"-A ANTREA-FORWARD -o fairlead-gw0 -j ACCEPT", "-t mangle -I FORWARD -j ACCEPT",
		"-t raw -I PREROUTING -i fairlead-gw0 -j ACCEPT"},
}

// Packets that no pod may send are dropped, whatever else is in the firewall: tunnel packets, sent directly or through
// a NodePort, and packets from outside with an address of this node's pods.
func TestRootForeignAcceptsOpenNothing(t *testing.T) {
	cases := slices.Sorted(maps.Keys(leftovers))
	if ovstest.UnderTest(t) == ovstest.System {
		cases = []string{"IPVS"} // only the kernel under test for the kernel datapath is certain to have it
	}
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			node, outside, pod, _ := lan(t)
			if name == "IPVS" {
				useIPVS(t, node)
			}
			outside.IP("route add 10.0.1.5/32 via 192.0.2.2")
			outside.IP("-6 route add fd00:0:0:1::5/128 via fd00:5::2")
			outside.IP("addr add 10.0.1.6/32 dev lo")
			outside.IP("addr add fd00:0:0:1::6/128 dev lo")
			node.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.eth0.rp_filter=0")
			d := desired()
			d.Tunnel = Tunnel{"udp", 6081}
			for _, stage := range []string{"before ours", "after ours, an agent's next look"} {
				for f, args := range map[string][]any{"iptables": {"10.0.1.0/24", "192.0.2.9:6081"},
					"ip6tables": {"fd00:0:0:1::/64", "[fd00:5::9]:6081"}} {
					for _, rule := range leftovers[name] {
						if rule = fmt.Sprintf(rule+"%.0[1]s%.0[2]s", args...); stage == "before ours" || !strings.Contains(rule, "-N ") {
							node.Exec(append([]string{f, "-w"}, strings.Fields(rule)...)...)
						}
					}
				}
				apply(t, node, d)
				for _, c := range []struct {
					from, at               *nstest.NS
					source, lie, truth, to string
				}{
					{pod, outside, "", "192.0.2.9:6081", "192.0.2.9:53", ""}, {pod, outside, "", "[fd00:5::9]:6081", "[fd00:5::9]:53", ""},
					{pod, outside, "", "192.0.2.2:30081", "192.0.2.9:53", "192.0.2.9:6081"},
					{pod, outside, "", "[fd00:5::2]:30081", "[fd00:5::9]:53", "[fd00:5::9]:6081"},
					{outside, pod, "10.0.1.6:0", "10.0.1.5:6000", "", ""}, {outside, pod, "[fd00:0:0:1::6]:0", "[fd00:0:0:1::5]:6000", "", ""},
				} {
					if got := arrives(t, c.from, c.at, c.source, c.lie, c.truth, cmp.Or(c.to, c.lie)); got {
						t.Errorf("%s: from %q to %s gets through", stage, c.source, c.lie)
					}
				}
			}
		})
	}
}

// Traffic of another node's pod arrives here through the gateway, with an address that is not a local pod's, and a
// NodePort would forward it with this node's address.
func TestRootNoTunnelForOtherNodesPods(t *testing.T) {
	node, outside, _, pod := lan(t)
	for f, a := range map[string][4]string{"iptables": {"10.0.2.5/24", "10.0.2.0/24", "10.0.1.1", "192.0.2.9:6081"},
		"ip6tables": {"fd00:0:0:2::5/64", "fd00:0:0:2::/64", "fd00:0:0:1::1", "[fd00:5::9]:6081"}} {
		family := map[string]string{"iptables": "-4 ", "ip6tables": "-6 "}[f]
		pod.IP(family + "addr flush dev eth0 scope global")
		pod.IP(family + "addr add " + a[0] + " dev eth0")
		pod.IP(family + "route add " + a[2] + " dev eth0")
		pod.IP(family + "route replace default via " + a[2])
		node.IP(family + "route add " + a[1] + " dev fairlead-gw0")
		node.Exec(f, "-t", "nat", "-A", "PREROUTING", "-p", "udp", "--dport", "30081", "-j", "DNAT", "--to-destination", a[3])
		node.Exec(f, "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE")
	}
	through := func() (out []string) {
		for at, backend := range map[string]string{"10.0.1.1": "192.0.2.9", "fd00:0:0:1::1": "fd00:5::9"} {
			if arrives(t, pod, outside, "", net.JoinHostPort(at, "30081"), net.JoinHostPort(backend, "53"),
				net.JoinHostPort(backend, "6081")) {
				out = append(out, at)
			}
		}
		return out
	}
	d := desired()
	apply(t, node, d)
	if got := through(); len(got) != 2 {
		t.Fatalf("without a tunnel, packets to port 6081 arrive through %q alone: the test is meaningless", got)
	}
	d.Tunnel = Tunnel{"udp", 6081}
	apply(t, node, d)
	if got := through(); len(got) > 0 {
		t.Errorf("through %q another node's pod sends tunnel packets with this node's address", got)
	}
}

// useIPVS makes the node's kernel forward its port 30081 to the other node's tunnel port, as kube-proxy does in mode
// ipvs.
func useIPVS(t *testing.T, node *nstest.NS) {
	t.Helper()
	node.Must(func() error {
		handle, err := ipvs.New("")
		if err != nil {
			return err
		}
		defer handle.Close()
		for vip, backend := range map[string]string{"192.0.2.2": "192.0.2.9", "fd00:5::2": "fd00:5::9"} {
			s := &ipvs.Service{Address: net.ParseIP(vip), Port: 30081, Protocol: unix.IPPROTO_UDP, SchedName: "rr",
				AddressFamily: unix.AF_INET, Netmask: ^uint32(0)}
			if strings.Contains(vip, ":") {
				s.AddressFamily, s.Netmask = unix.AF_INET6, 128
			}
			if err := handle.NewService(s); err != nil {
				return err
			}
			if err := handle.NewDestination(s, &ipvs.Destination{Address: net.ParseIP(backend), Port: 6081, Weight: 1,
				AddressFamily: s.AddressFamily}); err != nil {
				return err
			}
		}
		return nil
	})
	node.Exec("sysctl", "-qw", "net.ipv4.vs.conntrack=1")
}

// arrives reports whether a datagram from source to lie arrives at the address listen in at. A datagram to truth, which
// is allowed and is sent after it, ends the wait; without truth any datagram from source to lie does.
func arrives(t *testing.T, from, at *nstest.NS, source, lie, truth, listen string) bool {
	t.Helper()
	ears := map[string]net.PacketConn{}
	for _, a := range []string{listen, truth} {
		if a != "" {
			at.Must(func() (err error) { ears[a], err = net.ListenPacket("udp", a); return err })
			defer ears[a].Close()
		}
	}
	say := func(source, to, what string) {
		t.Helper()
		from.Must(func() error {
			local := (*net.UDPAddr)(nil)
			if source != "" {
				local = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(source))
			}
			conn, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(what))
			return err
		})
	}
	say(source, lie, "lie")
	say("", cmp.Or(truth, lie), "truth")
	hear := func(ear net.PacketConn, limit time.Duration) string {
		b := make([]byte, 16)
		_ = ear.SetReadDeadline(time.Now().Add(limit))
		n, _, _ := ear.ReadFrom(b)
		return string(b[:n])
	}
	if truth == "" {
		return hear(ears[listen], time.Minute) != "truth"
	}
	if got := hear(ears[truth], time.Minute); got != "truth" {
		t.Errorf("allowed packets to %s do not arrive: %q", truth, got)
	}
	return hear(ears[listen], time.Millisecond) != ""
}
