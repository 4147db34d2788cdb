package suite

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// scene is a lab with the pods of the anti-spoofing tests: liar and victim on node1 with a third pod, far on node2.
type scene struct {
	cluster
	liar, victim, third, far, node, outside place
	gateway                                 api.MAC // of node1
}

func newScene(t *testing.T) scene {
	c := up(t, lab.Options{})
	c.addPods(t, "liar@node1", "victim@node1", "third@node1", "far@node2")
	c.warm(t)
	return scene{c, c.pod(t, "liar"), c.pod(t, "victim"), c.pod(t, "third"), c.pod(t, "far"), c.host(t, "node1"),
		c.host(t, underlay.Outside), c.host(t, "node1").macOf(t, "fairlead-gw0")}
}

// A pod cannot send with addresses other than its own.
func TestRootPodsCannotLie(t *testing.T) {
	s := newScene(t)
	t.Run("frames", func(t *testing.T) { falseFrames(t, s) })
	t.Run("addresses changed in the pod", func(t *testing.T) { falseInterface(t, s) })
	t.Run("no capture", func(t *testing.T) { noCapture(t, s) })
	t.Run("TTL", func(t *testing.T) { ttls(t, s) })
}

// said is a frame of the liar.
type said struct {
	what  string
	frame []byte
	mark  []byte
}

func falseFrames(t *testing.T, s scene) {
	liar := tap(t, s.liar, "eth0")
	ears := []*wire{tap(t, s.victim, "eth0"), tap(t, s.third, "eth0"), tap(t, s.far, "eth0"),
		tap(t, s.node, "fairlead-gw0"), tap(t, s.outside, "eth0")}
	for _, p := range []place{s.victim, s.third, s.node} { // so that there are cache entries to poison
		for i := range s.victim.ips {
			reach(t, p, s.liar.ips[i])
			reach(t, p, s.victim.ips[i])
			reach(t, p, s.third.ips[i])
		}
	}
	var lies []said
	for i := range s.liar.ips {
		lies = append(lies, s.falseSources(i)...)
	}
	lies = append(lies, s.falseARP()...)
	lies = append(lies, s.falseND()...)
	for n, l := range lies {
		if n%50 == 0 { // Open vSwitch's receive socket holds some 200 frames: more would be lost
			so := udp(s.liar.ips[0], s.victim.ips[0], fmt.Sprintf("the truth after %d lies", n))
			liar.send(t, ethernet(s.gateway, s.liar.mac, so))
			ears[0].expect(t, string(so.mark), so.mark)
		}
		liar.send(t, l.frame)
	}
	// On every path a valid frame follows the spoofed ones. Once it has arrived, they would have arrived.
	for i, to := range [][]netip.Addr{s.victim.ips, s.third.ips, s.far.ips,
		{gatewayOf(s.family.PodCIDRs(1)[0]), gatewayOf(s.family.PodCIDRs(1)[1])},
		{s.family.FarAddrs()[0].Addr(), s.family.FarAddrs()[1].Addr()}} {
		for f := range to {
			truth := udp(s.liar.ips[f], to[f], fmt.Sprintf("the truth to %s", to[f]))
			liar.send(t, ethernet(s.gateway, s.liar.mac, truth))
			ears[i].expect(t, "a true datagram to "+to[f].String(), truth.mark)
		}
	}
	trueNeighbour(t, s, liar, ears[0])
	for _, l := range lies {
		for _, ear := range ears {
			if f := ear.find(l.mark); f != nil {
				t.Errorf("%s came to %s: %x", l.what, ear.name, f)
			}
		}
	}
	for _, p := range []place{s.victim, s.third, s.node} {
		for addr, mac := range p.neighbours(t) {
			if mac == s.liar.mac.String() && addr != s.liar.ips[0] && addr != s.liar.ips[1] && addr != s.liar.mac.LinkLocal() {
				t.Errorf("%s believes that %s is at the liar's MAC", p.name, addr)
			}
		}
	}
	for i := range s.victim.ips {
		reach(t, s.third, s.victim.ips[i])
		reach(t, s.node, s.victim.ips[i])
	}
}

