package blocks

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// naive finds free blocks by comparing each with everything in use.
func naive(r Range, taken []netip.Prefix, start uint64) (free []netip.Prefix) {
	for i := range r.Blocks() {
		b := r.Block((start + i) % r.Blocks())
		if !slices.ContainsFunc(taken, b.Overlaps) {
			free = append(free, b)
		}
	}
	return free
}

func TestGridIsLikeNaiveOne(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range 2000 {
		from := []string{"10.16.0.0/12", "10.8.0.0/13", "fd00:10::/44", "::/0", "0.0.0.0/0"}[random.IntN(5)]
		r := Range{Cluster: netip.MustParsePrefix(from)}
		r.Mask = r.Cluster.Bits() + random.IntN(7)
		g, err := New(r)
		if err != nil {
			t.Fatal(err)
		}
		var taken []netip.Prefix
		for range random.IntN(8) {
			wide := Range{r.Cluster, r.Mask + random.IntN(4)}
			p := wide.Block(random.Uint64N(wide.Blocks()))
			p = netip.PrefixFrom(p.Addr(), max(0, p.Bits()-random.IntN(8))).Masked()
			if err := g.MarkUsed(p); err != nil {
				t.Fatal(err)
			}
			taken = append(taken, p)
		}
		start := random.Uint64N(r.Blocks() + 1)
		n := random.IntN(70)
		want := naive(r, taken, start)
		if got := g.NextFrom(start, n); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Fatalf("%s, taken %v, %d from %d: %v, want %v", r, taken, n, start, got, want)
		}
		if g.Free() != uint64(len(want)) {
			t.Fatalf("%s, taken %v: %d free, want %d", r, taken, g.Free(), len(want))
		}
	}
}

func TestBadRanges(t *testing.T) {
	for _, r := range []Range{{}, {netip.MustParsePrefix("10.0.0.0/8"), 33}, {netip.MustParsePrefix("10.0.0.0/16"), 15},
		{netip.MustParsePrefix("fd00::/16"), 80}} {
		if g, err := New(r); err == nil {
			t.Errorf("%v: %v", r, g)
		} else {
			t.Log(err)
		}
	}
	g, err := New(Range{netip.MustParsePrefix("fd00::/64"), 127})
	if err != nil || g.Free() != 1<<63 {
		t.Errorf("%v, %v", g, err)
	}
	if err := g.MarkUsed(netip.MustParsePrefix("fd01::/64")); err == nil {
		t.Error("took a block beside the range")
	}
	if after := g.After(netip.MustParsePrefix("fd00::ffff:ffff:ffff:fffe/127")); after != 0 {
		t.Errorf("behind the last block is number %d", after)
	}
}
