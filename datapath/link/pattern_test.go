package link

import (
	"net/netip"
	"strings"
	"testing"
)

func TestOneName(t *testing.T) {
	have := []string{"lo", "enp1s0", "enp2s0", "eth0", "eth0.10", "fairlead-gw0"}
	for _, c := range []struct{ pattern, name, err string }{
		{"eth0", "eth0", ""},
		{"eth[01]", "eth0", ""},
		{"enp1*", "enp1s0", ""},
		{"e*0", "", "the pattern e*0 matches several interfaces, enp1s0, enp2s0, eth0, eth0.10: use one"},
		{"ens*", "", "no interface matches ens*"},
		{"eth1", "", "there is no interface eth1"},
	} {
		name, err := MatchOne(c.pattern, have)
		if name != c.name || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", c.pattern, name, err)
		}
	}
}

// Nodes of one cluster have NICs with different names: one pattern matches them.
func TestChooseByPattern(t *testing.T) {
	dev := func(name, addr string) device {
		d := device{Transport: Transport{Name: name}}
		if addr != "" {
			d.addrs = []netip.Addr{netip.MustParseAddr(addr)}
		}
		return d
	}
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for _, c := range []struct {
		pattern   string
		devices   []device
		name, err string
	}{
		{"en*", []device{dev("eno1", "192.0.2.1"), dev("eth0", "10.0.0.1")}, "eno1", ""},
		{"en*", []device{dev("enp3s0f0", "10.0.0.1"), dev("enp3s0f1", "")}, "enp3s0f0", ""}, // not the Node's address
		{"en*", []device{dev("eno2", "10.0.0.1"), dev("eno1", "192.0.2.1")}, "eno1", ""},    // the Node's, of several
		{"en*", []device{dev("eno1", ""), dev("eth0", "192.0.2.1")}, "", "no interface with an address matches transportInterface en*"},
		{"*", []device{dev("lo", "192.0.2.1"), dev("eth0", "10.0.0.1")}, "eth0", ""},
		{"en[op]*", []device{dev("eno1", "10.0.0.1"), dev("enp1s0", "10.0.1.1")}, "",
			"transportInterface en[op]* matches several interfaces with addresses, eno1 10.0.0.1; enp1s0 10.0.1.1, and"},
	} {
		got, err := choose(c.devices, node, c.pattern, nil)
		if got.Name != c.name || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s of %s: %q, %v", c.pattern, list(c.devices), got.Name, err)
		}
	}
}
