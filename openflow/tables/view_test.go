package tables

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// fullView has no field without a value.
func fullView() View {
	addrs, prefixes := []netip.Addr{netip.MustParseAddr("10.0.0.1")}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	return View{TunnelPort: 1, Uplink: 2, NodeAddrs: addrs, ViaHost: prefixes, RoutedMTU: 1450,
		Gateway: Gateway{Port: 3, MAC: api.MAC{2}, Addrs: addrs, PodCIDRs: prefixes},
		Pods:    []Pod{{Port: 4, MAC: api.MAC{4}, Addrs: addrs, Bridged: true, VLAN: 5}},
		Peers:   []Peer{{Name: "a", PodCIDRs: prefixes, Direct: prefixes, Tunnel: addrs[0]}}}
}

// Views differ if any field differs: a field that Equal ignored would leave old flows in place.
func TestViewEqual(t *testing.T) {
	if !fullView().Equal(fullView()) {
		t.Error("a view differs from itself")
	}
	parts := map[string]func(*View) reflect.Value{
		"View":    func(v *View) reflect.Value { return reflect.ValueOf(v).Elem() },
		"Gateway": func(v *View) reflect.Value { return reflect.ValueOf(&v.Gateway).Elem() },
		"Pod":     func(v *View) reflect.Value { return reflect.ValueOf(&v.Pods[0]).Elem() },
		"Peer":    func(v *View) reflect.Value { return reflect.ValueOf(&v.Peers[0]).Elem() },
	}
	for name, of := range parts {
		whole := fullView()
		for i := range of(&whole).NumField() {
			v := fullView()
			f := of(&v).Field(i)
			field := name + "." + of(&v).Type().Field(i).Name
			if f.IsZero() {
				t.Errorf("%s has no value in fullView", field)
			}
			f.SetZero()
			if v.Equal(fullView()) || fullView().Equal(v) {
				t.Errorf("Equal does not see %s", field)
			}
		}
	}
}
