package wire

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

func mac() api.MAC { return api.MAC{0x02, 0, 0, 0, 0, 0x05} }

// The bytes are those that arping -D, arping -A, ndisc6 and the kernel's own duplicate address detection send, except
// for the addresses.
func TestFrames(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::1:2:3")
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"ARP probe", probe(mac(), 0, v4),
			"ffffffffffff 020000000005 0806 0001 0800 06 04 0001 020000000005 00000000 000000000000 c0000207"},
		{"ARP probe in VLAN 4094", probe(mac(), 4094, v4),
			"ffffffffffff 020000000005 8100 0ffe 0806 0001 0800 06 04 0001 020000000005 00000000 000000000000 c0000207"},
		{"neighbour solicitation", probe(mac(), 0, v6),
			"3333ff020003 020000000005 86dd 60000000 0018 3a ff 00000000000000000000000000000000 " +
				"ff0200000000000000000001ff020003 87 00 4ce4 00000000 20010db8000000000000000100020003"},
		{"gratuitous ARP", announcement(mac(), v4),
			"ffffffffffff 020000000005 0806 0001 0800 06 04 0001 020000000005 c0000207 000000000000 c0000207"},
		{"neighbour advertisement", announcement(mac(), v6),
			"333300000001 020000000005 86dd 60000000 0020 3a ff 20010db8000000000000000100020003 " +
				"ff020000000000000000000000000001 88 00 f91c 20000000 20010db8000000000000000100020003 0201 020000000005"},
	} {
		if got, want := hex.EncodeToString(c.got), strings.ReplaceAll(c.want, " ", ""); got != want {
			t.Errorf("%s: got\n%s, want\n%s", c.name, got, want)
		}
	}
}

func TestClaim(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	for _, a := range []netip.Addr{v4, v6} {
		f := announcement(mac(), a)
		if got, owner, ok := claim(f); !ok || got != a || owner != mac() {
			t.Errorf("an announcement of %s claims %s for %s (%t)", a, got, owner, ok)
		}
		if got, _, ok := claim(probe(mac(), 0, a)); ok {
			t.Errorf("a probe for %s claims %s", a, got)
		}
		for n := range f { // shorter frames claim nothing and do not panic
			if _, _, ok := claim(f[:n]); ok && n < 42 {
				t.Errorf("%d bytes of an announcement of %s claim something", n, a)
			}
		}
	}
	routed := announcement(mac(), v6)
	routed[etherLen+7] = 64
	if _, _, ok := claim(routed); ok {
		t.Error("an advertisement that was routed is believed")
	}
}

func FuzzClaim(f *testing.F) {
	f.Add(announcement(mac(), netip.MustParseAddr("192.0.2.7")))
	f.Add(announcement(mac(), netip.MustParseAddr("2001:db8::7")))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if addr, _, ok := claim(frame); ok && (!addr.IsValid() || addr == netip.IPv4Unspecified()) {
			t.Errorf("%x claims %s", frame, addr)
		}
	})
}
