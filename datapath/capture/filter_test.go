package capture

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/net/bpf"

	"github.com/fairlead-cni/fairlead/api"
)

const (
	a4, b4, c4 = "10.77.1.2", "10.77.2.2", "10.77.1.9"
	a6, b6, c6 = "fd77:0:0:1::2", "fd77:0:0:2::2", "fd77:0:0:1::9"
	node1      = "192.168.77.11"
	node2      = "192.168.77.12"
	sixth1     = "fd77::11"
	sixth2     = "fd77::12"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// bytes is a packet with these layers, from the outermost.
func bytes(t *testing.T, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, list...); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func ether(kind layers.EthernetType) *layers.Ethernet {
	from, to := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	return &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: kind}
}

// ip is an IP packet in a frame; tags are the EtherTypes of its tags.
func ip(from, to string, protocol layers.IPProtocol, tags ...layers.EthernetType) (out []gopacket.SerializableLayer) {
	src, dst, kind := net.ParseIP(from), net.ParseIP(to), layers.EthernetTypeIPv4
	var packet gopacket.SerializableLayer = &layers.IPv4{Version: 4, IHL: 5, TTL: 9, Protocol: protocol,
		SrcIP: src, DstIP: dst}
	if strings.Contains(from, ":") {
		kind = layers.EthernetTypeIPv6
		packet = &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: protocol, SrcIP: src, DstIP: dst}
	}
	types := append(tags, kind)
	out = append(out, ether(types[0]))
	for _, next := range types[1:] {
		out = append(out, &layers.Dot1Q{VLANIdentifier: 10, Type: next})
	}
	return append(out, packet)
}

func udpTo(port layers.UDPPort) *layers.UDP { return &layers.UDP{SrcPort: 4000, DstPort: port} }

// of is a packet between these two endpoints.
func of(t *testing.T, from, to string, tags ...layers.EthernetType) []byte {
	return bytes(t, append(ip(from, to, layers.IPProtocolUDP, tags...), udpTo(53), gopacket.Payload("x"))...)
}

func arp(t *testing.T, sender, target string) []byte {
	return bytes(t, ether(layers.EthernetTypeARP), &layers.ARP{AddrType: layers.LinkTypeEthernet,
		Protocol:      layers.EthernetTypeIPv4,
		HwAddressSize: 6, ProtAddressSize: 4, Operation: 1, SourceHwAddress: make([]byte, 6), DstHwAddress: make([]byte, 6),
		SourceProtAddress: net.ParseIP(sender).To4(), DstProtAddress: net.ParseIP(target).To4()})
}

func icmp6Of(t *testing.T, from, to string, kind uint8, about string) []byte {
	message := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, net.ParseIP(about)...)
	return bytes(t, append(ip(from, to, layers.IPProtocolICMPv6), gopacket.Payload(message))...)
}

// icmp4 is an ICMP message after an IP header with options.
func icmp4(t *testing.T, from, to string, kind uint8, fragment uint16) []byte {
	list := ip(from, to, layers.IPProtocolICMPv4)
	header := list[1].(*layers.IPv4)
	header.FragOffset = fragment
	header.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	return bytes(t, append(list, gopacket.Payload([]byte{kind, 0, 0, 0, 0, 0, 0, 0}))...)
}

func geneve(t *testing.T, from, to string, port layers.UDPPort, options uint8, inner []byte) []byte {
	header := append([]byte{options / 4, 0, 0x65, 0x58, 0, 0, 0, 0}, make([]byte, options)...)
	return bytes(t, append(ip(from, to, layers.IPProtocolUDP), udpTo(port), gopacket.Payload(append(header, inner...)))...)
}

func vxlan(t *testing.T, inner []byte) []byte {
	return bytes(t, append(ip(node1, node2, layers.IPProtocolUDP), udpTo(4789), &layers.VXLAN{ValidIDFlag: true},
		gopacket.Payload(inner))...)
}

func greOf(t *testing.T, key bool, inner []byte) []byte {
	header := &layers.GRE{Protocol: layers.EthernetTypeTransparentEthernetBridging, KeyPresent: key, Key: 7}
	return bytes(t, append(ip(node1, node2, layers.IPProtocolGRE), header, gopacket.Payload(inner))...)
}