// falseSources are datagrams of family number i with another's MAC or address, to all destinations.
func (s scene) falseSources(i int) []said {
	own, other := s.liar.ips[i], s.third.ips[i]
	var lies []said
	say := func(what string, src api.MAC, from, to netip.Addr) {
		p := udp(from, to, fmt.Sprintf("lie: %s to %s", what, to))
		lies = append(lies, said{string(p.mark), ethernet(s.gateway, src, p), p.mark})
	}
	for _, to := range []netip.Addr{s.victim.ips[i], s.far.ips[i], gatewayOf(s.family.PodCIDRs(1)[i]),
		s.family.FarAddrs()[i].Addr()} {
		say("the MAC of third", s.third.mac, own, to)
		say("an unused MAC", api.MAC{2, 0, 0, 0, 0, 9}, own, to)
		say("the gateway's MAC", s.gateway, own, to)
		say("the address of third", s.liar.mac, other, to)
		say("MAC and address of third", s.third.mac, other, to)
		say("an address of node2", s.liar.mac, s.far.ips[i], to)
		say("the gateway's address", s.liar.mac, gatewayOf(s.family.PodCIDRs(1)[i]), to)
		say("an unused address", s.liar.mac, unusedOf(s.family.PodCIDRs(1)[i]), to)
		say("an address from outside", s.liar.mac, s.family.FarAddrs()[i].Addr(), to)
	}
	// Not spoofed, but it would loop between bridge and host until its TTL expires.
	say("an unused address as destination", s.liar.mac, own, unusedOf(s.family.PodCIDRs(1)[i]))
	for _, dst := range []api.MAC{s.victim.mac, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		p := udp(other, s.victim.ips[i], "lie: the address of third, in a frame to "+dst.String())
		lies = append(lies, said{string(p.mark), ethernet(dst, s.liar.mac, p), p.mark})
		tagged := packet{unix.ETH_P_8021Q, append([]byte{0, 5}, ethernet(dst, s.liar.mac,
			udp(own, s.victim.ips[i], "lie: a VLAN, in a frame to "+dst.String()))[12:]...),
			[]byte("lie: a VLAN, in a frame to " + dst.String())}
		lies = append(lies, said{string(tagged.mark), ethernet(dst, s.liar.mac, tagged), tagged.mark})
	}
	return lies
}

// falseARP claims the gateway's and other pods' addresses, to pods and to the node.
func (s scene) falseARP() []said {
	broadcast := api.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	gateway := gatewayOf(s.family.PodCIDRs(1)[0])
	var lies []said
	say := func(dst, src api.MAC, p packet) {
		frame := ethernet(dst, src, p)
		lies = append(lies, said{fmt.Sprintf("ARP %x", p.mark), frame, frame[6:]})
	}
	for _, claimed := range []netip.Addr{gateway, s.third.ips[0], s.victim.ips[0], unusedOf(s.family.PodCIDRs(1)[0])} {
		for _, to := range []struct {
			mac  api.MAC
			addr netip.Addr
		}{{s.victim.mac, s.victim.ips[0]}, {s.third.mac, s.third.ips[0]}, {s.gateway, gateway}} {
			say(to.mac, s.liar.mac, arp(2, s.liar.mac, claimed, to.mac, to.addr))
			say(broadcast, s.liar.mac, arp(1, s.liar.mac, claimed, api.MAC{}, to.addr))
		}
		say(broadcast, s.liar.mac, arp(2, s.liar.mac, claimed, broadcast, claimed)) // gratuitous
		say(broadcast, s.liar.mac, arp(1, s.liar.mac, claimed, broadcast, claimed))
	}
	// The address is its own, the MAC in the message is not; and vice versa in the frame.
	say(s.victim.mac, s.liar.mac, arp(2, s.third.mac, s.liar.ips[0], s.victim.mac, s.victim.ips[0]))
	say(s.victim.mac, s.third.mac, arp(2, s.liar.mac, s.liar.ips[0], s.victim.mac, s.victim.ips[0]))
	return lies
}

