package bridged

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

var (
	broadcast = api.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	// asker is the MAC of a host on the underlay that only sends requests.
	asker = api.MAC{0x02, 0xee, 0, 0, 0, 2}
)

// asks is an ARP request or a neighbour solicitation of a host on the underlay.
func asks(from, target netip.Addr) []byte {
	if target.Is4() {
		return arpFrame(1, asker, broadcast, from, target)
	}
	body := append(make([]byte, 4), target.AsSlice()...)
	body = append(append(body, 1, 1), asker[:]...)
	t := target.As16()
	group := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]})
	g := group.As16()
	dst := api.MAC{0x33, 0x33, g[12], g[13], g[14], g[15]}
	return icmp6(dst, asker, from, group, 135, body)
}

// arpFrame is an ARP request (1) or reply (2).
func arpFrame(op byte, src, dst api.MAC, spa, tpa netip.Addr) []byte {
	b := append(append(dst[:], src[:]...), 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, op)
	b = append(append(b, src[:]...), spa.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), tpa.AsSlice()...)
	return append(b, make([]byte, 18)...)
}

func icmp6(dst, src api.MAC, from, to netip.Addr, typ byte, body []byte) []byte {
	payload := append([]byte{typ, 0, 0, 0}, body...)
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 58, 0, byte(len(payload)))
	binary.BigEndian.PutUint16(payload[2:], checksum(append(pseudo, payload...)))
	b := append(append(dst[:], src[:]...), 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(payload)), 58, 255)
	b = append(append(append(b, from.AsSlice()...), to.AsSlice()...), payload...)
	return b
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// says reports whether a frame announces the MAC of target: an ARP message of the target, or a neighbour advertisement.
func says(target netip.Addr) func(frame) bool {
	return func(f frame) bool {
		if target.Is4() {
			return len(f.data) >= 42 && f.data[12] == 0x08 && f.data[13] == 0x06 && bytes.Equal(f.data[28:32], target.AsSlice())
		}
		return len(f.data) >= 78 && f.data[12] == 0x86 && f.data[20] == 58 && f.data[54] == 136 &&
			bytes.Equal(f.data[62:78], target.AsSlice())
	}
}

// answers is says for frames that are sent to the asker only.
func answers(target netip.Addr) func(frame) bool {
	return func(f frame) bool { return says(target)(f) && api.MAC(f.data[:6]) == asker }
}

// saidMAC is the MAC that such a frame announces.
func saidMAC(f frame) api.MAC {
	if f.data[12] == 0x08 {
		return api.MAC(f.data[22:28])
	}
	return api.MAC(f.data[80:86])
}

// neighbours checks that a request on the underlay for a pod's address in its VLAN has one answer, the pod's, and that
// only the pod receives the request. In another VLAN, and for unused addresses, there is no answer.
func (c cluster) neighbours(t *testing.T, places []place) {
	ears := map[string]*wire{}
	var pods []place
	for _, p := range places {
		if p.netns != "" {
			ears[p.name] = tap(t, p, "eth0")
			if p.kind != routed {
				pods = append(pods, p)
			}
		}
	}
	wires := map[string]*wire{}
	for _, node := range c.Nodes() {
		wires[node] = tap(t, c.host(t, underlay.Switch), node)
	}
	for n, p := range pods {
		vlan, err := strconv.ParseUint(p.kind, 10, 16)
		must(t, err)
		for i, gw := range underlay.Dual.VLANGatewayAddrs(uint16(vlan)) {
			from := plus(gw.Addr(), 40+n) // distinguishes the requests
			target := p.ips[i]
			c.oneAnswer(t, wires[p.node], p, uint16(vlan), asks(from, target), target)
			for name, ear := range ears {
				if heard := ear.find(holds(from.AsSlice())); name != p.name && len(heard) > 0 {
					t.Errorf("%s hears who asks for %s: %x", name, target, heard[0].data)
				}
			}
			for _, other := range []uint16{0, 10, 20, 30} {
				if other != uint16(vlan) {
					noAnswer(t, wires[p.node], other, asks(plus(gw.Addr(), 30), target), target)
				}
			}
			noAnswer(t, wires[p.node], uint16(vlan), asks(plus(gw.Addr(), 30), plus(gw.Addr(), 250)), plus(gw.Addr(), 250))
		}
	}
}

func plus(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

func (c cluster) oneAnswer(t *testing.T, w *wire, p place, vlan uint16, question []byte, target netip.Addr) {
	t.Helper()
	before := len(w.find(answers(target)))
	if vlan != 0 {
		question = tagged(vlan, question)
	}
	w.send(t, question)
	wait(t, 5*time.Second, func() string {
		if len(w.find(answers(target))) == before {
			return fmt.Sprintf("no answer for %s (%s) in VLAN %d", target, p.name, vlan)
		}
		return ""
	})
	time.Sleep(20 * time.Millisecond) // a second answer would be in flight
	got := w.find(answers(target))[before:]
	if len(got) != 1 || got[0].vlan != vlan || saidMAC(got[0]) != p.mac(t, "eth0") {
		t.Errorf("%s in VLAN %d was answered %d times: %+v, want once by %s", target, vlan, len(got), got, p.name)
	}
}

func noAnswer(t *testing.T, w *wire, vlan uint16, question []byte, target netip.Addr) {
	t.Helper()
	before := len(w.find(answers(target)))
	if vlan != 0 {
		question = tagged(vlan, question)
	}
	w.send(t, question)
	time.Sleep(30 * time.Millisecond) // several times the latency of an answer
	if got := w.find(answers(target)); len(got) > before {
		t.Errorf("an answer for %s in VLAN %d: %+v", target, vlan, got[before:])
	}
}

// announced checks that a new pod announces the MAC of its addresses in its segment, and in no other.
func (c cluster) announced(t *testing.T) {
	routerEars := map[string]*wire{}
	for _, vlan := range underlay.VLANs() {
		routerEars[fmt.Sprint(vlan)] = tap(t, c.host(t, underlay.Router), fmt.Sprint("eth", vlan))
	}
	for _, p := range c.addPods(t, "new", []string{"0", "10", "20"}, "node1", "node2") {
		mac := p.mac(t, "eth0")
		for _, a := range p.ips {
			wait(t, 5*time.Second, func() string {
				if len(routerEars[p.kind].find(says(a))) == 0 {
					return fmt.Sprintf("%s has not announced %s", p.name, a)
				}
				return ""
			})
			for vlan, ear := range routerEars {
				for _, f := range ear.find(says(a)) {
					if vlan != p.kind || saidMAC(f) != mac {
						t.Errorf("%s in VLAN %s: %s is said to be at %s, want %s in VLAN %s only", ear.name, vlan, a, saidMAC(f),
							mac, p.kind)
					}
				}
			}
		}
	}
}