func TestFilter(t *testing.T) {
	one := Filter{Of: addrs(a4, a6)}
	two := Filter{Of: addrs(a4, a6), With: addrs(b4, b6)}
	only4 := Filter{Of: addrs(a4, a6), With: addrs(b4)}
	tunnel := func(f Filter, kind string, port uint16) Filter { f.Tunnel, f.Port = kind, port; return f }
	over := tunnel(two, api.TunnelGeneve, 6081)
	for _, c := range []struct {
		name   string
		filter Filter
		frame  []byte
		want   bool
	}{
		{"all", Filter{}, of(t, c4, b4), true},
		{"one, from it", one, of(t, a4, c4), true},
		{"one, to it", one, of(t, c4, a4), true},
		{"one, another's", one, of(t, c4, b4), false},
		{"one, IPv6, from it", one, of(t, a6, c6), true},
		{"one, IPv6, to it", one, of(t, c6, a6), true},
		{"one, IPv6, another's", one, of(t, c6, b6), false},
		{"one, ARP of it", one, arp(t, a4, c4), true},
		{"one, ARP for it", one, arp(t, c4, a4), true},
		{"one, another's ARP", one, arp(t, c4, b4), false},
		{"one, asked for by neighbour discovery", one, icmp6Of(t, c6, "ff02::1:ff00:2", 135, a6), true},
		{"one, another is asked for", one, icmp6Of(t, c6, "ff02::1:ff00:2", 135, b6), false},
		{"one, tagged", one, of(t, a4, c4, layers.EthernetTypeDot1Q), true},
		{"one, tagged twice", one, of(t, a6, c6, layers.EthernetTypeQinQ, layers.EthernetTypeDot1Q), true},
		{"one, another's tagged", one, of(t, b4, c4, layers.EthernetTypeDot1Q), false},
		{"one, cut short", one, of(t, c4, b4)[:20], false},
		{"one, empty", one, nil, false},
		{"two, there", two, of(t, a4, b4), true},
		{"two, back", two, of(t, b4, a4), true},
		{"two, IPv6 there", two, of(t, a6, b6), true},
		{"two, IPv6 back", two, of(t, b6, a6), true},
		{"two, with a third", two, of(t, a4, c4), false},
		{"two, a third with the other", two, of(t, c4, b4), false},
		{"two, IPv6 with a third", two, of(t, c6, a6), false},
		{"two, ARP for the other", two, arp(t, c4, b4), true},
		{"two, the other is asked for", two, icmp6Of(t, c6, "ff02::1:ff00:2", 135, b6), true},
		{"two, a router's error", two, icmp4(t, c4, a4, 3, 0), true},
		{"two, a router's error in a later fragment", two, icmp4(t, c4, a4, 3, 5), false},
		{"two, a third's ping", two, icmp4(t, c4, a4, 8, 0), false},
		{"two, a router's error to a third", two, icmp4(t, a4, c4, 3, 0), false},
		{"two, a router's IPv6 error", two, icmp6Of(t, c6, b6, 2, c6), true},
		{"two, a third's IPv6 ping", two, icmp6Of(t, c6, b6, 128, c6), false},
		{"IPv4 only, there", only4, of(t, a4, b4), true},
		{"IPv4 only, IPv6", only4, of(t, a6, b6), false},
		{"tunnel, no packet of it", over, of(t, node1, node2), false},
		{"tunnel, not in it", over, of(t, a4, b4), true},
		{"geneve", over, geneve(t, node1, node2, 6081, 0, of(t, a4, b4)), true},
		{"geneve, IPv6 in IPv4, with options", over, geneve(t, node1, node2, 6081, 8, of(t, b6, a6)), true},
		{"geneve over IPv6", over, geneve(t, sixth1, sixth2, 6081, 4, of(t, a4, b4)), true},
		{"geneve, ARP", over, geneve(t, node1, node2, 6081, 0, arp(t, c4, b4)), true},
		{"geneve, a third's", over, geneve(t, node1, node2, 6081, 0, of(t, a4, c4)), false},
		{"geneve, another port", over, geneve(t, node1, node2, 6082, 0, of(t, a4, b4)), false},
		{"geneve, cut short", over, geneve(t, node1, node2, 6081, 0, of(t, a4, b4))[:60], false},
		{"geneve without a look inside", two, geneve(t, node1, node2, 6081, 0, of(t, a4, b4)), false},
		{"vxlan", tunnel(two, api.TunnelVXLAN, 4789), vxlan(t, of(t, a4, b4)), true},
		{"vxlan, a third's", tunnel(two, api.TunnelVXLAN, 4789), vxlan(t, of(t, c4, b4)), false},
		{"gre", tunnel(one, api.TunnelGRE, 0), greOf(t, false, of(t, a4, b4)), true},
		{"gre with a key", tunnel(two, api.TunnelGRE, 0), greOf(t, true, of(t, b6, a6)), true},
		{"gre, a third's", tunnel(two, api.TunnelGRE, 0), greOf(t, true, of(t, c6, a6)), false},
	} {
		instructions, err := c.filter.compile(1000)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if _, err := bpf.Assemble(instructions); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		machine, err := bpf.NewVM(instructions)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if kept, err := machine.Run(c.frame); err != nil || (kept > 0) != c.want {
			t.Errorf("%s: %d bytes are kept, %v, want some: %v", c.name, kept, err, c.want)
		}
	}
}

func TestDescribeFilter(t *testing.T) {
	f := Filter{Of: addrs(a4, a6), With: addrs(b4), Tunnel: api.TunnelGeneve, Port: 6081}
	want := "packets between 10.77.1.2, fd77:0:0:1::2 and 10.77.2.2, and ARP, neighbour discovery and ICMP errors of either; " +
		"also inside of geneve packets (UDP port 6081)"
	if got := f.String(); got != want || (Filter{}).String() != "all packets" {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
