package nat

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// The two bridged pods of TestRootBridged and the node's underlay addresses.
const (
	bridged4, bridged6 = "192.0.2.50", "fd00:5::50"
	second4, second6   = "192.0.2.51", "fd00:5::51"
)

// underlay is lan with two more bridged pods. Each has two interfaces, because the bridge sends its packets two ways:
// what the node routes to the gateway, the rest to the underlay. The node uses strict rp_filter.
func underlay(t *testing.T) (node, outside, routed, first, second *nstest.NS) {
	node, outside, routed, _ = lan(t)
	outside.IP("addr flush dev out")
	outside.IP("link add lan0 type bridge")
	outside.IP("link set lan0 up")
	outside.IP("link set out master lan0")
	outside.IP("addr add 192.0.2.9/24 dev lan0")
	outside.IP("addr add fd00:5::9/64 dev lan0 nodad")
	node.IP("route add default via 192.0.2.9")
	node.IP("-6 route add default via fd00:5::9")
	const gateway = "0e:00:00:00:00:01"
	node.IP("link set fairlead-gw0 address " + gateway) // otherwise it changes with the ports
	first, second = nstest.New(t), nstest.New(t)
	for i, pod := range []*nstest.NS{first, second} {
		pod.Exec("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
		host, wire, a4, a6 := "b0", "w0", bridged4, bridged6
		if i == 1 {
			host, wire, a4, a6 = "b1", "w1", second4, second6
		}
		nstest.Veth(node, host, pod, "gw")
		node.IP("link set " + host + " master fairlead-gw0")
		nstest.Veth(outside, wire, pod, "wire")
		outside.IP("link set " + wire + " master lan0")
		pod.IP("addr add " + a4 + "/24 dev wire")
		pod.IP("addr add " + a6 + "/64 dev wire nodad")
		mac := strings.Fields(pod.IP("-br link show gw"))[2]
		for _, dst := range []string{"192.0.2.2", "fd00:5::2", "10.0.1.1", "fd00:0:0:1::1", "10.0.1.5", "fd00:0:0:1::5",
			"10.96.0.0/16", "fd00:96::/64"} {
			pod.IP("route add " + dst + " dev gw src " + map[bool]string{true: a6, false: a4}[strings.Contains(dst, ":")])
			if !strings.Contains(dst, "/") {
				pod.IP("neigh replace " + dst + " lladdr " + gateway + " dev gw nud permanent")
			}
		}
		for _, service := range []string{"10.96.0.10", "fd00:96::10"} {
			pod.IP("neigh replace " + service + " lladdr " + gateway + " dev gw nud permanent")
		}
		for a, src := range map[string]string{a4: "192.0.2.2", a6: "fd00:5::2"} {
			node.IP("route add " + a + " dev fairlead-gw0 src " + src)
			node.IP("neigh replace " + a + " lladdr " + mac + " dev fairlead-gw0 nud permanent")
		}
	}
	node.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.fairlead-gw0.rp_filter=1", "net.ipv4.conf.eth0.rp_filter=1")
	return node, outside, routed, first, second
}

// service makes the node translate port 80 of the Service's address, of one family, to a backend's address and port, as
// kube-proxy does.
func service(node *nstest.NS, backend string) {
	program, address := "iptables", "10.96.0.10/32"
	if strings.HasPrefix(backend, "[") {
		program, address = "ip6tables", "fd00:96::10/128"
	}
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		node.Exec(program, "-t", "nat", "-F", chain)
		node.Exec(program, "-t", "nat", "-A", chain, "-d", address, "-p", "tcp", "--dport", "80", "-j", "DNAT", "--to-destination", backend)
	}
}

