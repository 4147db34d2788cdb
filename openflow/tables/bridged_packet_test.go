package tables

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// Ports of testdata/bridged-encap.txtar: U and W are untagged, V and X in VLAN 10, Y in VLAN 20 with IPv6 only. W and X
// are in subnets of their own.
const (
	upPort = flowtest.Uplink
	podU   = flowtest.PodU
	podW   = flowtest.PodW
	podV   = flowtest.PodV
	podX   = flowtest.PodX
	podY   = flowtest.PodY
)

const (
	macU, macW, macV = "0a:00:00:00:00:10", "0a:00:00:00:00:11", "0a:00:00:00:00:12"
	macX, macY       = "0a:00:00:00:00:13", "0a:00:00:00:00:14"
	macR             = "0c:00:00:00:00:01" // of the underlay's router
	fromU            = "in_port=10,dl_src=" + macU + ",dl_dst=" + macR
	fromV            = "in_port=12,dl_src=" + macV + ",dl_dst=" + macR
	fromY            = "in_port=14,dl_src=" + macY + ",dl_dst=" + macR
	u4               = ",ip,nw_src=192.168.77.110,nw_ttl=64"
	u6               = ",udp6,ipv6_src=fd77::110,nw_ttl=64"
	v4               = ",ip,nw_src=192.168.110.112,nw_ttl=64"
	v6               = ",udp6,ipv6_src=fd77:0:0:a10::112,nw_ttl=64"
	y6               = ",udp6,ipv6_src=fd77:0:0:a20::114,nw_ttl=64"
	llU, llV, llX    = "fe80::800:ff:fe00:10", "fe80::800:ff:fe00:12", "fe80::800:ff:fe00:13"
	arpU             = ",arp,arp_sha=" + macU + ",arp_spa=192.168.77.110"
	arpV             = ",arp,arp_sha=" + macV + ",arp_spa=192.168.110.112"
	toU              = "dl_dst=" + macU
	toV              = "dl_dst=" + macV
	toX              = "dl_dst=" + macX
	toR              = "dl_dst=" + macR
	untagged         = "vlan_tci=0x0000"
)

// wire is a frame from the router that arrives by the uplink.
func wire(dst, rest string) string { return "in_port=5,dl_src=" + macR + ",dl_dst=" + dst + rest }

