package pool

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
)

const small = `{ipRanges: [{start: 10.2.0.12, end: 10.2.0.14}, {start: 10.2.0.3, end: 10.2.0.4}],
  subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}, excludes: [10.2.0.13]}`

func TestFromGoesRound(t *testing.T) {
	p := must(t, small)
	for at, want := range map[string]string{
		"10.2.0.12": "12 14 3 4",
		"10.2.0.13": "14 3 4 12",
		"10.2.0.4":  "4 12 14 3",
		"10.2.0.99": "3 4 12 14",
		"10.2.0.0":  "3 4 12 14",
	} {
		var got []string
		for a := range p.From(netip.MustParseAddr(at)) {
			got = append(got, strings.TrimPrefix(a.String(), "10.2.0."))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("from %s: %v, want %s", at, got, want)
		}
	}
}

func TestAt(t *testing.T) {
	p := must(t, small)
	var got []string
	for n := range p.Total() + 1 {
		got = append(got, p.At(n).String())
	}
	if want := "10.2.0.3 10.2.0.4 10.2.0.12 10.2.0.14 invalid IP"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	big := must(t, "{ipRanges: [{cidr: 'fd00::/64'}], subnetInfo: {gateway: 'fe80::1', prefixLength: 64}}")
	if a := big.At(1 << 40); a != netip.MustParseAddr("fd00::100:0:1") {
		t.Errorf("number 2^40 of a /64: %s", a)
	}
}