// Services work from and to bridged pods, with any backend, with rp_filter=1, and also on a node whose gateway has no
// address.
func TestRootBridgedServices(t *testing.T) {
	node, outside, routed, first, second := underlay(t)
	const to4, to6 = "10.96.0.10:80", "[fd00:96::10]:80"
	d := desired()
	apply(t, node, d)
	service(node, "192.0.2.9:8080")
	if _, err := within(2*time.Second, first, outside, to4, "192.0.2.9:8080"); err == nil {
		t.Fatal("the Service works without our rules: the test is meaningless")
	}
	d.Pools = cidrs("192.0.2.48/28", "fd00:5::50/124")
	d.NodeAddrs = addrs("192.0.2.2", "fd00:5::2")
	for _, c := range []struct {
		name       string
		from, at   *nstest.NS
		to         string
		backend    string
		want, bare string // the client's address that the backend sees; the same on a node without a podCIDR
	}{
		{"bridged to bridged", first, second, to4, second4 + ":8080", "10.0.1.1", "192.0.2.2"},
		{"bridged to bridged v6", first, second, to6, "[" + second6 + "]:8080", "fd00:0:0:1::1", "fd00:5::2"},
		{"bridged to itself", first, first, to4, bridged4 + ":8080", "10.0.1.1", "192.0.2.2"},
		{"bridged to the outside", first, outside, to4, "192.0.2.9:8080", "192.0.2.2", "192.0.2.2"},
		{"bridged to the outside v6", first, outside, to6, "[fd00:5::9]:8080", "fd00:5::2", "fd00:5::2"},
		{"bridged to its node", first, node, to4, "192.0.2.2:8080", bridged4, bridged4},
		{"bridged to its node v6", first, node, to6, "[fd00:5::2]:8080", bridged6, bridged6},
		{"host to bridged", node, first, to4, bridged4 + ":8080", "192.0.2.2", "192.0.2.2"},
		{"host to bridged v6", node, first, to6, "[" + bridged6 + "]:8080", "fd00:5::2", "fd00:5::2"},
		{"routed to bridged", routed, first, to4, bridged4 + ":8080", "10.0.1.1", ""},
		{"routed to bridged v6", routed, first, to6, "[" + bridged6 + "]:8080", "fd00:0:0:1::1", ""},
		{"bridged to routed", first, routed, to4, "10.0.1.5:8080", "10.0.1.1", ""},
		{"bridged to routed v6", first, routed, to6, "[fd00:0:0:1::5]:8080", "fd00:0:0:1::1", ""},
	} {
		service(node, c.backend)
		apply(t, node, d)
		if got, err := seen(c.from, c.at, c.to, c.backend); err != nil || got != c.want {
			t.Errorf("%s: arrives from %q, %v; want %s", c.name, got, err, c.want)
		}
		if c.bare == "" {
			continue
		}
		bare := d
		bare.PodCIDRs = nil
		apply(t, node, bare)
		if got, err := seen(c.from, c.at, c.to, c.backend); err != nil || got != c.bare {
			t.Errorf("%s, no podCIDR: arrives from %q, %v; want %s", c.name, got, err, c.bare)
		}
	}
}

// Packets that reach a bridged pod through its host have a source address to which the pod replies through the host.
func TestRootBridgedAnswers(t *testing.T) {
	node, outside, routed, pod, _ := underlay(t)
	d := desired()
	d.Pools, d.NodeAddrs = cidrs("192.0.2.48/28"), addrs("192.0.2.2")
	apply(t, node, d)
	// A node port with externalTrafficPolicy Local: kube-proxy keeps the client's address.
	node.Exec("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "192.0.2.2/32", "-p", "tcp", "--dport", "30080",
		"-j", "DNAT", "--to-destination", bridged4+":8080")
	node.IP("addr add 192.0.2.222/32 dev lo")
	outside.IP("route add 192.0.2.222/32 via 192.0.2.2")
	for _, c := range []struct {
		name   string
		from   *nstest.NS
		to     string
		listen string
		want   string
	}{
		{"node port", outside, "192.0.2.2:30080", bridged4 + ":8080", "10.0.1.1"},
		{"outside, past the node", outside, bridged4 + ":80", bridged4 + ":80", "192.0.2.9"},
		{"host", node, bridged4 + ":80", bridged4 + ":80", "192.0.2.2"},
		{"routed pod", routed, bridged4 + ":80", bridged4 + ":80", "10.0.1.5"},
	} {
		if got, err := seen(c.from, pod, c.to, c.listen); err != nil || got != c.want {
			t.Errorf("%s: arrives from %q, %v; want %s", c.name, got, err, c.want)
		}
	}
	if got, err := seen(pod, routed, "10.0.1.5:80", "10.0.1.5:80"); err != nil || got != bridged4 {
		t.Errorf("to a routed pod: arrives from %q, %v; want %s", got, err, bridged4)
	}
	// From an address that the pod does not know to be the node's.
	node.IP("route change " + bridged4 + " dev fairlead-gw0 src 192.0.2.222")
	if got, err := seen(node, pod, bridged4+":80", bridged4+":80"); err != nil || got != "10.0.1.1" {
		t.Errorf("host under another address: arrives from %q, %v; want 10.0.1.1", got, err)
	}
}