// falseND does the same with neighbour discovery, and sends messages that only routers may send.
func (s scene) falseND() []said {
	gateway := gatewayOf(s.family.PodCIDRs(1)[1])
	allNodes, allNodesMAC := netip.MustParseAddr("ff02::1"), api.MAC{0x33, 0x33, 0, 0, 0, 1}
	own, linkLocal := s.liar.ips[1], s.liar.mac.LinkLocal()
	var lies []said
	say := func(what string, dst api.MAC, p packet) {
		lies = append(lies, said{fmt.Sprintf("%s %x", what, p.mark), ethernet(dst, s.liar.mac, p), p.mark})
	}
	for _, to := range []struct {
		mac  api.MAC
		addr netip.Addr
	}{{s.victim.mac, s.victim.ips[1]}, {s.third.mac, s.third.ips[1]}, {s.gateway, gateway}, {allNodesMAC, allNodes}} {
		for _, claimed := range []netip.Addr{gateway, s.third.ips[1], s.victim.ips[1], s.gateway.LinkLocal(),
			unusedOf(s.family.PodCIDRs(1)[1])} {
			for _, src := range []netip.Addr{own, claimed} {
				say("advertisement", to.mac, advertisement(src, to.addr, claimed, s.liar.mac))
			}
			if to.addr != allNodes {
				say("solicitation", to.mac, solicitation(claimed, to.addr, s.liar.mac))
			}
		}
		say("advertisement of another's MAC", to.mac, advertisement(own, to.addr, own, s.third.mac))
		for _, src := range []netip.Addr{own, linkLocal, s.gateway.LinkLocal()} {
			router := linkOption([]byte{64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}, 1, s.liar.mac)
			say("router advertisement", to.mac, icmp6(src, to.addr, 134, router))
			redirect := append(make([]byte, 4), append(linkLocal.AsSlice(), s.far.ips[1].AsSlice()...)...)
			say("redirect", to.mac, icmp6(src, to.addr, 137, redirect))
		}
	}
	return lies
}

// trueNeighbour checks that valid messages of the rejected kinds pass.
func trueNeighbour(t *testing.T, s scene, liar, victim *wire) {
	for what, p := range map[string]packet{
		"ARP request":  arp(1, s.liar.mac, s.liar.ips[0], api.MAC{}, s.victim.ips[0]),
		"ARP reply":    arp(2, s.liar.mac, s.liar.ips[0], s.victim.mac, s.victim.ips[0]),
		"solicitation": solicitation(s.liar.ips[1], s.victim.ips[1], s.liar.mac),
		"advertisement": advertisement(s.liar.ips[1], s.victim.ips[1], s.liar.ips[1],
			s.liar.mac),
	} {
		liar.send(t, ethernet(s.victim.mac, s.liar.mac, p))
		victim.expect(t, "a true "+what, p.mark)
	}
}

// falseInterface does what root in the pod can do with ip(8).
func falseInterface(t *testing.T, s scene) {
	for i, to := range s.victim.ips {
		more := unusedOf(s.family.PodCIDRs(1)[i])
		bits := s.family.PodCIDRs(1)[i].Bits()
		s.liar.exec(t, fmt.Sprintf("ip addr add %s/%d dev eth0%s", more, bits, map[bool]string{true: " nodad"}[to.Is6()]))
		for _, to := range []netip.Addr{to, s.far.ips[i], s.family.FarAddrs()[i].Addr()} {
			noReach(t, s.liar, to, "-I", more.String())
			reach(t, s.liar, to, "-I", s.liar.ips[i].String())
		}
		s.liar.exec(t, fmt.Sprintf("ip addr del %s/%d dev eth0", more, bits))
	}
	s.liar.exec(t, "ip link set eth0 address 02:00:00:00:00:09")
	for i := range s.victim.ips {
		noReach(t, s.liar, s.victim.ips[i])
		noReach(t, s.liar, s.far.ips[i])
	}
	s.liar.exec(t, "ip link set eth0 address "+s.liar.mac.String())
	for i := range s.victim.ips {
		reach(t, s.liar, s.victim.ips[i])
		reach(t, s.liar, s.far.ips[i])
	}
}

