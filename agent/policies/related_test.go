package policies

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/test/flowtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// An ICMP error about a connection passes as egress of the pod that has the connection, as a client, through a Service
// or as a server, and of no other pod: otherwise any pod could send anything to the other end by using the addresses of
// another pod's connection in the same zone.
func TestErrorsAboutConnectionsOfOthers(t *testing.T) {
	const out = `{"podSelector": {"matchLabels": {"app": "friend"}}, "policyTypes": ["Egress"], "egress": [{}]}`
	const web = `{"podSelector": {"matchLabels": {"app": "judged"}}, "policyTypes": ["Egress", "Ingress"],
		"ingress": [{"ports": [{"port": 80, "protocol": "UDP"}]}]}`
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	w := newWorld(t, networkPolicy(t, "web", web), networkPolicy(t, "out", out))
	w.update()
	s.SetPolicies(w.Units(), true)
	s.SetUnits(map[uint32]openflow.Unit{1: clusterip.Unit(1, netip.MustParseAddrPort("10.96.0.1:53"), clusterip.UDP,
		[]netip.AddrPort{netip.MustParseAddrPort("10.10.1.9:53")}, 0)}, true)
	flowtest.Sync(t, s, w.base())
	n := wireNode{t, o}
	for _, c := range []struct{ name, judged, friend, far, service string }{
		{"IPv4", "10.10.0.3", "10.10.0.4", "203.0.113.9", "10.96.0.1"}, {"IPv6", "fd00:10::3", "fd00:10::4", "2001:db8::9", ""},
		{"bridged", "192.168.110.112", "192.168.111.113", "203.0.113.9", ""},
		{"bridged IPv6", "fd77:0:0:a10::112", "fd77:0:0:b10::113", "2001:db8::9", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.t = t
			n.passes("a datagram", c.friend, udpPacket(c.friend, c.far, 40000, 53), true)
			n.passes("its client's error", c.friend, errorAbout(c.friend, udpPacket(c.far, c.friend, 53, 40000)), true)
			n.passes("another's datagram", c.judged, udpPacket(c.judged, c.far, 40000, 53), false)
			n.passes("another's error", c.judged, errorAbout(c.judged, udpPacket(c.far, c.friend, 53, 40000)), false)
			n.passes("a datagram to the server", c.friend, udpPacket(c.friend, c.judged, 40000, 80), true)
			n.passes("its server's error", c.judged, errorAbout(c.judged, udpPacket(c.friend, c.judged, 40000, 80)), true)
			if c.service != "" {
				n.passes("a datagram to a Service", c.friend, udpPacket(c.friend, c.service, 40001, 53), true)
				n.passes("its client's error", c.friend, errorAbout(c.friend, udpPacket(c.service, c.friend, 53, 40001)), true)
			}
		})
	}
}

// A pod that may not open connections answers in connections that it has accepted, until they are ended. Then it may
// not continue these either, even if it may open others.
func TestAnswersInConnections(t *testing.T) {
	const friend, judged = "10.10.0.4", "10.10.0.3"
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	w := newWorld(t, networkPolicy(t, "web", `{"podSelector": {"matchLabels": {"app": "judged"}},
		"policyTypes": ["Ingress", "Egress"], "ingress": [{"ports": [{"port": 80, "protocol": "UDP"}]}]}`))
	n := wireNode{t, o}
	sends := func(when string, goesOn, begins bool) {
		t.Helper()
		w.update()
		s.SetPolicies(w.Units(), true)
		flowtest.Sync(t, s, w.base())
		n.passes(when+"a datagram", friend, udpPacket(friend, judged, 40000, 80), goesOn)
		n.passes(when+"its answer", judged, udpPacket(judged, friend, 80, 40000), goesOn)
		n.passes(when+"no answer", judged, udpPacket(judged, friend, 80, 40001), begins)
	}
	sends("", true, false)
	w.source.Put("NetworkPolicy", "shop/web",
		networkPolicy(t, "web", `{"podSelector": {"matchLabels": {"app": "judged"}}, "policyTypes": ["Ingress"]}`))
	w.update()
	c := connection(friend+":40000", judged+":80")
	c.Protocol = clusterip.UDP
	if !w.ends(policing.Pod{}.Zone(), c) {
		t.Fatal("the connection is not forbidden")
	}
	sends("after the end, ", false, true)
}