// The node does not route to its bridged pods, neither from the underlay nor from any other interface: that would
// bypass the underlay's own router and give access to any VLAN. The node's Services still work.
func TestRootBridgedNoRouter(t *testing.T) {
	node, outside, _, pod, _ := underlay(t)
	vlan := nstest.New(t) // a host in a VLAN in which the node also has an interface
	nstest.Veth(node, "eth0.10", vlan, "eth0")
	node.IP("addr add 198.51.100.1/24 dev eth0.10")
	node.IP("addr add fd00:6::1/64 dev eth0.10 nodad")
	vlan.IP("addr add 198.51.100.9/24 dev eth0")
	vlan.IP("addr add fd00:6::9/64 dev eth0 nodad")
	vlan.IP("route add default via 198.51.100.1")
	vlan.IP("-6 route add default via fd00:6::1")
	d := desired()
	d.Pools, d.NodeAddrs = cidrs("192.0.2.48/28", "fd00:5::50/124"), addrs("192.0.2.2", "fd00:5::2")
	for _, f := range families() {
		node.Exec(f.program, "-I", "FORWARD", "-j", "ACCEPT") // another program's rule
	}
	outside.IP("route add " + bridged4 + "/32 via 192.0.2.2")
	outside.IP("route add " + bridged6 + "/128 via fd00:5::2")
	node.Exec("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "192.0.2.2/32", "-p", "tcp", "--dport", "30080",
		"-j", "DNAT", "--to-destination", bridged4+":8080")
	for name, from := range map[string]*nstest.NS{"the underlay": outside, "a VLAN's interface": vlan} {
		for program, to := range map[string]string{"iptables": bridged4 + ":80", "ip6tables": "[" + bridged6 + "]:80"} {
			apply(t, node, d)
			if as, err := within(2*time.Second, from, pod, to, to); err == nil {
				t.Errorf("the node has routed from %s to %s, which sees %s", name, to, as)
			}
			node.Exec(program, "-t", "mangle", "-F", Forward)
			if _, err := seen(from, pod, to, to); err != nil {
				t.Fatalf("without the rules %s is unreachable from %s, and the test proves nothing: %v", to, name, err)
			}
		}
		apply(t, node, d)
		if _, err := seen(from, pod, "192.0.2.2:30080", bridged4+":8080"); err != nil {
			t.Errorf("node port, from %s: %v", name, err)
		}
	}
}

// Packets from a pool's address are not masqueraded into another node's tunnel: they would arrive with the node's
// address, which the peer trusts.
func TestRootBridgedNoTunnel(t *testing.T) {
	node, outside, _, _, pod := underlay(t)
	d := desired()
	d.Pools, d.NodeAddrs = cidrs("192.0.2.48/28", "fd00:5::50/124"), addrs("192.0.2.2", "fd00:5::2")
	for _, f := range families() {
		node.Exec(f.program, "-I", "FORWARD", "-j", "ACCEPT")
	}
	// The pod ignores redirects that point it to the direct path.
	pod.Exec("sysctl", "-qw", "net.ipv4.conf.all.accept_redirects=0", "net.ipv4.conf.wire.accept_redirects=0",
		"net.ipv6.conf.wire.accept_redirects=0")
	// A pod of another node: this node's only route to it is that of the subnet.
	node.IP("route del " + second4)
	node.IP("route del " + second6)
	pod.IP("route add 192.0.2.9/32 via 192.0.2.2 dev wire")
	pod.IP("route add fd00:5::9/128 via fd00:5::2 dev wire")
	pod.IP("neigh del 192.0.2.2 dev gw")
	pod.IP("route del 192.0.2.2 dev gw")
	pod.IP("neigh del fd00:5::2 dev gw")
	pod.IP("route del fd00:5::2 dev gw")
	for to, as := range map[string]string{"192.0.2.9:7471": "192.0.2.2", "[fd00:5::9]:7471": "fd00:5::2"} {
		apply(t, node, d)
		if got, err := seen(pod, outside, to, to); err != nil || got != as {
			t.Fatalf("without the rule %s sees %q, %v; want %s, or the test is worth nothing", to, got, err, as)
		}
		closed := d
		closed.Tunnel = Tunnel{"tcp", 7471}
		apply(t, node, closed)
		if got, err := within(2*time.Second, pod, outside, to, to); err == nil {
			t.Errorf("%s takes a pod of another node for %s", to, got)
		}
	}
}

// Both back ends of iptables print the rules in the form in which they are compared.
func TestRootBridgedUnchanged(t *testing.T) {
	backends(t, func(t *testing.T) {
		node := nstest.New(t)
		for _, own := range [][]string{{"10.0.1.0/24", "fd00:1::/64"}, nil} {
			d := Desired{Gateway: "gw0", PodCIDRs: cidrs(own...), Pools: cidrs("192.0.2.48/28", "192.0.2.64/32", "fd00:5::50/124"),
				NodeAddrs: addrs("192.0.2.2", "fd00:5::2"), RandomFully: true, Tunnel: Tunnel{"udp", 6081}}
			if apply(t, node, d) == nil {
				t.Error("nothing was written")
			}
			if again := apply(t, node, d); again != nil {
				t.Errorf("written again: %v", again)
			}
		}
	})
}
