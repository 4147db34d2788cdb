package pool

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/api"
)

// written is an IPPool named p with the given spec, in YAML.
func written(t testing.TB, spec string) api.IPPool {
	t.Helper()
	var p api.IPPool
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: p}\nspec: "+spec), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func must(t testing.TB, spec string) Pool {
	t.Helper()
	p, err := Read(written(t, spec))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// all are the pool's addresses, abbreviated.
func all(p Pool) string {
	var s []string
	for _, f := range p.Without(nil) {
		s = append(s, f.String())
	}
	return strings.Join(s, " ")
}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		spec, addresses string
		total           int64
	}{
		"Antrea's page, v1alpha2": {
			"{ipVersion: 4, ipRanges: [{start: 10.2.0.12, end: 10.2.0.20, gateway: 10.2.0.1, prefixLength: 24, vlan: 2}]}",
			"10.2.0.12-10.2.0.20", 9},
		"Antrea's page, a CIDR": {
			"{ipVersion: 4, ipRanges: [{cidr: 10.10.1.0/26, gateway: 10.10.1.1, prefixLength: 24}]}",
			"10.10.1.2-10.10.1.63", 62},
		"Antrea's page, IPv6": {
			"{ipVersion: 6, ipRanges: [{start: '3ffe:ffff:1:01ff::0100', end: '3ffe:ffff:1:01ff::0200', " +
				"gateway: '3ffe:ffff:1:01ff::1', prefixLength: 64}]}",
			"3ffe:ffff:1:1ff::100-3ffe:ffff:1:1ff::200", 257},
		"v1beta1": {
			"{ipRanges: [{cidr: 10.2.0.0/24}], subnetInfo: {gateway: 10.2.0.254, prefixLength: 24, vlan: 4094}}",
			"10.2.0.1-10.2.0.253", 253},
		"a part of a subnet keeps its first and last": {
			"{ipRanges: [{cidr: 10.2.0.64/26}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}}",
			"10.2.0.64-10.2.0.127", 64},
		"a gateway in the middle": {
			"{ipRanges: [{start: 10.2.0.1, end: 10.2.0.9}], subnetInfo: {gateway: 10.2.0.5, prefixLength: 24}}",
			"10.2.0.1-10.2.0.4 10.2.0.6-10.2.0.9", 8},
		"excludes": {
			"{ipRanges: [{cidr: 10.2.0.0/27}], subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}, " +
				"excludes: [10.2.0.7, 10.2.0.16/29, 10.2.0.28 - 10.2.0.30, 10.2.0.29, 10.9.9.9]}",
			"10.2.0.2-10.2.0.6 10.2.0.8-10.2.0.15 10.2.0.24-10.2.0.27 10.2.0.31", 18},
		"a subnet of two": {
			"{ipRanges: [{cidr: 10.2.0.0/31}], subnetInfo: {gateway: 10.2.0.0, prefixLength: 31}}",
			"10.2.0.1", 1},
		"a subnet of two, IPv6": {
			"{ipRanges: [{cidr: 'fd00::/127'}], subnetInfo: {gateway: 'fd00::1', prefixLength: 127}}",
			"fd00::", 1},
		"routers' anycast address": {
			"{ipRanges: [{cidr: 'fd00::/126'}], subnetInfo: {gateway: 'fd00::2', prefixLength: 64}}",
			"fd00::1 fd00::3", 2},
		"a /64 is more than fits": {
			"{ipRanges: [{cidr: 'fd00::/64'}], subnetInfo: {gateway: 'fe80::1', prefixLength: 64}}",
			"fd00::1-fd00::ffff:ffff:ffff:ffff", math.MaxInt64},
		"a /65 less three": {
			"{ipRanges: [{cidr: 'fd00::/65'}], subnetInfo: {gateway: 'fd00::1', prefixLength: 64}}",
			"fd00::2-fd00::7fff:ffff:ffff:ffff", math.MaxInt64 - 1},
		"two /65": {
			"{ipRanges: [{cidr: 'fd00::/65'}, {cidr: 'fd00:0:0:0:8000::/65'}], subnetInfo: {gateway: 'fd00::1', prefixLength: 64}}",
			"fd00::2-fd00::7fff:ffff:ffff:ffff fd00::8000:0:0:0-fd00::ffff:ffff:ffff:ffff", math.MaxInt64},
	} {
		p := must(t, c.spec)
		if got := all(p); got != c.addresses || p.Total() != c.total {
			t.Errorf("%s: %s, total %d, want %s, %d", name, got, p.Total(), c.addresses, c.total)
		}
	}
}

