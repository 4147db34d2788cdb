package tables

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// packetCase is a packet and its expected treatment. Packets are written as in ovs-fields(7).
type packetCase struct {
	name, packet string
	// out is the OpenFlow port by which it leaves; drop means none, and in is then the table that drops it. No flow
	// drops TTL exceptions.
	out, in int
	// with are parts of the leaving packet, such as "dl_dst=...".
	with []string
}

const (
	tunPort = flowtest.Tunnel
	gwPort  = flowtest.Gateway
	podA    = flowtest.PodA
	podB    = flowtest.PodB
	drop    = 0
	bounced = -1 // back to its input port
)

// routed is neighbour discovery with a hop limit that shows that it was routed.
func routed(nd string) string { return strings.Replace(nd, "nw_ttl=255", "nw_ttl=254", 1) }

// Senders, as far as Classify inspects them.
const (
	fromA    = "in_port=3,dl_src=0a:00:00:00:00:03,dl_dst=0e:00:00:00:00:01"
	fromGW   = "in_port=2,dl_src=0e:00:00:00:00:01,dl_dst=0e:66:6c:00:00:01"
	fromPeer = "in_port=1,tun_src=192.168.77.2,tun_dst=192.168.77.1,dl_src=0e:00:00:00:00:b1,dl_dst=0e:00:00:00:00:b2"
	a4       = ",ip,nw_src=10.10.0.3,nw_ttl=64"
	a6       = ",udp6,ipv6_src=fd00:10::3,nw_ttl=64"
	arpA     = ",arp,arp_sha=0a:00:00:00:00:03,arp_spa=10.10.0.3"
	macA     = "0a:00:00:00:00:03"
	macB     = "0a:00:00:00:00:04"
	macGW    = "0e:00:00:00:00:01"
	llA      = "fe80::800:ff:fe00:3"
	llB      = "fe80::800:ff:fe00:4"
	llGW     = "fe80::c00:ff:fe00:1"
	ns       = ",icmp6,nw_ttl=255,icmpv6_type=135,icmpv6_code=0"
	na       = ",icmp6,nw_ttl=255,icmpv6_type=136,icmpv6_code=0"
	sllA     = ",nd_sll=" + macA
	tllA     = ",nd_tll=" + macA
	toA      = "dl_dst=" + macA
	toB      = "dl_dst=" + macB
	toGW     = "dl_dst=" + macGW
)

