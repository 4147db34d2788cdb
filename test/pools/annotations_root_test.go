package pools

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

const annotated = "apiVersion: v1\nkind: Namespace\nmetadata: {name: annotated, annotations: {ipam.antrea.io/ippools: ns10}}\n"

// The pod has what its annotations request: addresses, mask, gateway, and the same in its record.
func TestRootAnnotations(t *testing.T) {
	b := cluster(t)
	b.apply(t, annotated, poolYAML("ns10", 4, 10, "100", "109"), poolYAML("four10", 4, 10, "110", "119"),
		poolYAML("six10", 6, 10, "1000", "100f"), poolYAML("one0", 4, 0, "130", "130"), poolYAML("more0", 4, 0, "140", "149"),
		poolYAML("six0", 6, 0, "2000", "200f"),
		poolYAML("named10", 4, 10, "120", "129"))
	cases := []struct {
		pod         string
		annotations []string
		want        []string // prefixes of the addresses' texts
		vlan        uint16
	}{
		{"of-pod", []string{`ippools: four10`}, []string{"192.168.110.11"}, 10},
		{"annotated/of-namespace", nil, []string{"192.168.110.10"}, 10},
		{"annotated/pod-wins", []string{`ippools: four10`}, []string{"192.168.110.11"}, 10},
		{"annotated/named", []string{`pod-ips: 192.168.110.107`}, []string{"192.168.110.107"}, 10},
		{"dual", []string{`ippools: "named10,six10"`, `pod-ips: 192.168.110.129`}, []string{"192.168.110.129", "fd77:0:0:a10::100"}, 10},
		{"six", []string{`ippools: six0`}, []string{"fd77::200"}, 0},
		{"first", []string{`ippools: "one0, more0, six0"`}, []string{"192.168.77.130", "fd77::200"}, 0},
		{"falls-through", []string{`ippools: "one0, more0, six0"`}, []string{"192.168.77.14", "fd77::200"}, 0},
	}
	var pods []string
	for _, c := range cases {
		b.apply(t, podYAML(c.pod, node, c.annotations...))
		ips := b.running(t, c.pod)
		if len(ips) != len(c.want) {
			t.Errorf("%s has %v, want %v", c.pod, ips, c.want)
			continue
		}
		for i, ip := range ips {
			if !strings.HasPrefix(ip.String(), c.want[i]) {
				t.Errorf("%s has %s, want %s…", c.pod, ip, c.want[i])
			}
			b.looksRight(t, c.pod, ip, c.vlan)
		}
		pods = append(pods, c.pod)
	}
	b.holdsExactly(t, 5*time.Second, pods...)
	b.remove(t, pods...)
	b.holdsExactly(t, 5*time.Second)
}

// looksRight checks the pod's interface and the record of its port.
func (b *bed) looksRight(t *testing.T, pod string, ip netip.Addr, vlan uint16) {
	t.Helper()
	rec := b.record(t, pod)
	gateway := underlay.Dual.VLANGatewayAddrs(vlan)[0]
	if ip.Is6() {
		gateway = underlay.Dual.VLANGatewayAddrs(vlan)[1]
	}
	addr := fmt.Sprintf("%s/%d", ip, gateway.Bits())
	for _, want := range []struct{ command, text string }{
		{"ip addr show dev eth0", addr}, {"ip link show dev eth0", "mtu 1500"},
		{"ip route show default", "via"}, {"ip -6 route show default", "via"},
	} {
		family := strings.Contains(want.command, "-6") == ip.Is6() || !strings.Contains(want.command, "route")
		if !family {
			continue
		}
		text := want.text
		if text == "via" {
			text = "via " + gateway.Addr().String()
		}
		out, err := b.PodExec(labtest.Within(t, 20*time.Second), rec.Pod(), strings.Fields(want.command)...)
		if err != nil || !strings.Contains(out, text) {
			t.Errorf("%s: %s: %v %q, want %q", pod, want.command, err, out, text)
		}
	}
	for _, a := range b.allocations(t) {
		if a.Spec.Address == ip.String() && a.Spec.Owner.ContainerID == rec.ContainerID {
			o := a.Spec.Owner
			if o.Node != node || o.IfName != "eth0" || o.PodUID != rec.UID || o.BootID == "" || o.Netns != rec.Netns ||
				a.Spec.Phase != api.PhaseAllocated {
				t.Errorf("%s: the allocation is %+v", pod, a.Spec)
			}
			return
		}
	}
	t.Errorf("%s: no pod holds %s", pod, ip)
}