// The reasons are for users who requested that address.
func TestCheck(t *testing.T) {
	p := must(t, "{ipRanges: [{cidr: 10.2.0.0/24}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}, excludes: [10.2.0.13]}")
	for addr, want := range map[string]string{
		"10.2.0.1":   "10.2.0.1 is the gateway of pool p",
		"10.2.0.0":   "10.2.0.0 is not a pod address in the subnet 10.2.0.0/24 of pool p",
		"10.2.0.255": "10.2.0.255 is not a pod address in the subnet 10.2.0.0/24 of pool p",
		"10.2.0.13":  "10.2.0.13 is one of the spec.excludes of pool p",
		"10.2.1.13":  "10.2.1.13 is outside of pool p",
		"fd00::1":    "fd00::1 is outside of pool p",
		"10.2.0.2":   "<nil>",
	} {
		if got := fmt.Sprint(p.Check(netip.MustParseAddr(addr))); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

func TestPrefixes(t *testing.T) {
	p := must(t, "{ipRanges: [{start: 10.2.0.1, end: 10.2.0.6}, {cidr: 10.2.0.128/25}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}}")
	if got := fmt.Sprint(p.Prefixes()); got != "[10.2.0.1/32 10.2.0.2/31 10.2.0.4/31 10.2.0.6/32 10.2.0.128/25]" {
		t.Errorf("%s", got)
	}
	if got := fmt.Sprint(p.Allocatable()); got != "[10.2.0.2/31 10.2.0.4/31 10.2.0.6/32 10.2.0.128/26 10.2.0.192/27 "+
		"10.2.0.224/28 10.2.0.240/29 10.2.0.248/30 10.2.0.252/31 10.2.0.254/32]" {
		t.Errorf("without gateway and broadcast address: %s", got)
	}
}

// The controller passes the free map to the agents; it is only a hint.
func TestFreeMap(t *testing.T) {
	p := must(t, small)
	var used []netip.Addr
	for _, a := range []string{"10.1.0.3", "10.2.0.1", "10.2.0.3", "10.2.0.8", "10.2.0.13", "10.2.0.15", "fd00::1"} {
		used = append(used, netip.MustParseAddr(a)) // including those of other pools
	}
	free := p.Without(used)
	if got := fmt.Sprint(free); got != "[10.2.0.4 10.2.0.12 10.2.0.14]" {
		t.Errorf("free: %s", got)
	}
	w := written(t, small)
	w.Status.FreeMap = []string{"10.2.0.0-10.2.0.3", "nonsense", "fd00::1", "10.2.0.13-10.2.0.200"}
	p, err := Read(w)
	if err != nil {
		t.Fatal(err)
	}
	if got := all(p.Hinted()); got != "10.2.0.3 10.2.0.14" {
		t.Errorf("hinted: %s", got)
	}
	if p.Free.Complete {
		t.Error("a map by no controller is complete")
	}
	w.Status.Usage = &api.PoolUsage{Total: p.Total()}
	if p, err = Read(w); err != nil || p.Free.Complete {
		t.Errorf("%v, or a map with entries that were skipped is complete", err)
	}
	w.Status.FreeMap = w.Status.FreeMap[:1]
	if p, err = Read(w); err != nil || !p.Free.Complete {
		t.Errorf("%v, or the map is not complete", err)
	}
	w.Spec.IPRanges = append(w.Spec.IPRanges, api.IPRange{Start: "10.2.0.100", End: "10.2.0.101"})
	if p, err = Read(w); err != nil || p.Free.Complete {
		t.Errorf("%v, or the map before the pool was extended is complete", err)
	}
	w.Status.FreeMap = slices.Repeat([]string{"10.2.0.1"}, api.PoolFreeMapMost)
	if p, err = Read(w); err != nil || p.Free.Complete {
		t.Errorf("%v, or a map that was cut is complete", err)
	}
}

func TestOverlaps(t *testing.T) {
	read := func(name, cidr, gateway, scope string, created int64, excludes ...string) Pool {
		p, err := Read(api.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.AnnotationNetwork: scope},
				CreationTimestamp: metav1.NewTime(time.Unix(created, 0))},
			Spec: api.IPPoolSpec{IPRanges: []api.IPRange{{CIDR: cidr}}, Excludes: excludes,
				SubnetInfo: &api.SubnetInfo{Gateway: gateway, PrefixLength: 16}}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	others := Others{
		Pools: []Pool{
			read("old", "10.2.0.0/25", "10.2.9.1", "", 1), read("a", "10.2.1.0/24", "10.2.9.1", "", 5),
			read("z", "10.2.1.0/24", "10.2.9.1", "", 5), read("lab", "10.2.0.0/17", "10.2.200.1", "lab", 1),
			read("router", "10.2.77.0/24", "10.2.8.8", "", 9),
		},
		Nodes: []Node{
			{Name: "n2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.3.0/24"), netip.MustParsePrefix("fd00::/64")}},
			{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.4.0/24")},
				Addresses: []netip.Addr{netip.MustParseAddr("10.2.5.5"), netip.MustParseAddr("fd00::1")}},
			{Name: "n3", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/24")},
				Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.3")}}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.6.0/24")},
	}
	for _, c := range []struct {
		pool Pool
		want string
	}{
		{read("p", "10.2.7.0/24", "10.2.9.1", "", 5), ""},
		{read("p", "10.2.0.0/24", "10.2.9.1", "", 5), "IPPool old 10.2.0.1 true"},
		{read("p", "10.2.0.0/24", "10.2.9.1", "", 5, "10.2.0.0/25"), ""},
		{read("p", "10.2.1.0/25", "10.2.9.1", "", 5), "IPPool a 10.2.1.0 true, IPPool z 10.2.1.0 false"},
		{read("old", "10.2.0.0/24", "10.2.9.1", "", 1), ""},
		{read("p", "10.2.2.0/23", "10.2.9.1", "", 5), "the podCIDR 10.2.3.0/24 of node n2 10.2.3.0 true"},
		{read("p", "10.2.4.0/22", "10.2.9.1", "", 5), "the podCIDR 10.2.4.0/24 of node n1 10.2.4.0 true, " +
			"the Service CIDR 10.2.6.0/24 10.2.6.0 true, node n1 10.2.5.5 true"},
		{read("p", "10.2.5.0/24", "10.2.9.1", "", 5, "10.2.5.5"), ""},
		{read("p", "10.2.8.0/24", "10.2.9.1", "", 5), "the gateway of IPPool router 10.2.8.8 false"},
		{read("p", "10.2.7.0/24", "10.2.77.3", "", 10), "IPPool router 10.2.77.3 true"},
		{read("p", "10.2.0.0/17", "10.2.200.1", "lab", 2), "IPPool lab 10.2.0.1 true"},
		{read("p", "10.2.0.0/17", "10.2.200.1", "other", 2), ""},
	} {
		var got []string
		for _, o := range c.pool.Overlaps(others) {
			got = append(got, fmt.Sprintf("%s %s %v", o.With, o.Address, o.Yields))
		}
		with := others
		with.Pools = append(slices.Clone(others.Pools), c.pool)
		if with = with.Relevant(); !reflect.DeepEqual(c.pool.Overlaps(with), c.pool.Overlaps(others)) {
			t.Errorf("%s: without others that are of no relevance there are other overlaps", c.pool.Prefixes())
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s %s:\n\tgot  %s\n\twant %s", c.pool.Name, c.pool.Prefixes(), strings.Join(got, ", "), c.want)
		}
	}
	o := Overlap{Pool: "p", Address: netip.MustParseAddr("10.2.0.1"), With: "IPPool old"}
	if want := "pool p has address 10.2.0.1, and so has IPPool old: shorten"; !strings.HasPrefix(o.String(), want) {
		t.Errorf("%s, want %s…", o, want)
	}
}

func TestSpanMinus(t *testing.T) {
	span := func(s string) Span {
		out, err := ParseSpan(s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, c := range []struct{ from, taken, want string }{
		{"10.0.0.1-10.0.0.9", "", "10.0.0.1-10.0.0.9"},
		{"10.0.0.1-10.0.0.9", "10.0.0.5 10.0.0.4-10.0.0.6 10.0.0.1", "10.0.0.2-10.0.0.3 10.0.0.7-10.0.0.9"},
		{"10.0.0.1-10.0.0.9", "10.0.0.0-10.0.0.255", ""},
		{"10.0.0.1-10.0.0.9", "10.0.0.9 10.0.0.2-10.0.0.3 10.0.0.3-10.0.0.8", "10.0.0.1"},
		{"fd00::-fd00::9", "10.0.0.0/8 fd00::3", "fd00::-fd00::2 fd00::4-fd00::9"},
	} {
		var taken []Span
		for _, s := range strings.Fields(c.taken) {
			taken = append(taken, span(s))
		}
		var got []string
		for _, s := range span(c.from).minus(taken) {
			got = append(got, s.String())
		}
		if !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s without %s: %v, want %s", c.from, c.taken, got, c.want)
		}
	}
}