// Ranges of the old form have subnets of their own.
func TestReadSubnetPerRange(t *testing.T) {
	p := must(t, `{ipVersion: 4, ipRanges: [
	  {cidr: 10.2.1.0/24, gateway: 10.2.1.1, prefixLength: 24, vlan: 7},
	  {start: 10.2.0.12, end: 10.2.0.20, gateway: 10.2.0.1, prefixLength: 16}]}`)
	want := []Range{
		{Span{netip.MustParseAddr("10.2.1.0"), netip.MustParseAddr("10.2.1.255")}, netip.MustParseAddr("10.2.1.1"), 24, 7},
		{Span{netip.MustParseAddr("10.2.0.12"), netip.MustParseAddr("10.2.0.20")}, netip.MustParseAddr("10.2.0.1"), 16, 0},
	}
	if !slices.Equal(p.Ranges, want) || p.Family != 4 {
		t.Errorf("%+v, want %+v", p.Ranges, want)
	}
	if r, ok := p.RangeOf(netip.MustParseAddr("10.2.1.9")); !ok || r != want[0] {
		t.Errorf("RangeOf: %+v, %v", r, ok)
	}
	if got := all(p.InVLAN(7)); got != "10.2.1.2-10.2.1.254" {
		t.Errorf("in VLAN 7: %s", got)
	}
	if got := p.InVLAN(9); got.Total() != 0 || all(got) != "" {
		t.Errorf("in VLAN 9: %s", all(got))
	}
	for range p.InVLAN(9).From(netip.MustParseAddr("10.2.1.9")) {
		t.Error("an address where there is none")
	}
}