func packetCases() []packetCase {
	return []packetCase{
		// Pods of one node: switched.
		{"pod to pod", fromA + a4 + ",nw_dst=10.10.0.4", podB, 3, []string{toB, "dl_src=" + macA, "nw_ttl=64"}},
		{"pod to pod v6", fromA + a6 + ",ipv6_dst=fd00:10::4",
			podB, 3, []string{toB, "dl_src=" + macA, "nw_ttl=64"}},
		{"pod to pod, TTL 1", fromA + ",ip,nw_src=10.10.0.3,nw_ttl=1,nw_dst=10.10.0.4",
			podB, 3, []string{"nw_ttl=1"}},
		{"pod to itself", fromA + a4 + ",nw_dst=10.10.0.3", drop, 3, nil},
		{"pod to unknown pod", fromA + a4 + ",nw_dst=10.10.0.77", drop, 3, nil},
		{"pod to unknown pod v6", fromA + a6 + ",ipv6_dst=fd00:10::77", drop, 3, nil},

		// To the host and through it.
		{"pod to gateway", fromA + a4 + ",nw_dst=10.10.0.1", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"pod to gateway v6", fromA + a6 + ",ipv6_dst=fd00:10::1", gwPort, 3, []string{toGW}},
		{"pod to outside", fromA + a4 + ",nw_dst=192.0.2.1", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"pod to outside v6", fromA + a6 + ",ipv6_dst=2001:db8::1", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"pod to outside, wrong MAC", strings.Replace(fromA, macGW, "0a:00:00:00:00:99", 1) + a4 + ",nw_dst=192.0.2.1",
			gwPort, 3, []string{toGW}},
		{"gateway to pod", fromGW + ",ip,nw_src=192.0.2.1,nw_ttl=9,nw_dst=10.10.0.3", podA, 3,
			[]string{toA, "dl_src=" + macGW, "nw_ttl=9"}},
		{"gateway to pod v6", fromGW + ",udp6,ipv6_src=2001:db8::1,nw_ttl=9,ipv6_dst=fd00:10::3", podA, 3,
			[]string{toA, "dl_src=" + macGW, "nw_ttl=9"}},
		{"gateway to unknown pod", fromGW + ",ip,nw_src=192.0.2.1,nw_ttl=9,nw_dst=10.10.0.99", drop, 3, nil},
		{"gateway to outside", fromGW + ",ip,nw_src=192.0.2.1,nw_ttl=9,nw_dst=192.0.2.9", drop, 3, nil},

		// Through the tunnel.
		{"pod to peer", fromA + a4 + ",nw_dst=10.10.1.9", tunPort, 3,
			[]string{"nw_ttl=63", "dl_src=" + macGW, "tun_dst=192.168.77.2"}},
		{"pod to other peer", fromA + a4 + ",nw_dst=10.10.2.9", tunPort, 3, []string{"tun_dst=192.168.77.3"}},
		{"pod to peer v6", fromA + a6 + ",ipv6_dst=fd00:10:0:1::9", tunPort, 3,
			[]string{"nw_ttl=63", "dl_src=" + macGW, "tun_dst=192.168.77.2"}},
		{"pod to peer, TTL 2", fromA + ",ip,nw_src=10.10.0.3,nw_ttl=2,nw_dst=10.10.1.9",
			tunPort, 3, []string{"nw_ttl=1"}},
		{"pod to peer, TTL 1", fromA + ",ip,nw_src=10.10.0.3,nw_ttl=1,nw_dst=10.10.1.9", drop, 3, nil},
		{"pod to peer, hop limit 1", fromA + ",udp6,ipv6_src=fd00:10::3,nw_ttl=1,ipv6_dst=fd00:10:0:1::9",
			drop, 3, nil},
		{"gateway to peer", fromGW + ",ip,nw_src=10.10.0.1,nw_ttl=64,nw_dst=10.10.1.9", tunPort, 3,
			[]string{"nw_ttl=64", "tun_dst=192.168.77.2"}},
		{"gateway to peer v6", fromGW + ",udp6,ipv6_src=fd00:10::1,nw_ttl=64,ipv6_dst=fd00:10:0:1::9", tunPort, 3,
			[]string{"nw_ttl=64", "tun_dst=192.168.77.2"}},
		{"peer to pod", fromPeer + ",ip,nw_src=10.10.1.9,nw_ttl=63,nw_dst=10.10.0.3", podA, 3,
			[]string{toA, "dl_src=" + macGW, "nw_ttl=63"}},
		{"peer to pod v6", fromPeer + ",udp6,ipv6_src=fd00:10:0:1::9,nw_ttl=63,ipv6_dst=fd00:10::3", podA, 3,
			[]string{toA, "dl_src=" + macGW, "nw_ttl=63"}},
		{"peer to gateway", fromPeer + ",ip,nw_src=10.10.1.9,nw_ttl=63,nw_dst=10.10.0.1",
			gwPort, 3, []string{toGW}},
		{"peer to outside", fromPeer + ",ip,nw_src=10.10.1.9,nw_ttl=63,nw_dst=192.0.2.1", drop, 3, nil},
		{"peer to other peer", fromPeer + ",ip,nw_src=10.10.1.9,nw_ttl=63,nw_dst=10.10.2.9", drop, 3, nil},
		{"peer to unknown pod", fromPeer + ",ip,nw_src=10.10.1.9,nw_ttl=63,nw_dst=10.10.0.77", drop, 3, nil},
		{"peer speaks for another", fromPeer + ",ip,nw_src=10.10.2.9,nw_ttl=63,nw_dst=10.10.0.3", drop, 0, nil},
		{"peer speaks for another v6", fromPeer + ",udp6,ipv6_src=fd00:10:0:2::9,nw_ttl=63,ipv6_dst=fd00:10::3",
			drop, 0, nil},
		{"peer speaks for our pod", fromPeer + ",ip,nw_src=10.10.0.4,nw_ttl=63,nw_dst=10.10.0.3", drop, 0, nil},
		{"stranger in the tunnel", strings.Replace(fromPeer, "192.168.77.2", "192.168.77.99", 1) +
			",ip,nw_src=10.10.1.9,nw_ttl=63,nw_dst=10.10.0.3", drop, 0, nil},
		{"ARP from the tunnel", fromPeer + ",arp,arp_op=1,arp_spa=10.10.1.9,arp_tpa=10.10.0.3", drop, 0, nil},
		{"ND from the tunnel",
			fromPeer + na + ",ipv6_src=fd00:10:0:1::9,ipv6_dst=fd00:10::3,nd_target=fd00:10:0:1::9",
			drop, 0, nil},

		// Spoofed and invalid packets of pods.
		{"spoofed IP", fromA + ",ip,nw_src=10.10.0.4,nw_dst=10.10.0.1", drop, 0, nil},
		{"spoofed IPv6", fromA + ",udp6,ipv6_src=fd00:10::4,ipv6_dst=fd00:10::1", drop, 0, nil},
		{"spoofed MAC", strings.Replace(fromA, macA, macB, 1) + a4 + ",nw_dst=10.10.0.4", drop, 0, nil},
		{"spoofed MAC v6", strings.Replace(fromA, macA, macB, 1) + a6 + ",ipv6_dst=fd00:10::4", drop, 0, nil},
		{"MAC and IP of another pod", "in_port=3,dl_src=" + macB + ",ip,nw_src=10.10.0.4,nw_dst=10.10.0.1",
			drop, 0, nil},
		{"no port of ours", "in_port=LOCAL,dl_src=" + macA + a4 + ",nw_dst=10.10.0.4", drop, 0, nil},
		{"DHCP", fromA + ",udp,nw_src=0.0.0.0,nw_dst=255.255.255.255,udp_dst=67", drop, 0, nil},
		{"VLAN tag", fromA + ",dl_vlan=7" + a4 + ",nw_dst=10.10.0.4", drop, 0, nil},
		{"other ethertype", fromA + ",dl_type=0x88cc", drop, 0, nil},
		{"multicast", fromA + a4 + ",nw_dst=239.1.1.1", drop, 3, nil},
		{"broadcast", fromA + a4 + ",nw_dst=255.255.255.255", drop, 3, nil},
		{"multicast v6", fromA + a6 + ",ipv6_dst=ff02::fb", drop, 3, nil},
		{"link-local destination", fromA + a6 + ",ipv6_dst=" + llB, drop, 3, nil},
		{"link-local source", fromA + ",udp6,ipv6_src=" + llA + ",ipv6_dst=fd00:10::1", drop, 0, nil},
		{"host's multicast", fromGW + ",ip,nw_src=10.10.0.1,nw_dst=224.0.0.251", drop, 3, nil},

		// ARP.
		{"ARP for pod", fromA + arpA + ",arp_op=1,arp_tpa=10.10.0.4", podB, 1, []string{toB}},
		{"ARP for gateway", fromA + arpA + ",arp_op=1,arp_tpa=10.10.0.1", gwPort, 1, []string{toGW}},
		{"ARP for unknown", fromA + arpA + ",arp_op=1,arp_tpa=10.10.0.77", drop, 1, nil},
		{"ARP for outside", fromA + arpA + ",arp_op=1,arp_tpa=192.0.2.1", drop, 1, nil},
		{"gratuitous ARP", fromA + arpA + ",arp_op=1,arp_tpa=10.10.0.3", drop, 1, nil},
		{"ARP reply to pod", fromA + arpA + ",arp_op=2,arp_tpa=10.10.0.4", podB, 1, []string{toB}},
		{"ARP reply to gateway", fromA + arpA + ",arp_op=2,arp_tpa=10.10.0.1", gwPort, 1, []string{toGW}},
		{"ARP reply to host under its node IP", fromA + arpA + ",arp_op=2,arp_tpa=192.168.77.1",
			gwPort, 1, []string{toGW}},
		{"ARP from gateway", fromGW + ",arp,arp_op=1,arp_spa=192.168.77.1,arp_tpa=10.10.0.3",
			podA, 1, []string{toA}},
		{"ARP lies about IP", fromA + ",arp,arp_op=2,arp_sha=" + macA + ",arp_spa=10.10.0.1,arp_tpa=10.10.0.4",
			drop, 0, nil},
		{"ARP lies about MAC", fromA + ",arp,arp_op=2,arp_sha=" + macB + ",arp_spa=10.10.0.3,arp_tpa=10.10.0.4",
			drop, 0, nil},
		{"ARP from a spoofed MAC", strings.Replace(fromA, macA, macB, 1) + arpA + ",arp_op=1,arp_tpa=10.10.0.4",
			drop, 0, nil},
		{"ARP probe", fromA + ",arp,arp_op=1,arp_sha=" + macA + ",arp_spa=0.0.0.0,arp_tpa=10.10.0.3",
			drop, 0, nil},

		// Neighbour solicitations.
		{"NS for pod", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=ff02::1:ff00:4,nd_target=fd00:10::4" + sllA,
			podB, 1, []string{toB}},
		{"NS from link-local",
			fromA + ns + ",ipv6_src=" + llA + ",ipv6_dst=ff02::1:ff00:4,nd_target=fd00:10::4" + sllA,
			podB, 1, []string{toB}},
		{"NS for link-local", fromA + ns + ",ipv6_src=" + llA + ",ipv6_dst=ff02::1:ff00:4,nd_target=" + llB + sllA,
			podB, 1, []string{toB}},
		{"NS for gateway", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=ff02::1:ff00:1,nd_target=fd00:10::1" + sllA,
			gwPort, 1, []string{toGW}},
		{"NS for gateway's link-local",
			fromA + ns + ",ipv6_src=" + llA + ",ipv6_dst=ff02::1:ff00:1,nd_target=" + llGW + sllA,
			gwPort, 1, []string{toGW}},
		{"unicast NS without option", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::4",
			podB, 1, []string{toB}},
		{"NS for unknown", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=ff02::1:ff00:77,nd_target=fd00:10::77" + sllA,
			drop, 1, nil},
		{"NS lies about MAC",
			fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=ff02::1:ff00:4,nd_target=fd00:10::4,nd_sll=" + macB,
			drop, 0, nil},
		{"NS lies about source",
			fromA + ns + ",ipv6_src=fd00:10::1,ipv6_dst=ff02::1:ff00:4,nd_target=fd00:10::4" + sllA,
			drop, 0, nil},
		{"NS lies about link-local",
			fromA + ns + ",ipv6_src=" + llB + ",ipv6_dst=ff02::1:ff00:1,nd_target=" + llGW + sllA,
			drop, 0, nil},
		{"NS with an invalid code",
			fromA + ",icmp6,icmpv6_type=135,icmpv6_code=1,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4",
			drop, 0, nil},
		{"duplicate address detection", fromA + ns + ",ipv6_src=::,ipv6_dst=ff02::1:ff00:3,nd_target=fd00:10::3",
			drop, 0, nil},
		{"NS from gateway",
			fromGW + ns + ",ipv6_src=" + llGW + ",ipv6_dst=ff02::1:ff00:3,nd_target=fd00:10::3,nd_sll=" + macGW,
			podA, 1, []string{toA}},

		// Neighbour advertisements.
		{"NA to pod", fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::3" + tllA,
			podB, 1, []string{toB}},
		{"NA to link-local", fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=" + llB + ",nd_target=fd00:10::3" + tllA,
			podB, 1, []string{toB}},
		{"NA to gateway", fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::1,nd_target=fd00:10::3" + tllA,
			gwPort, 1, []string{toGW}},
		{"NA to host's other link-local",
			fromA + na + ",ipv6_src=" + llA + ",ipv6_dst=fe80::1234,nd_target=" + llA + tllA,
			gwPort, 1, []string{toGW}},
		{"NA without option", fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::3",
			podB, 1, []string{toB}},
		{"NA to all nodes", fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=ff02::1,nd_target=fd00:10::3" + tllA,
			drop, 1, nil},
		{"NA lies about target", fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::1" + tllA,
			drop, 0, nil},
		{"NA lies about link-local target",
			fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=" + llGW + tllA,
			drop, 0, nil},
		{"NA lies about MAC",
			fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::3,nd_tll=" + macB,
			drop, 0, nil},
		{"NA from gateway",
			fromGW + na + ",ipv6_src=fd00:10::1,ipv6_dst=fd00:10::3,nd_target=fd00:10::1,nd_tll=" + macGW,
			podA, 1, []string{toA}},

		// Forwarded by a router in between.
		{"NS to pod from afar", fromGW + routed(ns) + ",ipv6_src=2001:db8::9,ipv6_dst=fd00:10::3,nd_target=fd00:10::3", drop, 1, nil},
		{"NA to pod from afar", fromGW + routed(na) + ",ipv6_src=2001:db8::9,ipv6_dst=fd00:10::3,nd_target=2001:db8::9", drop, 1, nil},
		{"NA to pod with a hop limit that is not ND's", fromA + routed(na) + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::3" + tllA,
			drop, 1, nil},

		// The host would route it.
		{"NS to afar about the gateway", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=2001:db8::9,nd_target=fd00:10::1" + sllA, drop, 1, nil},
		{"NS to afar about the gateway's link-local", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=2001:db8::9,nd_target=" + llGW, drop, 1, nil},
		{"NS to the gateway", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::1,nd_target=fd00:10::1", gwPort, 1, []string{toGW}},
		{"NS to the gateway's link-local", fromA + ns + ",ipv6_src=" + llA + ",ipv6_dst=" + llGW + ",nd_target=" + llGW, gwPort, 1, []string{toGW}},

		{"NS with invalid options", fromA + ns + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=::", drop, 0, nil},
		{"NA with invalid options", fromA + na + ",ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=::", drop, 0, nil},
		{"what it is in a later piece", fromA + ",ipv6,nw_proto=0,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4", drop, 0, nil},
		{"what it is in a later piece, as the kernel says it", fromA + ",ipv6,nw_proto=59,nw_frag=first,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4", drop, 0, nil},
		{"NS in pieces", fromA + ns + ",nw_frag=first,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::4" + sllA, drop, 0, nil},
		{"NA in pieces", fromA + na + ",nw_frag=first,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4,nd_target=fd00:10::3" + tllA, drop, 0, nil},
		{"the message in a later piece", fromA + ",icmp6,nw_frag=first,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4", drop, 0, nil},
		{"a large ping", fromA + ",icmp6,nw_frag=first,icmpv6_type=128,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4", podB, 3, []string{toB}},
		{"a priority tag", strings.Replace(fromA, "dl_src", "vlan_tci=0xb000,dl_src", 1) + a4 + ",nw_dst=10.10.0.4", podB, 3,
			[]string{toB, "vlan_tci=0x0000"}},

		// The rest of neighbour discovery.
		{"router solicitation", fromA + ",icmp6,icmpv6_type=133,ipv6_src=" + llA + ",ipv6_dst=ff02::2",
			drop, 0, nil},
		{"router advertisement", fromA + ",icmp6,icmpv6_type=134,ipv6_src=" + llA + ",ipv6_dst=ff02::1",
			drop, 0, nil},
		{"router advertisement, own source", fromA + ",icmp6,icmpv6_type=134,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4",
			drop, 0, nil},
		{"redirect", fromA + ",icmp6,icmpv6_type=137,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4", drop, 0, nil},
		{"router advertisement from gateway",
			fromGW + ",icmp6,icmpv6_type=134,ipv6_src=" + llGW + ",ipv6_dst=ff02::1",
			drop, 0, nil},
		{"ping6 is not ND", fromA + ",icmp6,icmpv6_type=128,ipv6_src=fd00:10::3,ipv6_dst=fd00:10::4",
			podB, 3, []string{toB}},
	}
}

// TestPackets traces packets through a real Open vSwitch.
func TestPackets(t *testing.T) {
	o := flowtest.Node(t)
	_, view := readGolden(t, "testdata/dual-stack.txtar")
	s := flowtest.Dial(t, o, openflow.Dial)
	if _, err := s.Sync(t.Context(), Pipeline(view)); err != nil {
		t.Fatal(err)
	}
	checkPackets(t, o, view, packetCases())
}

// checkPackets traces each case. Every flow that drops must have one.
func checkPackets(t *testing.T, o *ovstest.OVS, view View, cases []packetCase) {
	dropsSeen := map[string]bool{}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if lastMatch := checkPacket(t, o, c); c.out == drop {
				dropsSeen[lastMatch] = true
			}
		})
	}
	for _, f := range Pipeline(view) {
		if f.Table == openflow.TableOutput { // its drop is reached only without an uplink
			continue
		}
		if len(f.Actions) == 0 && !dropsSeen[fmt.Sprintf("%d. %s", f.Table, traceMatch(f))] {
			t.Errorf("no packet case for the drop of %s", f)
		}
	}
}

// checkPacket traces one case and returns the last flow that it matched.
func checkPacket(t *testing.T, o *ovstest.OVS, c packetCase) string {
	t.Helper()
	report := o.Trace("br-int", c.packet)
	got := readTrace(t, report)
	if got.out != c.out || (c.out == drop && got.tables[len(got.tables)-1] != c.in) {
		t.Errorf("%s: %s\nleft by port %d after tables %v, want port %d, table %d\n%s",
			c.name, c.packet, got.out, got.tables, c.out, c.in, report)
	}
	for _, w := range c.with {
		if !strings.Contains(got.final+",", ","+w+",") {
			t.Errorf("%s: %s\nleft without %s\n%s", c.name, c.packet, w, report)
		}
	}
	if len(got.tables) > 4 || strings.Contains(report, "recirc(") {
		t.Errorf("%s: %d tables, want at most 4 and no recirculation\n%s", c.name, len(got.tables), report)
	}
	return got.lastMatch
}

// traced is the result of a trace.
type traced struct {
	tables    []int
	out       int    // OpenFlow port, 0 if none
	final     string // the packet as it leaves
	lastMatch string // the last flow: "TABLE. MATCH, priority N"
}

var (
	traceTable = regexp.MustCompile(`^ ?(\d+)\. (.*)$`)
	traceOut   = regexp.MustCompile(`^ +output:(\d+)$`)
)

// readTrace reads the report of ofproto/trace for br-int; the underlay's bridge, which may follow, is ignored.
func readTrace(t *testing.T, report string) traced {
	t.Helper()
	var r traced
	first, inBridge, actions := "", false, ""
	for line := range strings.Lines(report) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "Flow: "):
			first = line[len("Flow: "):]
		case strings.HasPrefix(line, "Final flow: "):
			r.final = line[len("Final flow: "):]
		case strings.HasPrefix(line, "Datapath actions: "):
			actions = line[len("Datapath actions: "):]
		case strings.HasPrefix(line, "bridge("):
			inBridge = line == `bridge("br-int")`
		case strings.Contains(line, "skipping output to input port"):
			r.out = 0
		case inBridge:
			r.step(line)
		}
	}
	if r.final == "unchanged" {
		r.final = first
	}
	expired := strings.HasPrefix(actions, "userspace(") && strings.Contains(report, "TTL exception")
	dropped := actions == "drop" || expired
	if len(r.tables) == 0 || dropped != (r.out == 0) {
		t.Fatalf("cannot read this trace:\n%s", report)
	}
	return r
}

