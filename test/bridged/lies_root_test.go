package bridged

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// said is a frame of a pod. mark is a part of it that no hop changes.
type said struct {
	what       string
	data, mark []byte
}

// liar is a bridged pod of VLAN 10 that sends spoofed frames.
type liar struct {
	ip4, ip6          netip.Addr
	mac               api.MAC
	router4, router6  netip.Addr
	router, node, pod api.MAC // of the underlay's router, of the node, and of a pod of the VLAN on the other node
	pod4, pod6        netip.Addr
	node4             netip.Addr
}

// lies checks that a bridged pod's frames with another's MAC, address or VLAN are not delivered on any path, nor
// messages that only a router may send. Each spoofed frame follows a valid one of its kind: a megaflow that the valid
// frame installed must not forward it.
func (c cluster) lies(t *testing.T, places []place) {
	at := map[string]place{}
	var ears []*wire
	for _, p := range places {
		if at[p.name] = p; p.netns != "" && p.node == "node1" && p.name != "a-10-node1" {
			ears = append(ears, tap(t, p, "eth0"))
		}
	}
	node := c.host(t, "node1")
	left := tap(t, c.host(t, underlay.Switch), "node1") // all frames that leave the node
	ears = append(ears, left, tap(t, node, c.Transport()), tap(t, node, "fairlead-gw0"))
	me, other, gws := at["a-10-node1"], at["a-10-node2"], underlay.Dual.VLANGatewayAddrs(10)
	l := liar{ip4: me.of(4), ip6: me.of(6), mac: me.mac(t, "eth0"), router4: gws[0].Addr(), router6: gws[1].Addr(),
		router: c.host(t, underlay.Router).mac(t, "eth10"), node: node.mac(t, c.Transport()), pod: other.mac(t, "eth0"),
		pod4: other.of(4), pod6: other.of(6), node4: c.addrsOf("node1")[0]}
	mouth := tap(t, me, "eth0")
	var lies []said
	for _, kind := range [][]said{l.sources(), l.tags(), l.arp(), l.nd(), l.others()} {
		for _, s := range kind[1:] {
			mouth.send(t, kind[0].data)
			mouth.send(t, s.data)
		}
		mouth.send(t, kind[0].data)
		lies = append(lies, kind[1:]...)
		// On every path a valid frame follows the spoofed ones. Once it has arrived, they would have arrived.
		wait(t, 10*time.Second, func() string {
			if n := len(left.find(holds(kind[0].mark))); n < len(kind) {
				return fmt.Sprintf("%s: %d of %d have left the node", kind[0].what, n, len(kind))
			}
			return ""
		})
	}
	time.Sleep(100 * time.Millisecond) // paths to the pods and the node are different, and as short
	for _, s := range lies {
		for _, ear := range ears {
			if f := ear.find(holds(s.mark)); len(f) > 0 {
				t.Errorf("%s came to %s: %x", s.what, ear.name, f[0].data)
			}
		}
	}
}

