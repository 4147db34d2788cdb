package firewall

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// random generates rulesets. Unless unsure, all of them can be evaluated, so each verdict must match the kernel's.
type random struct {
	*rand.Rand
	hooks     []string // that the packets traverse
	forwarded bool     // rather than local
	hook      string
	unsure    bool // with conditions that cannot be evaluated
}

func (r random) one(of ...string) string { return of[r.IntN(len(of))] }

// condition is true for the test's packet about half of the time.
func (r random) condition() string {
	ifname := map[string]string{"input": "iifname", "prerouting": "iifname", "output": "oifname", "postrouting": "oifname",
		"forward": r.one("iifname", "oifname")}[r.hook]
	if r.unsure && r.IntN(3) == 0 {
		return r.one("meta mark 0", "meta mark 7", "limit rate over 1/second", "limit rate 1000/second", "meta length > 20", "meta pkttype host")
	}
	conditions := []string{"udp dport 6081", "udp dport != 6081", "udp dport { 53, 6000-6090 }", "udp dport @ports", "th dport 6081",
		"tcp dport 6081", "tcp dport != 22", "meta l4proto udp", "meta l4proto { tcp, gre }", "meta l4proto != udp", "ip protocol udp",
		ifname + " \"eth0\"", ifname + " != \"eth0\"", ifname + " \"e*\"", ifname + " { \"lo\", \"eth0\" }", ifname + " \"lo\"",
		"ip saddr 192.0.2.0/24", "ip saddr != 192.0.2.0/24", "ip saddr @hosts", "ip daddr 192.0.2.1-192.0.2.9", "ip daddr { 10.0.0.0/8, 192.0.2.66 }",
		"ip6 saddr fd00::/64", "meta nfproto ipv4", "meta nfproto ipv6", "meta protocol ip", "fib daddr type local", "fib saddr type local"}
	if r.tracked() {
		conditions = append(conditions, "ct state untracked", "ct state { established, related }", "ct state new,untracked",
			"ct state invalid", "ct state != new")
	}
	if !r.forwarded {
		conditions = append(conditions, "ct status dnat")
	}
	return r.one(conditions...)
}

// tracked reports whether the conntrack state of the packets is known.
func (r random) tracked() bool { return !r.forwarded || r.hook == "forward" }

func (r random) rule(chains int) string {
	rule := ""
	for range r.IntN(3) {
		rule += r.condition() + " "
	}
	if r.IntN(4) == 0 {
		rule += "counter "
	}
	verdicts := []string{"accept", "drop", "return", "continue", "udp dport vmap { 6081 : drop, 53 : accept }"}
	if r.tracked() {
		verdicts = append(verdicts, "ct state vmap { untracked : accept, invalid : drop }", "ct state vmap { new : drop, invalid : accept }")
	}
	if r.hook == "input" || r.hook == "output" || r.hook == "forward" {
		verdicts = append(verdicts, "reject")
	}
	for i := range chains { // a chain jumps only to earlier ones
		verdicts = append(verdicts, fmt.Sprintf("jump c%d", i), fmt.Sprintf("goto c%d", i), fmt.Sprintf("meta l4proto vmap { udp : jump c%d }", i))
	}
	return rule + r.one(verdicts...)
}

// table is a table with one base chain, and up to two chains that it can jump to.
func (r random) table(n int) string {
	t := fmt.Sprintf("table %s t%d {\nset ports { type inet_service; flags interval; elements = { 22, 6080-6090 }; }\n"+
		"set hosts { type ipv4_addr; flags interval; elements = { 192.0.2.2, 198.51.100.0/24 }; }\n", r.one("inet", "ip"), n)
	r.hook = r.one(r.hooks...)
	chains := r.IntN(3)
	for i := range chains {
		t += fmt.Sprintf("chain c%d {\n%s\n%s\n}\n", i, r.rule(i), r.rule(i))
	}
	t += fmt.Sprintf("chain base {\ntype filter hook %s priority %d; policy %s;\n", r.hook, r.IntN(100), r.one("accept", "accept", "drop"))
	for range 1 + r.IntN(4) {
		t += r.rule(chains) + "\n"
	}
	return t + "}\n}\n"
}

// untrack is what the agent's rules do with tunnel packets.
const untrack = `table ip raw {
chain PREROUTING { type filter hook prerouting priority -300; udp dport 6081 notrack; }
chain OUTPUT { type filter hook output priority -300; udp dport 6081 notrack; }
}
`

// The verdict matches the kernel's, for random rulesets and a packet in each direction.
func TestRootDropped(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet meets Open vSwitch")
	nstest.Need(t)
	node, peer, local, remote := neighbours(t)
	in := Packet{In: "eth0", Src: remote, Dst: local, Protocol: "udp", Port: 6081}
	out := Packet{Out: "eth0", Src: local, Dst: remote, Protocol: "udp", Port: 6081}
	r := random{hooks: []string{"prerouting", "input", "output", "postrouting"}}
	paths := map[Packet]func(bool) bool{in: path(t, peer, node, local), out: path(t, node, peer, remote)}
	r.compare(t, node, untrack, paths)
}