// step reads a line about a table of the bridge, or an output.
func (r *traced) step(line string) {
	if m := traceTable.FindStringSubmatch(line); m != nil {
		n, _ := strconv.Atoi(m[1])
		r.tables = append(r.tables, n)
		r.lastMatch = m[1] + ". " + m[2]
	} else if m := traceOut.FindStringSubmatch(line); m != nil {
		r.out, _ = strconv.Atoi(m[1])
	} else if strings.TrimSpace(line) == "IN_PORT" {
		r.out = bounced
	}
}

// traceMatch is the flow as ofproto/trace prints it.
func traceMatch(f Flow) string {
	match := f.Match.String()
	if match != "" {
		match += ", "
	}
	return fmt.Sprintf("%spriority %d, cookie %#x", match, f.Priority, f.Cookie())
}

// A megaflow matches only what a decision needs: one covers all connections of a pair, and for distant destinations all
// addresses behind one route.
func TestMegaflowsAreWide(t *testing.T) {
	o := flowtest.Node(t)
	trackPrefixes(o)
	_, view := readGolden(t, "testdata/dual-stack.txtar")
	if _, err := flowtest.Dial(t, o, openflow.Dial).Sync(t.Context(), Pipeline(view)); err != nil {
		t.Fatal(err)
	}
	const tcp6A = fromA + ",tcp6,ipv6_src=fd00:10::3,nw_ttl=64,tcp_src=40000,tcp_dst=80,ipv6_dst="
	const tcpA = fromA + ",tcp,nw_src=10.10.0.3,nw_ttl=64,tcp_src=40000,tcp_dst=80,nw_dst="
	for _, c := range []megaflowCase{
		{"pod to pod", tcpA + "10.10.0.4", "nw_dst=10.10.0.4,", "nw_ttl="},
		{"pod to peer", tcpA + "10.10.1.9", "nw_dst=10.10.1.0/24,", "dl_dst="},
		{"pod to outside", tcpA + "192.0.2.1", "nw_dst=192.0.0.0/", "nw_ttl="},
		{"gateway to pod", fromGW + ",tcp,nw_src=192.0.2.1,tcp_src=40000,tcp_dst=80,nw_dst=10.10.0.3",
			"nw_dst=10.10.0.3,", "nw_src="},
		{"gateway to peer", fromGW + ",tcp,nw_src=192.0.2.1,tcp_src=40000,tcp_dst=80,nw_dst=10.10.1.9",
			"nw_dst=10.10.1.0/24,", "nw_src="},
		{"peer to pod", fromPeer + ",tcp,nw_src=10.10.1.9,tcp_src=40000,tcp_dst=80,nw_dst=10.10.0.3",
			"nw_src=10.10.1.0/24,", "nw_ttl="},
		{"pod to peer, IPv6", tcp6A + "fd00:10:0:1::9", "ipv6_dst=fd00:10:0:1::/64,", "dl_dst="},
		{"pod to outside, IPv6", tcp6A + "2001:db8::1", "ipv6_dst=::/", "nw_ttl="},
	} {
		checkMegaflow(t, o, c)
	}
}