// Each mistake is reported by the plugin and by an Event on the Pod, and leaves nothing behind.
func TestRootRefused(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("four10", 4, 10, "110", "119"), poolYAML("six20", 6, 20, "1000", "100f"),
		poolYAML("old", 4, 0, "150", "159"))
	must(t, b.poolThere(t, "old"))
	time.Sleep(1100 * time.Millisecond) // ages are in seconds
	b.apply(t, poolYAML("young", 4, 0, "155", "160"), poolYAML("onnode", 4, 0, "5", "20"))
	for _, c := range []struct{ pod, annotations, want string }{
		{"unknown", `ippools: fuor10`, `Pod default/unknown asks for IPPool fuor10: there is no such IPPool. There are `},
		{"overlap", `ippools: young`, `pool young has address 192.168.77.155, and so has IPPool old: shorten spec.ipRanges`},
		{"on-node", `ippools: onnode`, `pool onnode has address 192.168.77.11, and so has node node1: shorten`},
		{"outside", `ippools: four10|pod-ips: 192.168.110.7`, `192.168.110.7 is outside of pool four10. Choose another address`},
		{"family", `ippools: four10|pod-ips: "fd77::7"`, `it is IPv6, but no IPv6 pool is among four10`},
		{"vlans", `ippools: "four10,six20"`, `a pod is in one VLAN. Name two pools of the same spec vlan`},
		{"syntax", `ippools: "four10,,x"`, `which has an extra comma`},
		{"nopool", `pod-ips: 192.168.110.117`, `neither the Pod nor its Namespace names a pool`},
	} {
		b.apply(t, podYAML(c.pod, node, strings.Split(c.annotations, "|")...))
		b.event(t, c.pod, "AddressAllocationFailed", c.want)
		wait(t, 20*time.Second, func() string {
			if got := b.record(t, c.pod).LastError; !strings.Contains(got, c.want) {
				return fmt.Sprintf("%s: the plugin says\n%s\nwant\n%s", c.pod, got, c.want)
			}
			return ""
		})
	}
	b.holdsNow(t)
	b.remove(t, "unknown", "overlap", "on-node", "outside", "family", "vlans", "syntax", "nopool")
	if all := b.allocations(t); len(all) > 0 {
		t.Errorf("refused pods left %+v", all)
	}
}

func (b *bed) poolThere(t *testing.T, name string) error {
	_, err := b.ippools.Get(labtest.Within(t, 20*time.Second), name, metav1.GetOptions{})
	return err
}

// A full pool reports how many addresses are in use, and serves the waiting pod as soon as another is deleted.
func TestRootExhausted(t *testing.T) {
	b := cluster(t)
	b.apply(t, poolYAML("two", 4, 20, "110", "111"), podYAML("a", node, "ippools: two"), podYAML("b", "node2", "ippools: two"))
	a, other := b.running(t, "a")[0], b.running(t, "b")[0]
	if a == other {
		t.Fatalf("a and b both have %s", a)
	}
	b.apply(t, podYAML("c", node, "ippools: two"), podYAML("d", "node2", "ippools: two", "pod-ips: "+a.String()))
	b.event(t, "c", "AddressAllocationFailed", "pool two is exhausted: 2 of 2 addresses are in use")
	b.event(t, "d", "AddressAllocationFailed", a.String(), "default/a") // the address is held, and by whom
	b.remove(t, "d")
	b.remove(t, "b")
	if got := b.running(t, "c")[0]; got != other {
		t.Errorf("c has %s, want %s, which became free", got, other)
	}
	b.remove(t, "a", "c")
	b.holdsExactly(t, 5*time.Second)
}