func bridgedCases() []packetCase {
	const broadcast = "ff:ff:ff:ff:ff:ff"
	return []packetCase{
		// In one segment, also between subnets: switched, past the router.
		{"untagged to untagged", fromU + u4 + ",nw_dst=192.168.79.111", podW, 3, []string{"dl_dst=" + macW, "nw_ttl=64", untagged}},
		{"VLAN 10 to VLAN 10", fromV + v4 + ",nw_dst=192.168.111.113", podX, 3, []string{toX, "dl_src=" + macV, "nw_ttl=64", untagged}},
		{"VLAN 10 to VLAN 10 v6", fromV + v6 + ",ipv6_dst=fd77:0:0:b10::113", podX, 3, []string{toX, "nw_ttl=64"}},
		{"TTL 1", fromV + ",ip,nw_src=192.168.110.112,nw_ttl=1,nw_dst=192.168.111.113", podX, 3, []string{"nw_ttl=1"}},
		{"to itself", fromV + v4 + ",nw_dst=192.168.110.112", drop, 3, nil},
		{"link-local in a VLAN", fromV + ",udp6,ipv6_src=" + llV + ",ipv6_dst=" + llX, podX, 3, []string{toX}},

		// To another segment: out with the tag, in with the other one.
		{"VLAN 10 to untagged", fromV + v4 + ",nw_dst=192.168.77.110", upPort, 4, []string{"dl_vlan=10", toR, "nw_ttl=64"}},
		{"VLAN 10 to VLAN 20", fromV + v6 + ",ipv6_dst=fd77:0:0:a20::114", upPort, 4, []string{"dl_vlan=10", "dl_src=" + macV}},
		{"untagged to VLAN 10", fromU + u4 + ",nw_dst=192.168.110.112", upPort, 4, []string{untagged, toR, "dl_src=" + macU}},
		{"back in VLAN 20", wire(macY, ",dl_vlan=20,udp6,ipv6_src=fd77:0:0:a10::112,ipv6_dst=fd77:0:0:a20::114,nw_ttl=63"),
			podY, 3, []string{untagged, "dl_dst=" + macY, "dl_src=" + macR, "nw_ttl=63"}},
		{"outside", fromV + v4 + ",nw_dst=203.0.113.9", upPort, 4, []string{"dl_vlan=10", toR}},
		{"outside v6", fromY + y6 + ",ipv6_dst=2001:db8::9", upPort, 4, []string{"dl_vlan=20", toR}},
		{"another node", fromU + u4 + ",nw_dst=192.168.77.2", upPort, 4, []string{untagged, toR}},
		{"multicast", fromV + v4 + ",nw_dst=239.1.1.1", upPort, 4, []string{"dl_vlan=10"}},
		{"IGMP", fromU + ",ip,nw_src=192.168.77.110,nw_proto=2,nw_ttl=1,nw_dst=224.0.0.22", upPort, 4, []string{"nw_ttl=1"}},
		{"broadcast", strings.Replace(fromV, macR, broadcast, 1) + v4 + ",nw_dst=255.255.255.255", upPort, 4,
			[]string{"dl_vlan=10", "dl_dst=" + broadcast}},
		{"multicast v6", fromV + v6 + ",ipv6_dst=ff02::fb", upPort, 4, []string{"dl_vlan=10"}},
		{"MLD report", fromV + ",icmp6,icmpv6_type=143,icmpv6_code=0,ipv6_src=" + llV + ",ipv6_dst=ff02::16", upPort, 4,
			[]string{"dl_vlan=10"}},
		// Pods must not take part in the election of a gateway among routers (VRRP, HSRP, GLBP); other multicast of
		// routers and listeners passes.
		{"VRRP", fromV + ",ip,nw_src=192.168.110.112,nw_proto=112,nw_ttl=255,nw_dst=224.0.0.18", drop, 4, nil},
		{"VRRP v6", fromV + ",ipv6,ipv6_src=" + llV + ",nw_proto=112,nw_ttl=255,ipv6_dst=ff02::12", drop, 4, nil},
		{"HSRP", fromU + ",udp,nw_src=192.168.77.110,nw_ttl=1,nw_dst=224.0.0.2,udp_src=1985,udp_dst=1985", drop, 4, nil},
		{"HSRP 2", fromV + ",udp,nw_src=192.168.110.112,nw_ttl=1,nw_dst=224.0.0.102,udp_src=1985,udp_dst=1985", drop, 4, nil},
		{"GLBP", fromV + ",udp,nw_src=192.168.110.112,nw_ttl=255,nw_dst=224.0.0.102,udp_src=3222,udp_dst=3222", drop, 4, nil},
		{"leaving a group", fromV + ",ip,nw_src=192.168.110.112,nw_proto=2,nw_ttl=1,nw_dst=224.0.0.2", upPort, 4, []string{"dl_vlan=10"}},
		{"OSPF", fromV + ",ip,nw_src=192.168.110.112,nw_proto=89,nw_ttl=1,nw_dst=224.0.0.5", upPort, 4, []string{"dl_vlan=10"}},
		{"VRRP between pods", fromV + ",ip,nw_src=192.168.110.112,nw_proto=112,nw_ttl=255,nw_dst=192.168.111.113", podX, 3, []string{toX}},
		{"link-local of the router", fromV + ",udp6,ipv6_src=" + llV + ",ipv6_dst=fe80::1", upPort, 4, []string{"dl_vlan=10"}},

		// From the underlay.
		{"wire to untagged", wire(macU, ",ip,nw_src=203.0.113.9,nw_dst=192.168.77.110,nw_ttl=9"), podU, 3,
			[]string{toU, "dl_src=" + macR, "nw_ttl=9"}},
		{"wire to VLAN 10", wire(macV, ",dl_vlan=10,ip,nw_src=203.0.113.9,nw_dst=192.168.110.112,nw_ttl=9"), podV, 3,
			[]string{toV, untagged, "nw_ttl=9"}},
		{"wire to VLAN 10 v6", wire(macV, ",dl_vlan=10,udp6,ipv6_src=2001:db8::9,ipv6_dst=fd77:0:0:a10::112"), podV, 3, []string{untagged}},
		{"MAC of another VLAN", wire(macV, ",dl_vlan=20,ip,nw_src=203.0.113.9,nw_dst=192.168.110.112"), drop, 3, nil},
		{"MAC of another VLAN, untagged", wire(macV, ",ip,nw_src=203.0.113.9,nw_dst=192.168.110.112"), drop, 3, nil},
		{"a VLAN without pods", wire(macV, ",dl_vlan=30,ip,nw_src=203.0.113.9,nw_dst=192.168.110.112"), drop, 0, nil},
		{"a priority tag", wire(macU, ",vlan_tci=0xf000,ip,nw_src=203.0.113.9,nw_dst=192.168.77.110,nw_ttl=9"), podU, 3,
			[]string{toU, untagged, "nw_ttl=9"}},
		{"ARP with a priority tag", wire(broadcast, ",vlan_tci=0xb000,arp,arp_op=1,arp_spa=192.168.77.9,arp_tpa=192.168.77.110"), podU, 1,
			[]string{toU, untagged}},
		{"a priority tag for VLAN 10", wire(macV, ",vlan_tci=0xf000,ip,nw_src=203.0.113.9,nw_dst=192.168.110.112"), drop, 3, nil},
		{"priority tag of a pod", fromV + ",vlan_tci=0xb000" + v4 + ",nw_dst=203.0.113.9", upPort, 4, []string{"dl_vlan=10", toR}},
		{"priority tag of an untagged pod", fromU + ",vlan_tci=0xb000" + u4 + ",nw_dst=203.0.113.9", upPort, 4, []string{untagged, toR}},
		{"spoofed IP with a priority tag", fromV + ",vlan_tci=0xb000,ip,nw_src=192.168.111.113,nw_dst=203.0.113.9", drop, 0, nil},
		{"wire to a routed pod", wire(macA, ",ip,nw_src=203.0.113.9,nw_dst=10.10.0.3"), drop, 3, nil},
		{"wire to the gateway", wire(macGW, ",ip,nw_src=203.0.113.9,nw_dst=10.10.0.1"), drop, 3, nil},
		{"wire to a peer's pod", wire(macGW, ",ip,nw_src=203.0.113.9,nw_dst=10.10.1.9"), drop, 3, nil},
		{"wire's broadcast", wire(broadcast, ",ip,nw_src=192.168.77.9,nw_dst=255.255.255.255"), drop, 3, nil},
		{"wire's multicast v6", wire("33:33:00:00:00:fb", ",udp6,ipv6_src=fe80::1,ipv6_dst=ff02::fb"), drop, 3, nil},
		{"LLDP", wire("01:80:c2:00:00:0e", ",dl_type=0x88cc"), drop, 0, nil},
		{"router solicitation", wire("33:33:00:00:00:02", ",icmp6,icmpv6_type=133,ipv6_src=fe80::1,ipv6_dst=ff02::2"), drop, 0, nil},
		{"router advertisement", wire(macV, ",dl_vlan=10,icmp6,icmpv6_type=134,ipv6_src=fe80::1,ipv6_dst="+llV), drop, 0, nil},
		{"redirect", wire(macV, ",dl_vlan=10,icmp6,icmpv6_type=137,ipv6_src=fe80::1,ipv6_dst=fd77:0:0:a10::112"), drop, 0, nil},

		// Routed pods of the node: directly for untagged pods, otherwise through the host.
		{"untagged to routed", fromU + u4 + ",nw_dst=10.10.0.3", podA, 3, nil}, // and TestLargePackets
		{"untagged to routed v6", fromU + u6 + ",ipv6_dst=fd00:10::3", podA, 3, nil},
		// The host would resolve each of these addresses and keep an entry: its neighbour table is shared by everything
		// it does.
		{"untagged to no routed pod", fromU + u4 + ",nw_dst=10.10.0.99", drop, 3, nil},
		{"VLAN 10 to no routed pod v6", fromV + v6 + ",ipv6_dst=fd00:10::99", drop, 3, nil},
		{"VLAN 10 to routed", fromV + v4 + ",nw_dst=10.10.0.3", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"routed to untagged", fromA + a4 + ",nw_dst=192.168.77.110", podU, 3, []string{toU, "nw_ttl=64"}},
		{"routed to untagged v6", fromA + a6 + ",ipv6_dst=fd77::110", podU, 3, []string{toU}},
		{"routed to VLAN 10", fromA + a4 + ",nw_dst=192.168.110.112", gwPort, 3, []string{toGW}},
		{"tunnel to untagged", fromPeer + ",ip,nw_src=10.10.1.9,nw_dst=192.168.77.110", drop, 3, nil},

		// The host and what it routes, in every VLAN.
		{"untagged to the node", fromU + u4 + ",nw_dst=192.168.77.1", gwPort, 3, []string{toGW, untagged}},
		{"VLAN 10 to the node", fromV + v4 + ",nw_dst=192.168.77.1", gwPort, 3, []string{toGW, untagged}},
		{"VLAN 20 to the node v6", fromY + y6 + ",ipv6_dst=fd77::1", gwPort, 3, []string{toGW}},
		{"to the gateway address", fromV + v4 + ",nw_dst=10.10.0.1", gwPort, 3, []string{toGW}},
		{"to a Service", fromV + v4 + ",nw_dst=10.96.0.10", gwPort, 3, []string{toGW, "nw_ttl=64"}},
		{"to a Service v6", fromY + y6 + ",ipv6_dst=fd00:10:96::a", gwPort, 3, []string{toGW}},
		{"to a routed pod elsewhere", fromU + u4 + ",nw_dst=10.10.1.9", gwPort, 3, []string{toGW}},
		{"host to untagged", fromGW + ",ip,nw_src=192.168.77.1,nw_dst=192.168.77.110,nw_ttl=64", podU, 3, []string{toU, "dl_src=" + macGW}},
		{"host to VLAN 10", fromGW + ",ip,nw_src=192.168.77.1,nw_dst=192.168.110.112,nw_ttl=64", podV, 3, []string{toV, untagged}},
		{"host to VLAN 10 v6", fromGW + ",udp6,ipv6_src=fd77::1,ipv6_dst=fd77:0:0:a10::112", podV, 3, []string{toV}},
		{"host to no pod of the underlay", fromGW + ",ip,nw_src=192.168.77.1,nw_dst=192.168.110.99", drop, 3, nil},

		// Spoofed packets of bridged pods.
		{"spoofed IP", fromV + ",ip,nw_src=192.168.111.113,nw_dst=203.0.113.9", drop, 0, nil},
		{"spoofed IPv6", fromV + ",udp6,ipv6_src=fd77:0:0:b10::113,ipv6_dst=2001:db8::9", drop, 0, nil},
		{"the node's IP", fromU + ",ip,nw_src=192.168.77.1,nw_dst=203.0.113.9", drop, 0, nil},
		{"spoofed MAC", strings.Replace(fromV, macV, macR, 1) + v4 + ",nw_dst=203.0.113.9", drop, 0, nil},
		{"spoofed link-local", fromV + ",udp6,ipv6_src=" + llU + ",ipv6_dst=ff02::fb", drop, 0, nil},
		{"link-local to the node", fromV + ",udp6,ipv6_src=" + llV + ",ipv6_dst=fd77::1", drop, 0, nil},
		{"tagged by the pod", strings.Replace(fromV, "dl_src", "dl_vlan=10,dl_src", 1) + v4 + ",nw_dst=203.0.113.9", drop, 0, nil},
		{"ARP tagged by the pod", fromU + ",dl_vlan=10" + arpU + ",arp_op=1,arp_tpa=192.168.77.254", drop, 0, nil},
		{"ND tagged by the pod", fromV + ",dl_vlan=20" + ns + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=ff02::1:ff00:1,nd_target=fd77:0:0:a10::1,nd_sll=" + macV,
			drop, 0, nil},
		{"ARP lies about IP", fromV + ",arp,arp_op=2,arp_sha=" + macV + ",arp_spa=192.168.110.1,arp_tpa=192.168.110.9", drop, 0, nil},
		{"ARP lies about MAC", fromV + ",arp,arp_op=2,arp_sha=" + macR + ",arp_spa=192.168.110.112,arp_tpa=192.168.110.9", drop, 0, nil},
		{"ARP probe", fromV + ",arp,arp_op=1,arp_sha=" + macV + ",arp_spa=0.0.0.0,arp_tpa=192.168.110.9", drop, 0, nil},
		{"NA lies about target", fromV + na + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=ff02::1,nd_target=fd77:0:0:a10::1,nd_tll=" + macV, drop, 0, nil},
		{"NA lies about MAC", fromV + na + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=ff02::1,nd_target=fd77:0:0:a10::112,nd_tll=" + macR, drop, 0, nil},
		{"NS lies about source", fromV + ns + ",ipv6_src=fd77:0:0:a10::1,ipv6_dst=ff02::1:ff00:9,nd_target=fd77:0:0:a10::9,nd_sll=" + macV,
			drop, 0, nil},
		{"router advertisement of a pod", fromV + ",icmp6,icmpv6_type=134,ipv6_src=" + llV + ",ipv6_dst=ff02::1", drop, 0, nil},
		{"redirect of a pod", fromV + ",icmp6,icmpv6_type=137,ipv6_src=" + llV + ",ipv6_dst=" + llX, drop, 0, nil},
		{"NS of a pod with an invalid code", fromV + ",icmp6,icmpv6_type=135,icmpv6_code=1,ipv6_src=" + llV + ",ipv6_dst=ff02::1:ff00:9", drop, 0, nil},
		{"router advertisement in pieces", fromV + ",icmp6,icmpv6_type=134,nw_frag=first,ipv6_src=" + llV + ",ipv6_dst=ff02::1", drop, 0, nil},
		{"the rest of it", fromV + ",ipv6,nw_proto=44,nw_frag=later,ipv6_src=" + llV + ",ipv6_dst=ff02::1", upPort, 4, []string{"dl_vlan=10"}},
		{"what it is in a later piece", fromV + ",ipv6,nw_proto=0,ipv6_src=" + llV + ",ipv6_dst=ff02::1", drop, 0, nil},
		{"what it is in a later piece, as the kernel says it", fromV + ",ipv6,nw_proto=59,nw_frag=first,ipv6_src=" + llV + ",ipv6_dst=ff02::1", drop, 0, nil},
		{"the message in a later piece", fromV + ",icmp6,nw_frag=first,ipv6_src=" + llV + ",ipv6_dst=ff02::1", drop, 0, nil},
		{"the message of the wire in a later piece", wire(macV, ",dl_vlan=10,icmp6,nw_frag=first,ipv6_src=fe80::1,ipv6_dst="+llV), drop, 0, nil},
		{"router advertisement of the wire in pieces", wire(macV, ",dl_vlan=10,icmp6,icmpv6_type=134,nw_frag=first,ipv6_src=fe80::1,ipv6_dst="+llV), drop, 0, nil},
		{"a large ping", fromV + ",icmp6,nw_frag=first,icmpv6_type=128,ipv6_src=fd77:0:0:a10::112,ipv6_dst=2001:db8::9", upPort, 4, []string{"dl_vlan=10"}},
		{"NA in pieces", fromV + na + ",nw_frag=first,ipv6_src=fd77:0:0:a10::112,ipv6_dst=fd77:0:0:b10::113,nd_target=fd77:0:0:a10::112,nd_tll=" +
			macV, drop, 0, nil},
		{"NA of the wire in pieces", wire(macV, ",dl_vlan=10"+na+",nw_frag=first,ipv6_src=fe80::1,ipv6_dst=fd77:0:0:a10::112,nd_target=fe80::1"),
			drop, 0, nil},
		{"NS with invalid options", fromV + ns + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=ff02::1:ff00:1,nd_target=::", drop, 0, nil},
		{"NA of the wire with invalid options", wire(macV, ",dl_vlan=10"+na+",ipv6_src=fe80::1,ipv6_dst=fd77:0:0:a10::112,nd_target=::"),
			drop, 0, nil},
		{"STP of a pod", fromV + ",dl_type=0x05ff", drop, 0, nil},

		// ARP.
		{"ARP for a pod of the VLAN", fromV + arpV + ",arp_op=1,arp_tpa=192.168.111.113", podX, 1, []string{toX, untagged}},
		{"ARP for the router", fromV + arpV + ",arp_op=1,arp_tpa=192.168.110.1", upPort, 4, []string{"dl_vlan=10"}},
		{"ARP for a pod of another VLAN", fromV + arpV + ",arp_op=1,arp_tpa=192.168.77.110", upPort, 4, []string{"dl_vlan=10"}},
		{"ARP for a routed pod", fromU + arpU + ",arp_op=1,arp_tpa=10.10.0.3", upPort, 4, []string{untagged}},
		{"ARP reply to the underlay", fromV + arpV + ",arp_op=2,arp_tpa=192.168.110.9", upPort, 4, []string{"dl_vlan=10", toR}},
		{"gratuitous ARP", fromV + arpV + ",arp_op=1,arp_tpa=192.168.110.112", upPort, 4, []string{"dl_vlan=10"}},
		{"ARP for the node", fromU + arpU + ",arp_op=1,arp_tpa=192.168.77.1", bounced, 1,
			[]string{toU, "dl_src=" + macGW, "arp_op=2", "arp_spa=192.168.77.1", "arp_sha=" + macGW, "arp_tpa=192.168.77.110", "arp_tha=" + macU}},
		{"ARP reply to the node", fromU + arpU + ",arp_op=2,arp_tpa=192.168.77.1", upPort, 4, []string{untagged}},
		{"ARP of the wire", wire(broadcast, ",dl_vlan=10,arp,arp_op=1,arp_spa=192.168.110.1,arp_tpa=192.168.110.112"), podV, 1,
			[]string{toV, untagged}},
		{"ARP of the wire in another VLAN", wire(broadcast, ",dl_vlan=20,arp,arp_op=1,arp_spa=192.168.110.1,arp_tpa=192.168.110.112"),
			drop, 1, nil},
		{"ARP of the wire for a routed pod", wire(broadcast, ",arp,arp_op=1,arp_spa=192.168.77.9,arp_tpa=10.10.0.3"), drop, 1, nil},
		{"ARP of the wire for the gateway", wire(broadcast, ",arp,arp_op=1,arp_spa=192.168.77.9,arp_tpa=10.10.0.1"), drop, 1, nil},
		{"ARP reply of the underlay to an unknown address", wire(macR, ",arp,arp_op=2,arp_spa=192.168.77.9,arp_tpa=192.168.77.1"), drop, 1, nil},
		{"ARP of the wire, unknown VLAN", wire(broadcast, ",dl_vlan=30,arp,arp_op=1,arp_tpa=192.168.110.112"), drop, 0, nil},
		{"ARP of a routed pod for an untagged one", fromA + arpA + ",arp_op=1,arp_tpa=192.168.77.110", drop, 1, nil},

		// Neighbour discovery.
		{"NS for a pod of the VLAN", fromV + ns + ",ipv6_src=" + llV + ",ipv6_dst=ff02::1:ff00:113,nd_target=fd77:0:0:b10::113,nd_sll=" + macV,
			podX, 1, []string{toX, untagged}},
		{"NS for the router", fromV + ns + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=ff02::1:ff00:1,nd_target=fd77:0:0:a10::1,nd_sll=" + macV,
			upPort, 4, []string{"dl_vlan=10"}},
		{"NS for the node", fromU + ns + ",ipv6_src=fd77::110,ipv6_dst=ff02::1:ff00:1,nd_target=fd77::1,nd_sll=" + macU, upPort, 4, []string{untagged}},
		{"NA to the underlay", fromV + na + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=fe80::1,nd_target=fd77:0:0:a10::112,nd_tll=" + macV,
			upPort, 4, []string{"dl_vlan=10"}},
		{"NA to all", fromV + na + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=ff02::1,nd_target=fd77:0:0:a10::112,nd_tll=" + macV,
			upPort, 4, []string{"dl_vlan=10"}},
		{"NS of the wire", wire("33:33:ff:00:01:12", ",dl_vlan=10"+ns+",ipv6_src=fe80::1,ipv6_dst=ff02::1:ff00:112,nd_target=fd77:0:0:a10::112"),
			podV, 1, []string{toV, untagged}},
		{"NS of the wire for a link-local", wire(macV, ",dl_vlan=10"+ns+",ipv6_src=fe80::1,ipv6_dst="+llV+",nd_target="+llV), podV, 1, []string{toV}},
		{"NS of the wire in another VLAN", wire(macV, ",dl_vlan=20"+ns+",ipv6_src=fe80::1,ipv6_dst=ff02::1:ff00:112,nd_target=fd77:0:0:a10::112"),
			drop, 1, nil},
		{"NS of the wire for the gateway", wire(macGW, ns+",ipv6_src=fe80::1,ipv6_dst=ff02::1:ff00:1,nd_target=fd00:10::1"), drop, 1, nil},
		{"NA of the wire", wire(macV, ",dl_vlan=10"+na+",ipv6_src=fe80::1,ipv6_dst=fd77:0:0:a10::112,nd_target=fe80::1"), podV, 1, []string{toV}},
		{"NA of the wire to all", wire("33:33:00:00:00:01", ",dl_vlan=10"+na+",ipv6_src=fe80::1,ipv6_dst=ff02::1,nd_target=fe80::1"), drop, 1, nil},
		{"NS of the wire from afar", wire(macV, ",dl_vlan=10"+routed(ns)+",ipv6_src=2001:db8::9,ipv6_dst=fd77:0:0:a10::112,nd_target=fd77:0:0:a10::112"),
			drop, 1, nil},
		{"NA of the wire from afar", wire(macV, ",dl_vlan=10"+routed(na)+",ipv6_src=2001:db8::9,ipv6_dst=fd77:0:0:a10::112,nd_target=2001:db8::9"),
			drop, 1, nil},
		{"NS with a hop limit that is not ND's", fromV + routed(ns) + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=2001:db8::9,nd_target=2001:db8::9",
			drop, 1, nil},
		{"NA with a hop limit that is not ND's", fromV + routed(na) + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=2001:db8::9,nd_target=fd77:0:0:a10::112",
			drop, 1, nil},
		// A link may have prefixes that no pool has, and hosts solicit from addresses in these.
		{"NA to another prefix", fromV + na + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=2001:db8::9,nd_target=fd77:0:0:a10::112,nd_tll=" +
			macV, upPort, 4, []string{"dl_vlan=10"}},
		{"NS to a neighbour", fromV + ns + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=fd77:0:0:a10::9,nd_target=fd77:0:0:a10::9", upPort, 4, nil},
		{"NS to the router's link-local", fromV + ns + ",ipv6_src=fd77:0:0:a10::112,ipv6_dst=fe80::1,nd_target=fe80::1", upPort, 4, nil},
		{"NA of the wire to the host", wire(macR, na+",ipv6_src=fe80::1,ipv6_dst=fe80::99,nd_target=fe80::1"), drop, 1, nil},
	}
}

// TestBridgedPackets traces packets of bridged pods through a real Open vSwitch. Routed pods of the same node are
// treated as on a node without bridged pods.
func TestBridgedPackets(t *testing.T) {
	o := flowtest.Node(t)
	_, view := readGolden(t, "testdata/bridged-encap.txtar")
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view))
	checkPackets(t, o, view, append(bridgedCases(), packetCases()...))
}

// Packets of an untagged pod to a routed pod of its node pass through the host if they are larger than the routed pod's
// MTU.
func TestLargePackets(t *testing.T) {
	o := flowtest.Node(t)
	_, view := readGolden(t, "testdata/bridged-encap.txtar")
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view))
	for _, to := range []string{u4 + ",nw_dst=10.10.0.3", u6 + ",ipv6_dst=fd00:10::3"} {
		report := o.Trace("br-int", fromU+to)
		_, actions, _ := strings.Cut(report, "Datapath actions: ")
		large, small, _ := strings.Cut(actions, "le(")
		if !strings.HasPrefix(actions, "check_pkt_len(size=1464,gt(") || !strings.Contains(large, "dst="+macGW) ||
			!strings.Contains(small, "dst="+macA) {
			t.Errorf("%s: %s", to, report)
		}
	}
	// Between pods of the underlay, and from routed pods, the size does not matter.
	for _, packet := range []string{fromU + u4 + ",nw_dst=192.168.79.111", fromA + a4 + ",nw_dst=192.168.77.110",
		fromU + u4 + ",nw_dst=203.0.113.9", fromV + v4 + ",nw_dst=10.10.0.3"} {
		if report := o.Trace("br-int", packet); strings.Contains(report, "check_pkt_len") {
			t.Errorf("%s: %s", packet, report)
		}
	}
}

