package ordinals

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

func poolFor(t *testing.T, text string) pool.Pool {
	t.Helper()
	p, err := pool.Read(poolObject(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// poolObject is an IPPool: "NAME VLAN FIRST-LAST".
func poolObject(text string) api.IPPool {
	f := strings.Fields(text)
	first, last, _ := strings.Cut(f[2], "-")
	subnet := &api.SubnetInfo{Gateway: "10.2.255.254", PrefixLength: 16}
	if strings.Contains(first, ":") {
		subnet = &api.SubnetInfo{Gateway: "fe80::1", PrefixLength: 64}
	}
	fmt.Sscan(f[1], &subnet.VLAN)
	return api.IPPool{ObjectMeta: metav1.ObjectMeta{Name: f[0]},
		Spec: api.IPPoolSpec{IPRanges: []api.IPRange{{Start: first, End: last}}, SubnetInfo: subnet}}
}

func addrs(text string) (out []netip.Addr) {
	for _, f := range strings.Fields(text) {
		out = append(out, netip.MustParseAddr(f))
	}
	return out
}

func TestPlace(t *testing.T) {
	const a, b, six = "a 0 10.2.0.1-10.2.0.10", "b 0 10.2.1.1-10.2.1.9", "six 0 fd00::1-fd00::9"
	for _, c := range []struct {
		name, pools, used, have, named, slots string
		want, rest                            string
	}{
		{"a block", a, "", "", "", "0/4 1/4 2/4", "0=10.2.0.1 1=10.2.0.2 2=10.2.0.3", ""},
		{"the smallest gap", a, "10.2.0.4", "", "", "0/4 1/4 2/4", "0=10.2.0.1 1=10.2.0.2 2=10.2.0.3", ""},
		{"behind what is used", a, "10.2.0.2", "", "", "0/4 1/4 2/4", "0=10.2.0.3 1=10.2.0.4 2=10.2.0.5", ""},
		{"a block of the next pool", a + "," + b, "10.2.0.3 10.2.0.6 10.2.0.9", "", "", "0/4 1/4 2/4",
			"0=10.2.1.1 1=10.2.1.2 2=10.2.1.3", ""},
		{"scattered", a, "10.2.0.2 10.2.0.4 10.2.0.6 10.2.0.8 10.2.0.10", "", "", "0/4 1/4 2/4", "0=10.2.0.1 1=10.2.0.3 2=10.2.0.5", ""},
		{"scattered over pools", a + "," + b, "10.2.0.1 10.2.0.2 10.2.0.3 10.2.0.4 10.2.0.5 10.2.0.6 10.2.0.7 10.2.0.9 10.2.0.10 10.2.1.1 " +
			"10.2.1.3 10.2.1.4 10.2.1.5 10.2.1.6 10.2.1.7 10.2.1.8 10.2.1.9", "", "", "0/4 1/4", "0=10.2.0.8 1=10.2.1.2", ""},
		{"too few", a, "10.2.0.2 10.2.0.3 10.2.0.4 10.2.0.5 10.2.0.6 10.2.0.7 10.2.0.8 10.2.0.9 10.2.0.10", "", "", "4/4 5/4",
			"4=10.2.0.1", "[{5 4}]"},
		{"continued", a, "10.2.0.4 10.2.0.5", "3=10.2.0.4 4=10.2.0.5", "", "5/4 6/4", "5=10.2.0.6 6=10.2.0.7", ""},
		{"continued before", a, "10.2.0.4", "3=10.2.0.4", "", "1/4 2/4", "1=10.2.0.2 2=10.2.0.3", ""},
		{"a hole is filled", a, "10.2.0.4 10.2.0.6", "3=10.2.0.4 5=10.2.0.6", "", "4/4", "4=10.2.0.5", ""},
		{"not continued", a, "10.2.0.4 10.2.0.5", "3=10.2.0.4", "", "4/4 5/4", "4=10.2.0.1 5=10.2.0.2", ""},
		{"not before the first", a, "10.2.0.1", "3=10.2.0.1", "", "2/4", "2=10.2.0.2", ""},
		{"two families", a + "," + six, "fd00::1", "", "", "0/4 0/6 1/4 1/6", "0=10.2.0.1 1=10.2.0.2 0=fd00::2 1=fd00::3", ""},
		{"one VLAN", "x 7 10.2.0.1-10.2.0.9,y 8 10.2.1.1-10.2.1.9,z 8 fd00::1-fd00::9", "", "", "", "0/4 0/6", "0=10.2.1.1 0=fd00::1", ""},
		{"the VLAN of the other", "x 7 10.2.0.1-10.2.0.9,y 8 fd00::1-fd00::9,z 7 fd00:0:0:0:1::1-fd00:0:0:0:1::9", "10.2.0.3", "0=10.2.0.3", "",
			"0/6", "0=fd00:0:0:0:1::1", ""},
		{"named", a, "10.2.0.7", "", "0=10.2.0.9 1=10.2.0.7 2=10.2.0.2", "0/4 1/4 2/4", "0=10.2.0.9 2=10.2.0.2", "[{1 4}]"},
	} {
		p := placing{used: addrs(c.used), have: map[Slot]netip.Addr{}, named: map[Slot]netip.Addr{}}
		for _, text := range strings.Split(c.pools, ",") {
			p.pools = append(p.pools, poolFor(t, text))
		}
		for into, text := range map[*map[Slot]netip.Addr]string{&p.have: c.have, &p.named: c.named} {
			for _, f := range strings.Fields(text) {
				n, addr, _ := strings.Cut(f, "=")
				s := Slot{Family: 4}
				fmt.Sscan(n, &s.Ordinal)
				(*into)[s] = netip.MustParseAddr(addr)
			}
		}
		var slots []Slot
		for _, f := range strings.Fields(c.slots) {
			var s Slot
			fmt.Sscanf(f, "%d/%d", &s.Ordinal, &s.Family)
			slots = append(slots, s)
		}
		chosen, rest := p.place(slots)
		var got []string
		for _, x := range chosen {
			got = append(got, fmt.Sprintf("%d=%s", x.Ordinal, x.Addr))
		}
		restText := ""
		if len(rest) > 0 {
			restText = fmt.Sprint(rest)
		}
		want := strings.ReplaceAll(c.want, "fd00:0:0:0:1::1", "fd00::1:0:0:1")
		if strings.Join(got, " ") != want || restText != c.rest {
			t.Errorf("%s: %v, rest %v; want %s, rest %s", c.name, got, rest, want, c.rest)
		}
	}
}

// keptFor is an allocation that is reserved for an ordinal: "ADDRESS ORDINAL [PHASE [POOL]]".
func keptFor(text string) api.IPAllocation {
	f := strings.Fields(text)
	f = append(f, []string{"Reserved", "a"}[len(f)-2:]...)
	a := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", netip.MustParseAddr(f[0]))},
		Spec: api.IPAllocationSpec{Address: f[0], Pool: f[3], Phase: api.AllocationPhase(f[2]),
			Reservation: &api.AllocationReservation{Kind: api.KindStatefulSet, UID: "u"}}}
	fmt.Sscan(f[1], &a.Spec.Reservation.Ordinal)
	return a
}

func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		name             string
		start, replicas  int32
		pools, ips       string
		have             string // comma-separated
		missing, surplus string
	}{
		{"new", 0, 2, "a", "", "", "[{0 4} {1 4}]", "[]"},
		{"start", 5, 2, "a", "", "10.2.0.1 5", "[{6 4}]", "[]"},
		{"start is moved", 5, 2, "a", "", "10.2.0.1 0,10.2.0.2 5,10.2.0.3 6", "[]", "[10.2.0.1]"},
		{"two families", 0, 1, "a,six", "", "10.2.0.1 0", "[{0 6}]", "[]"},
		{"scaled down", 0, 1, "a", "", "10.2.0.1 0,10.2.0.2 1,10.2.0.3 2 Allocated", "[]", "[10.2.0.2]"},
		{"to nothing", 0, 0, "a", "", "10.2.0.1 0,10.2.0.2 1 Allocated", "[]", "[10.2.0.1]"},
		{"two of one", 0, 1, "a", "", "10.2.0.2 0,10.2.0.1 0", "[]", "[10.2.0.2]"},
		{"what a pod has counts", 0, 1, "a", "", "10.2.0.2 0 Allocated,10.2.0.1 0", "[]", "[10.2.0.1]"},
		{"family given up", 0, 1, "a", "", "10.2.0.2 0,fd00::1 0", "[]", "[fd00::1]"},
		{"annotation removed", 0, 2, "", "", "10.2.0.2 0,10.2.0.3 1 Allocated", "[]", "[10.2.0.2]"},
		{"pool misspelt", 0, 1, "aa", "", "10.2.0.2 0,10.2.0.3 1", "[]", "[10.2.0.3]"},
		{"pool gone", 0, 1, "a", "", "10.2.0.2 0,10.2.0.3 1 Allocated gone,10.2.0.4 0 Reserved gone", "[]", "[10.2.0.4]"},
		{"all gone", 0, 1, "gone", "", "10.2.0.4 0 Reserved gone", "[]", "[10.2.0.4]"},
		{"named", 0, 2, "a", "10.2.0.5,10.2.0.6", "10.2.0.5 0,10.2.0.9 1", "[]", "[10.2.0.9]"},
		{"too few named", 0, 2, "a", "10.2.0.5", "10.2.0.5 0,10.2.0.6 1", "[]", "[10.2.0.6]"},
	} {
		four, six := poolObject("a 0 10.2.0.1-10.2.0.10"), poolObject("six 0 fd00::1-fd00::9")
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "u"}}
		set.Spec.Replicas, set.Spec.Ordinals = &c.replicas, &appsv1.StatefulSetOrdinals{Start: c.start}
		set.Spec.Template.Annotations = map[string]string{api.AnnotationPools: c.pools, api.AnnotationPodIPs: c.ips}
		var have []api.IPAllocation
		for _, text := range strings.Split(c.have, ",") {
			if text != "" {
				have = append(have, keptFor(text))
			}
		}
		n := NewView([]*api.IPPool{&four, &six}, []*corev1.Namespace{}).Needs(set)
		surplus := []string{}
		for _, a := range n.Surplus(have) {
			surplus = append(surplus, a.Spec.Address)
		}
		if got := fmt.Sprint(n.Missing(have)); got != c.missing || fmt.Sprint(surplus) != c.surplus {
			t.Errorf("%s: missing %s, surplus %v; want %s, %s (%v)", c.name, got, surplus, c.missing, c.surplus, n.Err)
		}
	}
}
