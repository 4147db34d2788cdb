package netaddr

import (
	"net"
	"net/netip"
	"testing"
)

func TestPrefix(t *testing.T) {
	for _, s := range []string{"10.0.1.5/24", "0.0.0.0/0", "10.0.0.1/32", "fd00::5/64", "::/0", "::1/128"} {
		if got := Prefix(IPNet(netip.MustParsePrefix(s))); got.String() != s {
			t.Errorf("%s comes back as %s", s, got)
		}
	}
	sixteen := &net.IPNet{IP: net.ParseIP("10.0.1.5"), Mask: net.CIDRMask(24, 32)}
	if got := Prefix(sixteen); got.String() != "10.0.1.5/24" {
		t.Errorf("IPv4 in 16 bytes gives %s", got)
	}
	if Prefix(nil).IsValid() || Prefix(&net.IPNet{}).IsValid() {
		t.Error("nothing gives a valid prefix")
	}
}
