package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// In mode bridge nodes are behind a switch, and the host outside behind a router.
func TestRootBridgeMode(t *testing.T) {
	for _, f := range []underlay.IPFamily{underlay.IPv6, underlay.Dual} {
		t.Run(string(f), func(t *testing.T) {
			l := up(t, Options{Nodes: 2, IPFamily: f, Mode: underlay.Bridge, RoutePods: true})
			targets := slices.Concat(f.NodeAddrs(2), f.GatewayAddrs(), f.VLANGatewayAddrs(20), f.FarAddrs())
			if want := map[underlay.IPFamily]int{underlay.IPv6: 4, underlay.Dual: 8}[f]; len(targets) != want {
				t.Fatalf("%d targets, want %d", len(targets), want)
			}
			for _, to := range targets {
				ping(t, nodeExec(t, l, "node1", "ping", "-c3", "-i0.2", "-w30", to.Addr().String()))
			}
			for i, to := range f.NodeAddrs(1) {
				ping(t, nodeExec(t, l, underlay.Outside, "ping", "-c3", "-i0.2", "-w30", to.Addr().String()))
				for _, way := range [][2]string{{underlay.Outside, "node1"}, {"node1", underlay.Outside}, {"node2", "node1"}} {
					at := to.Addr()
					if way[1] == underlay.Outside {
						at = f.FarAddrs()[i].Addr()
					}
					if n, err := transfer(t, l, way[0], way[1], at.String(), 1_000_000); n != 1_000_000 || err != nil {
						t.Errorf("TCP from %s to %s: %d of 1000000 bytes, %v", way[0], at, n, err)
					}
				}
				route := nodeExec(t, l, underlay.Router, "ip", "route", "get", f.PodCIDRs(2)[i].Addr().Next().String())
				if want := f.NodeAddrs(2)[i].Addr().String() + " dev eth0"; !strings.Contains(route, want) {
					t.Errorf("the router sends pods of node2 by %s, want %q", route, want)
				}
			}
			t.Run("VLANs", func(t *testing.T) { portsCarryTheirVLANs(t, l, f) })
		})
	}
}

// vlanLegs creates a bridge with the NIC and a leg in each of the VLANs 10, 20 and 30.
const vlanLegs = `
ovs-vsctl --timeout=60 add-br br-t -- set Bridge br-t datapath_type=%s fail_mode=standalone -- add-port br-t eth0
for vlan in 10 20 30; do
	ovs-vsctl --timeout=60 add-port br-t leg$vlan tag=$vlan -- set Interface leg$vlan type=internal
	ip link set leg$vlan up
done`

// The ports of nodes are trunks with the VLANs 10 and 20, those of the router access ports.
func portsCarryTheirVLANs(t *testing.T, l *Lab, f underlay.IPFamily) {
	nodeExec(t, l, "node2", "sh", "-ec", fmt.Sprintf(vlanLegs, l.Datapath()))
	for _, vlan := range []uint16{10, 20, 30} {
		for i, gw := range f.VLANGatewayAddrs(10 * (vlan / 10 % 3)) {
			leg, addr := fmt.Sprint("leg", vlan), plus(gw, 40)
			nodeExec(t, l, "node2", "ip", "addr", "replace", addr.String(), "dev", leg, "nodad")
			if vlan != 30 {
				far := f.FarAddrs()[i].Addr()
				nodeExec(t, l, "node2", "ip", "route", "replace", far.String(), "via", gw.Addr().String(), "dev", leg)
				nodeExec(t, l, "node2", "ping", "-I", leg, "-c1", "-w30", gw.Addr().String())
				ping(t, nodeExec(t, l, underlay.Outside, "ping", "-c3", "-i0.2", "-w30", addr.Addr().String()))
				continue
			}
			// A tag that the port does not carry, with addresses of the untagged network.
			out, err := l.NodeExec(t.Context(), "node2", "ping", "-I", leg, "-c2", "-i0.02", "-W0.4", gw.Addr().String())
			if err == nil || !strings.Contains(out, " 0 received") {
				t.Errorf("family %d: VLAN 30 comes through: %s", i, out)
			}
		}
	}
}

// plus is the address that is n after p's, in the same network.
func plus(p netip.Prefix, n int) netip.Prefix {
	a := p.Addr()
	for range n {
		a = a.Next()
	}
	return netip.PrefixFrom(a, p.Bits())
}