// wireNode sends whole frames of pods.
type wireNode struct {
	t *testing.T
	o *ovstest.OVS
}

// passes checks whether a packet of the pod with that address leaves the bridge.
func (n wireNode) passes(what, from string, packet []byte, want bool) {
	n.t.Helper()
	var pod testPod
	for _, p := range testPods() {
		if slices.Contains(flowtest.Addrs(p.addrs), netip.MustParseAddr(from)) {
			pod = p
		}
	}
	src, dst, kind := flowtest.MAC(n.t, pod.mac()), flowtest.MAC(n.t, router), []byte{0x08, 0x00}
	if packet[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	received, left := n.counts(pod.port)
	n.o.Appctl("netdev-dummy/receive", "pod-"+pod.name, hex.EncodeToString(slices.Concat(dst[:], src[:], kind, packet)))
	for start := time.Now(); ; { // a received packet has been forwarded by the time it is counted
		got, now := n.counts(pod.port)
		if got != received {
			if (now != left) != want {
				n.t.Errorf("%s of %s: passes: %v, want %v", what, pod.name, now != left, want)
			}
			return
		}
		if time.Since(start) > time.Minute {
			n.t.Fatalf("%s of %s has not been received", what, pod.name)
		}
	}
}

var portCounts = regexp.MustCompile(`(?s)port +(\d+): rx pkts=(\d+),.*?tx pkts=(\d+),`)

// counts are the number of packets that a port has received, and of those that have left through any port.
func (n wireNode) counts(port uint32) (received, left int) {
	for _, m := range portCounts.FindAllStringSubmatch(n.o.Ofctl("dump-ports", "br-int"), -1) {
		out, _ := strconv.Atoi(m[3])
		left += out
		if m[1] == strconv.Itoa(int(port)) {
			received, _ = strconv.Atoi(m[2])
		}
	}
	return received, left
}

// udpPacket is a datagram in its IP packet.
func udpPacket(from, to string, src, dst uint16) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
	return ipPacket(from, to, 17, append(b, 0, 12, 0, 0, 'd', 'a', 't', 'a'), 6)
}

// errorAbout is an ICMP error to the sender of a packet: port unreachable.
func errorAbout(from string, packet []byte) []byte {
	kind, protocol, at, size := []byte{3, 3}, byte(1), 12, 4
	if packet[0]>>4 == 6 {
		kind, protocol, at, size = []byte{1, 4}, 58, 8, 16
	}
	to, _ := netip.AddrFromSlice(packet[at : at+size])
	return ipPacket(from, to.String(), protocol, slices.Concat(kind, make([]byte, 6), packet), 2)
}

// ipPacket is an IP packet with a payload whose checksum is at the given offset.
func ipPacket(from, to string, protocol byte, payload []byte, at int) []byte {
	src, dst := netip.MustParseAddr(from), netip.MustParseAddr(to)
	addrs := slices.Concat(src.AsSlice(), dst.AsSlice())
	pseudo := slices.Concat(addrs, []byte{0, protocol, 0, byte(len(payload))}, payload)
	if protocol == 1 {
		pseudo = payload
	}
	binary.BigEndian.PutUint16(payload[at:], internetChecksum(pseudo))
	if src.Is6() {
		return slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(payload)), protocol, 64}, addrs, payload)
	}
	head := slices.Concat([]byte{0x45, 0, 0, byte(20 + len(payload)), 0, 0, 0, 0, 64, protocol, 0, 0}, addrs)
	binary.BigEndian.PutUint16(head[10:], internetChecksum(head))
	return append(head, payload...)
}

// internetChecksum is the checksum of RFC 1071.
func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