// The same for a pod's packets in each direction, which the node forwards.
func TestRootForwardedDropped(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet meets Open vSwitch")
	nstest.Need(t)
	node, peer, local, remote := neighbours(t)
	pod := nstest.New(t)
	nstest.Veth(node, "gw0", pod, "eth0")
	node.IP("addr add 10.0.0.1/24 dev gw0")
	pod.IP("addr add 10.0.0.2/24 dev eth0")
	pod.IP("route add default via 10.0.0.1")
	peer.IP("route add 10.0.0.0/24 via " + local.String())
	node.Exec("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
	pod.IP("neigh replace 10.0.0.1 lladdr " + macOf(node, "gw0") + " nud permanent dev eth0")
	node.IP("neigh replace 10.0.0.2 lladdr " + macOf(pod, "eth0") + " nud permanent dev gw0")
	own := netip.MustParseAddr("10.0.0.2")
	in := Packet{In: "eth0", Out: "gw0", Src: remote, Dst: own, Protocol: "udp", Port: 6081}
	out := Packet{In: "gw0", Out: "eth0", Src: own, Dst: remote, Protocol: "udp", Port: 6081}
	r := random{hooks: []string{"prerouting", "forward"}, forwarded: true}
	paths := map[Packet]func(bool) bool{in: path(t, peer, pod, own), out: path(t, pod, peer, remote)}
	r.compare(t, node, "", paths)
}

// neighbours are two nodes with permanent neighbour entries for each other.
func neighbours(t *testing.T) (node, peer *nstest.NS, local, remote netip.Addr) {
	t.Helper()
	node, peer = nstest.New(t), nstest.New(t)
	nstest.Veth(node, "eth0", peer, "eth0")
	node.IP("addr add 192.0.2.1/24 dev eth0")
	peer.IP("addr add 192.0.2.2/24 dev eth0")
	local, remote = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, ns := range []*nstest.NS{node, peer} {
		ns.IP("neigh replace " + remote.String() + " lladdr " + macOf(peer, "eth0") + " nud permanent dev eth0")
		ns.IP("neigh replace " + local.String() + " lladdr " + macOf(node, "eth0") + " nud permanent dev eth0")
	}
	return node, peer, local, remote
}

// compare loads random rulesets on the node, each after always, and compares the verdicts with what arrives.
func (r random) compare(t *testing.T, node *nstest.NS, always string, paths map[Packet]func(bool) bool) {
	t.Helper()
	seed, rulesets := uint64(time.Now().UnixNano()), 150
	if os.Getenv("FAIRLEAD_TEST_LONG") != "" {
		rulesets = 5000
	}
	t.Log("seed", seed)
	r.Rand = rand.New(rand.NewPCG(seed, 0))
	drops := 0
	file := filepath.Join(t.TempDir(), "rules")
	for tried := 0; tried < rulesets; {
		r.unsure = tried%3 == 0
		text := "flush ruleset\n" + always
		for n := range 1 + r.IntN(2) {
			text += r.table(n)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := node.Run("nft", "-f", file); err != nil {
			continue // nft rejects rules with two protocols
		}
		tried++
		var rules Ruleset
		node.Must(func() (err error) { rules, err = Read(t.Context()); return err })
		for p, came := range paths {
			by, dropped := rules.Dropped(p)
			if dropped {
				drops++
			}
			if r.unsure && !dropped {
				continue // it may still be dropped
			}
			if came(!dropped) == dropped {
				t.Fatalf("%+v: dropped: %t, by %s; the kernel does the opposite:\n%s", p, dropped, by, text)
			}
		}
	}
	t.Logf("%d packets were dropped", drops)
	if drops == 0 {
		t.Error("none was dropped")
	}
}

func macOf(n *nstest.NS, ifName string) (mac string) {
	n.Must(func() error {
		l, err := net.InterfaceByName(ifName)
		if err == nil {
			mac = l.HardwareAddr.String()
		}
		return err
	})
	return mac
}

// path sends packets to the tunnel's port of an address; came reports whether one arrives. An expected packet is waited
// for.
func path(t *testing.T, from, to *nstest.NS, addr netip.Addr) (came func(expected bool) bool) {
	t.Helper()
	var there, here *net.UDPConn
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 6081))
	to.Must(func() (err error) { there, err = net.ListenUDP("udp4", at); return err })
	from.Must(func() (err error) { here, err = net.DialUDP("udp4", nil, at); return err })
	t.Cleanup(func() { there.Close(); here.Close() })
	packet := uint64(0)
	return func(expected bool) bool {
		packet++
		mark := binary.BigEndian.AppendUint64(nil, packet)
		_, _ = here.Write(mark) // fails if it is dropped on output, or an earlier one was rejected
		limit := 2 * time.Millisecond
		if expected {
			_, _ = here.Write(mark)
			limit = time.Minute
		}
		deadline := time.Now().Add(limit)
		for buf := make([]byte, 64); ; {
			_ = there.SetReadDeadline(deadline)
			n, err := there.Read(buf)
			if err != nil {
				return false
			}
			if string(buf[:n]) == string(mark) {
				return true
			}
		}
	}
}