// Each rejection names the field and what to write instead.
func TestReadRefuses(t *testing.T) {
	const subnet = "subnetInfo: {gateway: 10.2.0.1, prefixLength: 24}"
	const ranges = "ipRanges: [{cidr: 10.2.0.0/24}]"
	oldForm := func(r string) string {
		return "{ipVersion: 4, ipRanges: [{" + r + ", gateway: 10.2.0.1, prefixLength: 24}]}"
	}
	info := func(i string) string { return "{" + ranges + ", subnetInfo: {" + i + "}}" }
	for spec, want := range map[string]string{
		"{}":               "IPPool p: spec.ipRanges is empty: add a range with cidr, or with start and end",
		"{" + ranges + "}": "spec has neither subnetInfo nor ipVersion: add subnetInfo with gateway and prefixLength, or ",
		"{ipVersion: 4, " + ranges + ", " + subnet + "}":                                         "spec has ipVersion and subnetInfo, which are two forms",
		"{ipVersion: 5, " + ranges + "}":                                                         "spec.ipVersion is 5: set 4 or 6",
		"{ipRanges: [{cidr: 10.2.0.0/24, gateway: 10.2.0.1}], " + subnet + "}":                   "spec.ipRanges[0] has gateway, prefixLength or vlan, and so has spec.subnetInfo: remove them",
		oldForm("cidr: 10.2.0.0/25, start: 10.2.0.2"):                                            "spec.ipRanges[0]: has cidr and start or end: keep cidr, or keep",
		oldForm("start: 10.2.0.2"):                                                               "has start 10.2.0.2 and no end: set end too",
		oldForm("end: 10.2.0.2"):                                                                 "has end 10.2.0.2 and no start: set start too",
		oldForm("vlan: 1"):                                                                       "has no addresses: set cidr, or start and end",
		oldForm("start: 10.2.0.9, end: 10.2.0.2"):                                                "start 10.2.0.9 is above end 10.2.0.2: swap them",
		oldForm("start: 10.2.0.9, end: 'fd00::1'"):                                               "10.2.0.9 and fd00::1 are of different families",
		oldForm("start: <ip>, end: 10.2.0.2"):                                                    `"<ip>" is not an IP address`,
		oldForm("start: '::ffff:10.2.0.9', end: 10.2.0.20"):                                      "IPv4 written as IPv6: write 10.2.0.9",
		oldForm("start: 'fe80::1%eth0', end: 'fe80::2'"):                                         "has a zone: write fe80::1",
		oldForm("cidr: 10.2.0.5/24"):                                                             "10.2.0.5/24 has host bits set: did you mean 10.2.0.0/24?",
		oldForm("cidr: 10.2.0.5"):                                                                `"10.2.0.5" is not a CIDR such as 10.2.0.0/24`,
		oldForm("cidr: '::ffff:10.2.0.0/120'"):                                                   "IPv4 written as IPv6",
		oldForm("cidr: 224.0.0.0/24"):                                                            "224.0.0.0-224.0.0.255 has 224.0.0.0, which is multicast",
		oldForm("start: 126.0.0.1, end: 128.0.0.1"):                                              "has 127.0.0.0, which is loopback",
		oldForm("cidr: 10.2.0.0/24, vlan: 4095"):                                                 "spec.ipRanges[0].vlan is 4095, which IEEE 802.1Q reserves and switches drop: use 1 to 4094, or 0 for untagged",
		oldForm("cidr: 10.2.0.0/24, vlan: 4096"):                                                 "spec.ipRanges[0].vlan is 4096: use 1 to 4094",
		oldForm("cidr: 10.2.0.0/24, vlan: -1"):                                                   "spec.ipRanges[0].vlan is -1: use 1 to 4094",
		oldForm("cidr: 10.2.0.0/23"):                                                             "spec.ipRanges[0]: 10.2.0.0-10.2.1.255 is not inside 10.2.0.0/24, the subnet of gateway 10.2.0.1 and prefixLength 24",
		oldForm("cidr: 10.3.0.0/24"):                                                             "10.3.0.0-10.3.0.255 is not inside 10.2.0.0/24",
		oldForm("cidr: 'fd00::/64'"):                                                             "spec.ipRanges[0].gateway 10.2.0.1 is IPv4, and fd00::-fd00::ffff:ffff:ffff:ffff is IPv6: set a router of that family",
		"{ipVersion: 6, ipRanges: [{cidr: 10.2.0.0/24, gateway: 10.2.0.1, prefixLength: 24}]}":   "10.2.0.0-10.2.0.255 is IPv4, and the pool is IPv6",
		"{ipRanges: [{cidr: 10.2.0.0/24}, {cidr: 'fd00::/64'}], " + subnet + "}":                 "spec.subnetInfo.gateway 10.2.0.1 is IPv4",
		info("prefixLength: 24"):                                                                 "spec.subnetInfo.gateway is missing: set the address of the underlay's router",
		info("gateway: 10.2.0.1"):                                                                "spec.subnetInfo.prefixLength is 0: set the length of the underlay's subnet, 1 to 31 for IPv4",
		info("gateway: 10.2.0.1, prefixLength: 32"):                                              "spec.subnetInfo.prefixLength is 32",
		info("gateway: x, prefixLength: 24"):                                                     `spec.subnetInfo.gateway "x" is not an IP address`,
		info("gateway: 0.0.0.0, prefixLength: 24"):                                               "0.0.0.0 is not a router's address",
		info("gateway: 169.254.1.1, prefixLength: 24"):                                           "169.254.1.1 is not a router's address",
		"{ipRanges: [{cidr: 'fd00::/63'}], subnetInfo: {gateway: 'fe80::1', prefixLength: 64}}":  "is not inside fd00::/64",
		"{ipRanges: [{cidr: 'fd00::/64'}], subnetInfo: {gateway: 'fe80::1', prefixLength: 128}}": "1 to 127 for IPv6",
		"{ipRanges: [{cidr: 10.2.0.128/25}, {cidr: 10.2.0.0/26}, {start: 10.2.0.60, end: 10.2.0.70}], " + subnet + "}": "spec.ipRanges[1] (10.2.0.0-10.2.0.63) and " +
			"spec.ipRanges[2] (10.2.0.60-10.2.0.70) both have 10.2.0.60: shorten one of them",
		"{" + ranges + ", " + subnet + ", excludes: [10.2.0.0/24]}": "no address is left for pods",
		"{" + ranges + ", " + subnet + ", excludes: ['fd00::1']}":   "spec.excludes[0]: fd00::1 is IPv6, and the pool is IPv4",
		"{" + ranges + ", " + subnet + ", excludes: [10.2.0.1-9]}":  `spec.excludes[0]: "10.2.0.1-9": "9" is not an IP address`,
	} {
		p, err := Read(written(t, spec))
		if err == nil || !strings.HasPrefix(err.Error(), "IPPool p: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n\tgot  %+v, %v\n\twant %s", spec, p, err, want)
		}
	}
	scoped := written(t, "{"+ranges+", "+subnet+"}")
	scoped.Annotations = map[string]string{api.AnnotationNetwork: "a.b"}
	if _, err := Read(scoped); err == nil || !strings.Contains(err.Error(), `ipam.fairlead.dev/network: "a.b" is not a DNS label`) {
		t.Errorf("a scope that can't be part of a name: %v", err)
	}
}

