package attachments

import (
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// The file names of one container's interfaces are distinct: for its own interface, and for each network of another
// plugin.
func TestHostOf(t *testing.T) {
	o := api.AllocationOwner{ContainerID: "c1", IfName: "net1", Network: "a"}
	names := map[string]bool{}
	for range 2 { // the same ones after a reboot
		for _, network := range []string{"a", "b"} {
			o.Network, o.IPAMOnly = network, true
			names[HostOf(o)] = true
		}
		o.IPAMOnly = false
		names[HostOf(o)] = true
		o.Netns, o.BootID = "/run/netns/x", "boot"
	}
	if len(names) != 3 {
		t.Errorf("the names are %v, want three", names)
	}
}

func TestHolder(t *testing.T) {
	addrs := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	r := Records{Pods: map[string]ovsdb.PodPort{
		"fl1": {Attachment: api.Attachment{Addrs: addrs("10.0.1.2/24", "fd00::2/64"), BootID: "now"}},
		"fl2": {Attachment: api.Attachment{Addrs: addrs("10.0.1.3/24"), BootID: "before"}},
	}}
	for _, c := range []struct {
		what, host string
		addrs      []netip.Prefix
		want       string
	}{
		{"free", "fl3", addrs("10.0.1.4/24", "fd00::4/64"), ""},
		{"IPv4 taken, of a podCIDR that has grown", "fl3", addrs("10.0.1.2/23"), "fl1"},
		{"IPv6 taken", "fl3", addrs("10.0.1.4/24", "fd00::2/64"), "fl1"},
		{"its own", "fl1", addrs("10.0.1.2/24"), ""},
		{"of another boot", "fl3", addrs("10.0.1.3/24"), ""},
	} {
		if got := r.Holder(c.addrs, c.host, "now"); got != c.want {
			t.Errorf("%s: held by %q, want %q", c.what, got, c.want)
		}
	}
}
