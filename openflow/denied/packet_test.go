package denied

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

// message is the body of OFPT_PACKET_IN with a register in the match, and the bytes of a packet.
func message(table uint8, fields, packet []byte) []byte {
	b := []byte{255, 255, 255, 255, 0, 60, 1, table, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(fields)))
	for b = append(b, fields...); len(b)%8 != 0; {
		b = append(b, 0)
	}
	return append(append(b, 0, 0), packet...)
}

// unhex decodes hexadecimal text with spaces.
func unhex(t testing.TB, text string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	port   = "80000004 00000001"
	pair   = "80010808 00000001 000000aa" // reg8, reg9
	masked = "80010910 00000000 000000aa 00000000 ffffffff"
	own    = "00011204 000000aa"
	macs   = "020000000099 020000000001"
	ipv4   = "45000028 00000000 40060000 0a4d0105 cb007109"
	ipv6   = "60000000 0014"
	ends6  = "40 fd000000000000000000000000000005 20010db8000000000000000000000009"
)

// The fields of a denied packet are read from its first bytes.
func TestPackets(t *testing.T) {
	v4 := Packet{Table: 34, Judged: 0xaa, Src: netip.MustParseAddr("10.77.1.5"), Dst: netip.MustParseAddr("203.0.113.9"),
		Protocol: 6, SrcPort: 1000, DstPort: 80}
	v6, none := v4, v4
	v6.Src, v6.Dst = netip.MustParseAddr("fd00::5"), netip.MustParseAddr("2001:db8::9")
	none.SrcPort, none.DstPort = 0, 0
	none6, icmp := v6, none
	none6.SrcPort, none6.DstPort = 0, 0
	icmp.Protocol = 1
	for _, c := range []struct {
		name, fields, packet string
		want                 Packet
		ok                   bool
	}{
		{"TCP", port + pair, macs + "0800" + ipv4 + "03e80050", v4, true},
		{"a pair of registers with a mask", masked, macs + "0800" + ipv4 + "03e80050", v4, true},
		{"a register by itself", own, macs + "0800" + ipv4 + "03e80050", v4, true},
		{"two tags", pair, macs + "88a80001 8100000a 0800" + ipv4 + "03e80050", v4, true},
		{"options", pair, macs + "0800 46" + ipv4[2:] + "01010101 03e80050", v4, true},
		{"a later fragment", pair, macs + "0800 45000028 00000001 40060000 0a4d0105 cb007109 03e80050", none, true},
		{"without its ports", pair, macs + "0800" + ipv4 + "03e8", none, true},
		{"ICMP", pair, macs + "0800" + strings.Replace(ipv4, "4006", "4001", 1) + "08000050", icmp, true},
		{"IPv6", pair, macs + "86dd" + ipv6 + "06" + ends6 + "03e80050", v6, true},
		{"headers before", pair, macs + "86dd" + ipv6 + "00" + ends6 + "3c01" + strings.Repeat("00", 14) + "06" +
			strings.Repeat("00", 7) + "03e80050", v6, true},
		{"the first fragment", pair, macs + "86dd" + ipv6 + "2c" + ends6 + "06000001 00000000 03e80050", v6, true},
		{"a later fragment of IPv6", pair, macs + "86dd" + ipv6 + "2c" + ends6 + "06000009 00000000 03e80050", none6, true},
		{"authenticated", pair, macs + "86dd" + ipv6 + "33" + ends6 + "0601" + strings.Repeat("00", 10) + "03e80050", v6, true},
		{"ARP", pair, macs + "0806" + ipv4, Packet{}, false},
		{"IPv6 as IPv4", pair, macs + "0800" + ipv6 + "06" + ends6, Packet{}, false},
		{"cut short", pair, macs + "0800" + ipv4[:29], Packet{}, false},
		{"a field that is longer than all", "000112ff", macs + "0800" + ipv4, Packet{}, false},
	} {
		got, ok := read(message(34, unhex(t, c.fields), unhex(t, c.packet)))
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %t; want %+v, %t", c.name, got, ok, c.want, c.ok)
		}
	}
}

// FuzzPackets: whatever the switch sends, and whatever a pod has sent, is read without a panic or an endless loop.
func FuzzPackets(f *testing.F) {
	for _, packet := range []string{"0800" + ipv4 + "03e80050", "86dd" + ipv6 + "2c" + ends6 + "2c000001 00000000 06",
		"86dd" + ipv6 + "33" + ends6 + "33ff", "8100"} {
		f.Add(message(35, unhex(f, masked+own), unhex(f, macs+packet)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, ok := read(body)
		if ok && (!p.Src.IsValid() || p.Src.Is4() != p.Dst.Is4()) {
			t.Errorf("read %+v", p)
		}
	})
}