// FuzzRead checks what must hold for every pool that is accepted.
func FuzzRead(f *testing.F) {
	f.Add(4, "10.2.0.0/24", "", "", "10.2.0.1", 24, 2, "10.2.0.9", "10.2.0.77")
	f.Add(0, "", "10.2.0.1", "10.2.0.9", "10.2.0.5", 24, 0, "", "10.2.0.5")
	f.Add(6, "fd00::/64", "", "", "fe80::1", 64, 4094, "fd00::-fd00::9", "fd00::a")
	f.Fuzz(func(t *testing.T, version int, cidr, start, end, gateway string, bits, vlan int, exclude, at string) {
		p := api.IPPool{
			Spec: api.IPPoolSpec{IPVersion: version, IPRanges: []api.IPRange{{CIDR: cidr, Start: start, End: end}}}}
		subnet := api.SubnetInfo{Gateway: gateway, PrefixLength: bits, VLAN: vlan}
		if version == 0 {
			p.Spec.SubnetInfo = &subnet
		} else {
			p.Spec.IPRanges[0].SubnetInfo = subnet
		}
		if exclude != "" {
			p.Spec.Excludes = []string{exclude}
		}
		got, err := Read(p)
		if err != nil {
			return
		}
		checkPool(t, got)
		if a, err := netip.ParseAddr(at); err == nil {
			checkFrom(t, got, a)
		}
	})
}

func checkPool(t *testing.T, p Pool) {
	t.Helper()
	r, first := p.Ranges[0], p.At(0)
	if r.VLAN > 4094 || p.Total() < 1 || !p.Contains(first) || p.Check(first) != nil {
		t.Fatalf("%+v", p)
	}
	var spans []Span
	for _, s := range p.spans {
		spans = append(spans, s.Span)
		if !r.subnet().Contains(s.First) || !r.subnet().Contains(s.Last) || s.Contains(r.Gateway) || s.Last.Less(s.First) {
			t.Errorf("%s of %+v", s.Span, r)
		}
	}
	if left := r.Span.minus(spans); slices.ContainsFunc(left, func(s Span) bool { return p.Contains(s.First) }) {
		t.Errorf("%v is both handed out and not", left)
	}
	var n int64
	for _, prefix := range p.Prefixes() {
		if prefix != prefix.Masked() || !r.Contains(prefix.Addr()) || !r.Contains(last(prefix)) {
			t.Errorf("prefix %s of %s", prefix, r.Span)
		}
		n = saturated(n, Span{prefix.Addr(), last(prefix)}.size())
	}
	if n != r.size() {
		t.Errorf("%v are %d addresses, want %d", p.Prefixes(), n, r.size())
	}
}

func checkFrom(t *testing.T, p Pool, at netip.Addr) {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for a := range p.From(at) {
		if !p.Contains(a) || seen[a] {
			t.Fatalf("from %s: %s", at, a)
		}
		if seen[a] = true; len(seen) == 300 {
			return
		}
	}
	if int64(len(seen)) != p.Total() {
		t.Errorf("from %s: %d of %d addresses", at, len(seen), p.Total())
	}
}