// megaflowCase is a packet with what its megaflow must contain, and must not.
type megaflowCase struct{ name, packet, has, hasNot string }

func checkMegaflow(t *testing.T, o *ovstest.OVS, c megaflowCase) {
	t.Helper()
	report := o.Trace("br-int", c.packet)
	_, rest, _ := strings.Cut(report, "\nMegaflow: ")
	megaflow, _, _ := strings.Cut(rest, "\n")
	if !strings.Contains(megaflow+",", c.has) {
		t.Errorf("%s: megaflow %s has no %s", c.name, megaflow, c.has)
	}
	for _, never := range []string{c.hasNot, "tp_", "tcp_", "nw_tos"} {
		if megaflow == "" || strings.Contains(megaflow, ","+never) {
			t.Errorf("%s: megaflow %s has %s", c.name, megaflow, never)
		}
	}
}

// trackPrefixes creates the rows that package ovsdb creates on a node.
func trackPrefixes(o *ovstest.OVS) {
	for table, fields := range Prefixes() {
		o.Ctl("--id=@t", "create", "Flow_Table", "prefixes="+strings.Join(fields, ","), "--",
			"set", "Bridge", "br-int", fmt.Sprintf("flow_tables:%d=@t", table))
	}
}

// Packets to a direct peer are left to the host, and packets from it are also accepted from the tunnel: it may not have
// switched yet.
func TestHybridPackets(t *testing.T) {
	o := flowtest.Node(t)
	_, view := readGolden(t, "testdata/hybrid.txtar")
	if _, err := flowtest.Dial(t, o, openflow.Dial).Sync(t.Context(), Pipeline(view)); err != nil {
		t.Fatal(err)
	}
	const fromC = "in_port=1,tun_src=192.168.78.3,tun_dst=192.168.77.1,dl_src=0e:00:00:00:00:c1,dl_dst=0e:00:00:00:00:b2"
	for _, c := range []packetCase{
		{"to a direct peer", fromA + a4 + ",nw_dst=10.10.1.9", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"to a direct peer v6", fromA + a6 + ",ipv6_dst=fd00:10:0:1::9", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"to one of the two families", fromA + a4 + ",nw_dst=10.10.2.9", tunPort, 3, []string{"nw_ttl=63"}},
		{"to the other", fromA + a6 + ",ipv6_dst=fd00:10:0:2::9", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"from a direct peer", fromGW + ",ip,nw_src=10.10.1.9,nw_ttl=9,nw_dst=10.10.0.3", podA, 3, []string{toA, "nw_ttl=9"}},
		{"the host to a direct peer", fromGW + ",ip,nw_src=10.10.0.1,nw_ttl=9,nw_dst=10.10.1.9", drop, 3, nil},
		{"tunnelled by a direct peer", fromPeer + ",ip,nw_src=10.10.1.9,nw_ttl=9,nw_dst=10.10.0.3", podA, 3, []string{toA}},
		{"tunnelled by a peer about a direct one", fromC + ",ip,nw_src=10.10.1.9,nw_ttl=9,nw_dst=10.10.0.3", drop, 0, nil},
		{"tunnelled by a stranger", strings.Replace(fromPeer, "77.2", "77.9", 1) + ",ip,nw_src=10.10.1.9,nw_ttl=9,nw_dst=10.10.0.3",
			drop, 0, nil},
	} {
		checkPacket(t, o, c)
	}
}