// Where the underlay routes podCIDRs, those of other nodes are destinations like any other.
func TestBridgedPacketsWithoutTunnel(t *testing.T) {
	o := flowtest.Node(t)
	_, view := readGolden(t, "testdata/bridged-noencap.txtar")
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view))
	for _, c := range []packetCase{
		{"to a routed pod elsewhere", fromV + v4 + ",nw_dst=10.10.1.9", upPort, 4, []string{"dl_vlan=10", toR}},
		{"to a routed pod elsewhere v6", fromU + u6 + ",ipv6_dst=fd00:10:0:1::9", upPort, 4, []string{untagged, toR}},
		{"untagged to routed", fromU + u4 + ",nw_dst=10.10.0.3", podA, 3, []string{toA}},
		{"VLAN 10 to routed", fromV + v4 + ",nw_dst=10.10.0.3", gwPort, 3, []string{toGW}},
		{"routed to elsewhere", fromA + a4 + ",nw_dst=10.10.1.9", gwPort, 3, []string{toGW}},
		{"to a Service", fromV + v4 + ",nw_dst=10.96.0.10", gwPort, 3, []string{toGW}},
	} {
		checkPacket(t, o, c)
	}
}

// Without an uplink bridged pods still reach each other and the host.
func TestBridgedPacketsDetached(t *testing.T) {
	o := flowtest.Node(t)
	_, view := readGolden(t, "testdata/bridged-detached.txtar")
	view.Pods = append(view.Pods, Pod{Port: podX, MAC: flowtest.MAC(t, macX),
		Addrs: flowtest.Addrs("192.168.111.113"), Bridged: true, VLAN: 10})
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view))
	for _, c := range []packetCase{
		{"VLAN 10 to VLAN 10", fromV + v4 + ",nw_dst=192.168.111.113", podX, 3, []string{toX}},
		{"to the node", fromV + v4 + ",nw_dst=192.168.77.1", gwPort, 3, []string{toGW}},
		{"host to VLAN 10", fromGW + ",ip,nw_src=192.168.77.1,nw_dst=192.168.110.112", podV, 3, []string{toV}},
		{"outside", fromV + v4 + ",nw_dst=203.0.113.9", drop, 4, nil},
		{"ARP for the router", fromV + arpV + ",arp_op=1,arp_tpa=192.168.110.1", drop, 4, nil},
		{"from the uplink", wire(macV, ",dl_vlan=10,ip,nw_dst=192.168.110.112"), drop, 0, nil},
	} {
		checkPacket(t, o, c)
	}
}

// A first fragment that ends before the ICMPv6 message does not show its type: that is in the next fragment, which
// cannot be inspected.
func TestMessageInSecondFragment(t *testing.T) {
	o := flowtest.Node(t)
	_, view := readGolden(t, "testdata/bridged-encap.txtar")
	flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view))
	mac, own := flowtest.MAC(t, macV), netip.MustParseAddr(llV)
	frame := slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, mac[:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 44, 255},
		own.AsSlice(), netip.IPv6LinkLocalAllNodes().AsSlice(),
		[]byte{60, 0, 0, 1, 0, 0, 0, 7}, // a fragment header: the first of several fragments, followed by options
		[]byte{58, 0, 1, 4, 0, 0, 0, 0}) // 8 bytes of options, followed by ICMPv6
	report := o.Appctl("ofproto/trace", "br-int", "in_port=12", hex.EncodeToString(frame))
	if got := readTrace(t, report); got.out != drop {
		t.Errorf("it left by port %d\n%s", got.out, report)
	}
}