// udp is a datagram; its payload is its mark.
func udp(what string, dst, src api.MAC, from, to netip.Addr) said {
	mark := []byte("bridged: " + what)
	body := append([]byte{0x10, 0x92, 0x10, 0x92, 0, byte(8 + len(mark)), 0, 0}, mark...)
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 17, 0, byte(len(body)))
	binary.BigEndian.PutUint16(body[6:], checksum(append(pseudo, body...)))
	f := append(dst[:], src[:]...)
	if from.Is6() {
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(body)), 17, 64)
		return said{what, bytes.Join([][]byte{f, from.AsSlice(), to.AsSlice(), body}, nil), mark}
	}
	head := []byte{0x45, 0, 0, byte(20 + len(body)), 0, 0, 0, 0, 64, 17, 0, 0}
	head = append(append(head, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(head[10:], checksum(head))
	return said{what, bytes.Join([][]byte{f, {0x08, 0}, head, body}, nil), mark}
}

// sources are a valid datagram, and others with spoofed sources.
func (l liar) sources() []said {
	out := []said{udp("a truth", l.pod, l.mac, l.ip4, l.pod4)}
	for _, mac := range []api.MAC{l.router, l.node, l.pod, {2, 0, 0, 0, 0, 9}} {
		out = append(out, udp(fmt.Sprint("IPv4 from ", mac), l.router, mac, l.ip4, l.router4),
			udp(fmt.Sprint("IPv6 from ", mac), l.router, mac, l.ip6, l.router6))
	}
	for _, to := range []struct {
		mac  api.MAC
		addr netip.Addr
	}{{l.pod, l.pod4}, {l.router, l.node4}, {broadcast, netip.MustParseAddr("255.255.255.255")}} {
		for _, from := range []netip.Addr{l.pod4, l.router4, l.node4, plus(l.ip4, 1), netip.IPv4Unspecified()} {
			out = append(out, udp(fmt.Sprint("from ", from, " to ", to.addr), to.mac, l.mac, from, to.addr))
		}
	}
	for _, from := range []netip.Addr{l.pod6, l.router6, l.router.LinkLocal(), l.mac.LinkLocal(),
		netip.IPv6Unspecified()} {
		out = append(out, udp(fmt.Sprint("from ", from), l.pod, l.mac, from, l.pod6))
	}
	return out
}

// tags are a valid frame, and others with VLAN tags that the pod added.
func (l liar) tags() []said {
	out := []said{udp("a truth without a tag", l.pod, l.mac, l.ip4, l.pod4)}
	for _, vlan := range []uint16{0, 10, 20, 30} {
		from := l.ip4
		if vlan == 0 { // a priority tag names no VLAN
			from = l.pod4
		}
		s := udp(fmt.Sprint("in VLAN ", vlan), l.pod, l.mac, from, l.pod4)
		double := udp(fmt.Sprint("in VLANs 10 and ", vlan), l.pod, l.mac, l.ip4, l.pod4)
		service := udp(fmt.Sprint("with a service tag ", vlan), l.pod, l.mac, from, l.pod4)
		s.data, double.data = tagged(vlan, s.data), tagged(10, tagged(vlan, double.data))
		service.data = tagged(vlan, service.data)
		copy(service.data[12:], "\x88\xa8")
		out = append(out, s, double, service)
	}
	return out
}

// priorityTags checks that priority tags without a VLAN, which some networks use, make no difference: to a pod and from
// pods.
func (c cluster) priorityTags(t *testing.T, places []place) {
	const tag = 5 << 13
	left := tap(t, c.host(t, underlay.Switch), "node1")
	for _, p := range places {
		if p.name != "a-0-node1" && p.name != "a-10-node1" {
			continue
		}
		far, vlan := netip.MustParseAddr("198.51.100.9"), uint16(0)
		if p.name == "a-10-node1" {
			vlan = 10
		}
		out := udp("with a priority, from "+p.name, api.MAC{2, 0, 0, 0, 0, 9}, p.mac(t, "eth0"), p.of(4), far)
		ear := tap(t, p, "eth0")
		ear.send(t, tagged(tag, out.data))
		wait(t, 10*time.Second, func() string {
			if f := left.find(holds(out.mark)); len(f) == 0 || f[0].vlan != vlan {
				return fmt.Sprintf("%s: %+v has left the node, want it in VLAN %d", out.what, f, vlan)
			}
			return ""
		})
		in := udp("with a priority, to "+p.name, p.mac(t, "eth0"), api.MAC{2, 0, 0, 0, 0, 9}, far, p.of(4))
		left.send(t, tagged(tag|vlan, in.data))
		wait(t, 10*time.Second, func() string {
			if f := ear.find(holds(in.data[14:])); len(f) == 0 || f[0].vlan != 0 || len(f[0].data) != len(in.data) {
				return fmt.Sprintf("%s: %+v has arrived, want it untagged", in.what, f)
			}
			return ""
		})
	}
}

// arp is a valid announcement, and ones of others' addresses.
func (l liar) arp() []said {
	say := func(what string, frame []byte) said { return said{"ARP: " + what, frame, frame[14:42]} }
	out := []said{say("a truth", arpFrame(1, l.mac, broadcast, l.ip4, l.ip4))}
	for _, claimed := range []netip.Addr{l.router4, l.pod4, l.node4, plus(l.ip4, 1), netip.IPv4Unspecified()} {
		for _, op := range []byte{1, 2} {
			what := fmt.Sprintf("operation %d, for %s", op, claimed)
			out = append(out, say(what, arpFrame(op, l.mac, broadcast, claimed, claimed)),
				say(what+" to the router", arpFrame(op, l.mac, l.router, claimed, l.router4)),
				say(what+" to the pod", arpFrame(op, l.mac, l.pod, claimed, l.pod4)))
		}
	}
	false1 := arpFrame(2, l.mac, broadcast, l.ip4, l.router4)
	copy(false1[22:], l.pod[:]) // the message names another MAC than the frame
	return append(out, say("another's MAC", false1), say("all of it another's", arpFrame(2, l.pod, broadcast, l.ip4, l.pod4)))
}

// nd is a valid advertisement, ones of others' addresses, and messages that only routers may send, whole and in
// fragments.
func (l liar) nd() []said {
	all, allMAC := netip.IPv6LinkLocalAllNodes(), api.MAC{0x33, 0x33, 0, 0, 0, 1}
	say := func(what string, frame []byte) said { return said{"ND: " + what, frame, frame[22:]} }
	claim := func(target netip.Addr, mac api.MAC) []byte {
		return bytes.Join([][]byte{{0x20, 0, 0, 0}, target.AsSlice(), {2, 1}, mac[:]}, nil)
	}
	out := []said{say("a truth", icmp6(allMAC, l.mac, l.ip6, all, 136, claim(l.ip6, l.mac)))}
	router := append([]byte{64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, l.mac[:]...)
	for _, src := range []netip.Addr{l.ip6, l.mac.LinkLocal()} {
		for _, claimed := range []netip.Addr{l.router6, l.router.LinkLocal(), l.pod6, plus(l.ip6, 1)} {
			for _, to := range []struct {
				mac  api.MAC
				addr netip.Addr
			}{{allMAC, all}, {l.router, l.router.LinkLocal()}, {l.pod, l.pod6}} {
				out = append(out, say(fmt.Sprintf("%s claims %s to %s", src, claimed, to.addr),
					icmp6(to.mac, l.mac, src, to.addr, 136, claim(claimed, l.mac))))
			}
		}
		redirect := bytes.Join([][]byte{make([]byte, 4), l.mac.LinkLocal().AsSlice(), l.pod6.AsSlice()}, nil)
		out = append(out, say("another's MAC", icmp6(allMAC, l.mac, src, all, 136, claim(l.ip6, l.pod))),
			say("router advertisement", icmp6(allMAC, l.mac, src, all, 134, router)),
			say("router solicitation", icmp6(allMAC, l.mac, src, all, 133, make([]byte, 4))),
			say("redirect", icmp6(l.pod, l.mac, src, l.pod6, 137, redirect)))
		for _, more := range []byte{0, 1} {
			out = append(out, say(fmt.Sprintf("router advertisement in a fragment, more %d", more),
				fragment(icmp6(allMAC, l.mac, src, all, 134, router), more)),
				say(fmt.Sprintf("claim in a fragment, more %d", more),
					fragment(icmp6(allMAC, l.mac, src, all, 136, claim(l.router6, l.mac)), more)))
		}
	}
	// Options that Open vSwitch considers invalid hide their content.
	twice := icmp6(l.router, l.mac, l.ip6, l.router6, 135, bytes.Join([][]byte{make([]byte, 4), l.router6.AsSlice(),
		{1, 1}, l.pod[:], {1, 1}, l.pod[:]}, nil))
	out = append(out, say("another's MAC, twice", twice),
		say("claim to one pod in a fragment", fragment(icmp6(l.pod, l.mac, l.ip6, l.pod6, 136, claim(l.ip6, l.pod)), 1)),
		say("claim to one pod, not in the first fragment", headless(icmp6(l.pod, l.mac, l.ip6, l.pod6, 136, claim(l.ip6, l.pod)))),
		say("claim to all, not in the first fragment", headless(icmp6(allMAC, l.mac, l.ip6, all, 136, claim(l.ip6, l.pod)))))
	return append(out, say("solicitation with the router's address",
		icmp6(allMAC, l.mac, l.router6, all, 135, append(make([]byte, 4), l.pod6.AsSlice()...))))
}

// fragment makes a first fragment of an IPv6 packet; if more is 0 it is an atomic fragment (RFC 6946).
func fragment(frame []byte, more byte) []byte {
	f := bytes.Join([][]byte{frame[:54], {58, 0, 0, more, 0, 0, 0, 7}, frame[54:]}, nil)
	f[19], f[20] = f[19]+8, 44
	return f
}

// headless makes a first fragment that ends within an extension header: the protocol is in the next one.
func headless(frame []byte) []byte {
	f := bytes.Join([][]byte{frame[:54], {60, 0, 0, 1, 0, 0, 0, 7}, {58, 20, 1, 4}, make([]byte, 4), frame[54:]}, nil)
	f[19], f[20] = f[19]+16, 44
	return f
}

// others are a valid frame, and protocols that pods may not use.
func (l liar) others() []said {
	out := []said{udp("one more truth", l.pod, l.mac, l.ip4, l.pod4)}
	for what, head := range hostFrames {
		if head[6:] == "\x08\x00" || head[6:] == "\x86\xdd" {
			continue // pods may send to multicast
		}
		mark := []byte("bridged: " + what)
		data := bytes.Join([][]byte{[]byte(head[:6]), l.mac[:], []byte(head[6:]), mark, make([]byte, 60)}, nil)
		out = append(out, said{what, data, mark})
	}
	return out
}
