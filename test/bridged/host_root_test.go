package bridged

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// hostFrames are kinds of host traffic that a switch might consume or drop: destination, then EtherType.
var hostFrames = map[string]string{
	"LLDP":                    "\x01\x80\xc2\x00\x00\x0e\x88\xcc",
	"LLDP, nearest customer":  "\x01\x80\xc2\x00\x00\x00\x88\xcc",
	"LACP":                    "\x01\x80\xc2\x00\x00\x02\x88\x09",
	"802.1X":                  "\x01\x80\xc2\x00\x00\x03\x88\x8e",
	"STP":                     "\x01\x80\xc2\x00\x00\x00\x00\x40",
	"CDP":                     "\x01\x00\x0c\xcc\xcc\xcc\x00\x40",
	"PTP":                     "\x01\x1b\x19\x00\x00\x00\x88\xf7",
	"IPv4 multicast":          "\x01\x00\x5e\x00\x00\xfb\x08\x00",
	"IPv6 multicast":          "\x33\x33\x00\x00\x00\xfb\x86\xdd",
	"broadcast, experimental": "\xff\xff\xff\xff\xff\xff\x88\xb5",
}

// hostTraffic checks that frames which are not pods' pass between the underlay and the host unchanged, tagged frames of
// foreign VLANs included, and that no pod receives them.
func (c cluster) hostTraffic(t *testing.T, pods []place) {
	node1 := c.host(t, "node1")
	wireEnd, hostEnd := tap(t, c.host(t, underlay.Switch), "node1"), tap(t, node1, c.Transport())
	mac := node1.mac(t, c.Transport())
	far := api.MAC{0x02, 0xee, 0, 0, 0, 1}
	var ears []*wire
	for _, p := range pods {
		if p.netns != "" && p.node == "node1" {
			ears = append(ears, tap(t, p, "eth0"))
		}
	}
	type sent struct {
		what     string
		mark     []byte
		to       *wire
		vlan     uint16
		complete []byte
	}
	var all []sent
	send := func(from, to *wire, src api.MAC, what, head string, vlan uint16) {
		mark := []byte(fmt.Sprintf("%s from %s in VLAN %d", what, from.name, vlan))
		data := append([]byte(head[:6]), src[:]...)
		data = append(append(data, head[6:]...), mark...)
		data = append(data, make([]byte, 60)...) // the minimum length of an Ethernet frame
		all = append(all, sent{what, mark, to, vlan, data})
		if vlan != 0 {
			data = tagged(vlan, data)
		}
		from.send(t, data)
	}
	for what, head := range hostFrames {
		send(hostEnd, wireEnd, mac, what, head, 0)
		send(wireEnd, hostEnd, far, what, head, 0)
	}
	for _, vlan := range []uint16{30, 4094} {
		send(hostEnd, wireEnd, mac, "unicast", string(far[:])+"\x88\xb5", vlan)
		send(wireEnd, hostEnd, far, "unicast", string(mac[:])+"\x88\xb5", vlan)
		send(wireEnd, hostEnd, far, "broadcast", "\xff\xff\xff\xff\xff\xff\x88\xb5", vlan)
	}
	for _, s := range all {
		wait(t, 10*time.Second, func() string {
			if len(s.to.find(holds(s.mark))) == 0 {
				return string(s.mark) + " has not come to " + s.to.name
			}
			return ""
		})
	}
	for _, s := range all {
		got := s.to.find(holds(s.mark))
		if len(got) != 1 || got[0].vlan != s.vlan || string(got[0].data) != string(s.complete) {
			t.Errorf("%s came to %s %d times, as %+v, want it once and unchanged", s.mark, s.to.name, len(got), got)
		}
		for _, ear := range ears {
			if f := ear.find(holds(s.mark)); len(f) > 0 {
				t.Errorf("%s came to %s", s.mark, ear.name)
			}
		}
	}
}
