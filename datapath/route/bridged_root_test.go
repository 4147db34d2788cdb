package route

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// A bridged pod and its node reach each other over a gateway without addresses, with rp_filter=1, though the pod's
// subnet is that of the node's NIC. No neighbour resolution is needed towards the pod.
func TestRootBridgedPod(t *testing.T) {
	node, pod, underlay := nstest.New(t), nstest.New(t), nstest.New(t)
	nstest.Veth(node, "gw0", pod, "eth0")
	nstest.Veth(node, "nic", underlay, "port")
	node.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.gw0.rp_filter=1", "net.ipv4.conf.nic.rp_filter=1")
	for _, a := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		node.IP("addr add " + a + " dev nic" + nodad(a))
	}
	gatewayMAC := strings.Fields(node.IP("-br link show gw0"))[2]
	mac := api.MAC{0x0a, 0, 0, 0, 0, 0x32}
	pod.IP("link set eth0 address " + mac.String())
	for _, a := range []string{"192.0.2.50/24", "2001:db8::50/64"} {
		pod.IP("addr add " + a + " dev eth0" + nodad(a))
	}
	// In production the bridge answers pods' ARP; here nothing does.
	pod.IP("neigh replace 192.0.2.1 lladdr " + gatewayMAC + " dev eth0 nud permanent")
	pod.IP("neigh replace 2001:db8::1 lladdr " + gatewayMAC + " dev eth0 nud permanent")
	pings := func(wait string) (failed []string) {
		for _, p := range []struct {
			from *nstest.NS
			to   string
		}{{node, "192.0.2.50"}, {node, "2001:db8::50"}, {pod, "192.0.2.1"}, {pod, "2001:db8::1"}} {
			if _, err := p.from.Run("ping", "-c2", "-i0.2", "-W"+wait, p.to); err != nil {
				failed = append(failed, p.to)
			}
		}
		return failed
	}
	if failed := pings("1"); len(failed) != 4 {
		t.Fatalf("only %v are not reached without our routes: the test is meaningless", failed)
	}
	d := bridged(mac)
	if c := mustApply(t, node, d); c != (Changes{Added: 2, Neighbours: 2}) {
		t.Errorf("the first Apply says %+v", c)
	}
	if failed := pings("15"); failed != nil {
		t.Errorf("not reached: %v", failed)
	}
	for dst, want := range map[string]string{"192.0.2.50": "dev gw0 src 192.0.2.1", "2001:db8::50": "dev gw0 proto 102 src 2001:db8::1"} {
		if got := node.IP("route get " + dst); !strings.Contains(got, want) {
			t.Errorf("the way to %s is %s, want %s", dst, got, want)
		}
	}
	if c := mustApply(t, node, d); c != (Changes{}) {
		t.Errorf("the second Apply says %+v, want no change", c)
	}
	other := mac
	other[5]++
	if c := mustApply(t, node, bridged(other)); c != (Changes{Neighbours: 2}) {
		t.Errorf("with another MAC Apply says %+v", c)
	}
	if c := mustApply(t, node, Desired{Link: "gw0"}); c != (Changes{Removed: 2, Neighbours: 2}) {
		t.Errorf("an empty Apply says %+v", c)
	}
}

func bridged(mac api.MAC) Desired {
	d := Desired{Link: "gw0"}
	for dst, src := range map[string]string{"192.0.2.50/32": "192.0.2.1", "2001:db8::50/128": "2001:db8::1"} {
		d.Routes = append(d.Routes, Route{Dst: netip.MustParsePrefix(dst), Src: netip.MustParseAddr(src), MAC: mac})
	}
	return d
}

func nodad(addr string) string {
	if strings.Contains(addr, ":") {
		return " nodad"
	}
	return ""
}

// A route's own MTU is set, and restored after an external change.
func TestRootMTU(t *testing.T) {
	node, _ := fabric(t)
	d := routes("10.0.2.0/24", "fd00:2::/64")
	mustApply(t, node, d)
	for i := range d.Routes {
		d.Routes[i].MTU = 1400
	}
	if c := mustApply(t, node, d); c != (Changes{Replaced: 2}) {
		t.Errorf("Apply says %+v, want both replaced", c)
	}
	for _, dst := range []string{"10.0.2.5", "fd00:2::5"} {
		if got := node.IP("route get " + dst); !strings.Contains(got, "mtu 1400") {
			t.Errorf("no MTU: %s", got)
		}
	}
	if c := mustApply(t, node, d); c != (Changes{}) {
		t.Errorf("the second Apply says %+v, want no change", c)
	}
}
