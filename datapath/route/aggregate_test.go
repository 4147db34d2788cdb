package route

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestAggregate(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "",
		"10.0.1.0/24":                         "10.0.1.0/24",
		"10.0.0.0/24 10.0.1.0/24":             "10.0.0.0/23",
		"10.0.1.0/24 10.0.2.0/24":             "10.0.1.0/24 10.0.2.0/24",
		"10.0.3.0/24 10.0.1.0/24 10.0.2.0/24": "10.0.1.0/24 10.0.2.0/23",
		"10.0.0.0/24 10.0.1.0/24 10.0.2.0/23": "10.0.0.0/22",
		"10.0.0.0/16 10.0.7.0/24 10.0.7.0/24": "10.0.0.0/16",
		"10.0.1.9/24":                         "10.0.1.0/24",
		"0.0.0.0/1 128.0.0.0/1":               "0.0.0.0/0",
		"fd00::/65 fd00:0:0:0:8000::/65 0.0.0.0/0 10.0.0.0/8": "0.0.0.0/0 fd00::/64",
	} {
		var prefixes []netip.Prefix
		for s := range strings.FieldsSeq(in) {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		if got := strings.Trim(fmt.Sprint(Aggregate(prefixes)), "[]"); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// Over all 256 addresses of a /24: the same ones are covered before and after, and no two prefixes can be merged
// further.
func TestAggregateIsExactAndSmallest(t *testing.T) {
	for range 2000 {
		var prefixes []netip.Prefix
		var covered [256]bool
		for range rand.IntN(40) {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rand.IntN(256))}), 24+rand.IntN(9)).Masked()
			prefixes = append(prefixes, p)
			for i := range covered {
				covered[i] = covered[i] || p.Contains(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
			}
		}
		got := Aggregate(prefixes)
		for i, want := range covered {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			n := len(slices.DeleteFunc(slices.Clone(got), func(p netip.Prefix) bool { return !p.Contains(a) }))
			if (n == 1) != want || n > 1 {
				t.Fatalf("%v: %s is covered %d times by %v, want it %v", prefixes, a, n, got, want)
			}
		}
		for i, p := range got {
			for _, q := range got[i+1:] {
				if p.Bits() > 0 && p.Bits() == q.Bits() && parent(p) == parent(q) {
					t.Fatalf("%v: %s and %s could be one", prefixes, p, q)
				}
			}
		}
	}
}