// noCapture checks that unicast and ARP of two pods reach only these two.
func noCapture(t *testing.T, s scene) {
	ear := tap(t, s.third, "eth0")
	for i := range s.victim.ips {
		for _, p := range []place{s.liar, s.victim} {
			p.exec(t, "ip neigh flush dev eth0")
		}
		reach(t, s.liar, s.victim.ips[i])
		reach(t, s.liar, s.far.ips[i])
		reach(t, s.liar, gatewayOf(s.family.PodCIDRs(1)[i]))
		reach(t, s.node, s.victim.ips[i])
		reach(t, s.far, s.victim.ips[i])
		stream(t, s.liar, s.victim, s.victim.ips[i], 1<<20)
	}
	last := udp(s.liar.ips[0], s.third.ips[0], "for third")
	tap(t, s.liar, "eth0").send(t, ethernet(s.third.mac, s.liar.mac, last))
	ear.expect(t, "the datagram that is for third", last.mark)
	ear.mu.Lock()
	defer ear.mu.Unlock()
	for _, f := range ear.in {
		if bytes.Contains(f, last.mark) {
			continue
		}
		for _, p := range []place{s.liar, s.victim, s.far} {
			for _, a := range p.ips {
				// Others may send to third, by neighbour discovery for one; not about each other.
				if bytes.Contains(f, a.AsSlice()) && !bytes.Contains(f, s.third.mac[:]) {
					t.Errorf("third hears of %s: %x", p.name, f)
				}
			}
		}
	}
}

// ttls checks that a router decrements the TTL and a switch does not (package openflow).
func ttls(t *testing.T, s scene) {
	for i := range s.liar.ips {
		for _, way := range []struct {
			from, to place
			dev      string
			addr     netip.Addr
			want     byte
		}{
			{s.liar, s.victim, "eth0", s.victim.ips[i], 64},
			{s.liar, s.far, "eth0", s.far.ips[i], 63},
			{s.far, s.victim, "eth0", s.victim.ips[i], 63},
			{s.liar, s.node, "fairlead-gw0", gatewayOf(s.family.PodCIDRs(1)[i]), 64},
			{s.liar, s.outside, "eth0", s.family.FarAddrs()[i].Addr(), 63},
		} {
			p := udp(way.from.ips[i], way.addr, fmt.Sprintf("TTL from %s to %s", way.from.name, way.addr))
			gateway := s.gateway
			if way.from.name == "far" {
				gateway = s.host(t, "node2").macOf(t, "fairlead-gw0")
			}
			ear := tap(t, way.to, way.dev)
			tap(t, way.from, "eth0").send(t, ethernet(gateway, way.from.mac, p))
			f := ear.expect(t, string(p.mark), p.mark)
			if got := ttlOf(f); got != way.want {
				t.Errorf("%s: TTL %d, want %d", p.mark, got, way.want)
			}
			if way.to.netns != "" && way.want == 63 {
				// Routed packets come from the gateway of the pod's own node.
				want := s.host(t, way.to.host.Name).macOf(t, "fairlead-gw0")
				if got := api.MAC(f[6:12]); got != want {
					t.Errorf("%s: comes from %s, want the gateway's %s", p.mark, got, want)
				}
			}
			for _, to := range []place{way.to} {
				if to.netns == "" {
					continue
				}
				if got := api.MAC(f[:6]); got != to.mac {
					t.Errorf("%s: comes to %s, want %s", p.mark, got, to.mac)
				}
			}
		}
	}
}
