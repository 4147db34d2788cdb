package openflow

import (
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// manyFlows are as many flows as a node of a large cluster has.
func manyFlows(n int) []Flow {
	out := make([]Flow, n)
	for i := range out {
		to := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		out[i] = Flow{Kind: KindPeer, Table: TableForward, Priority: 100, Actions: []Action{DecTTL{}, Output(1)},
			Match: Match{EtherType: IPv4, Dst: netip.PrefixFrom(to, 32)}}
	}
	return out
}

// BenchmarkDiff is the computation of a Sync when some flows are added.
func BenchmarkDiff(b *testing.B) {
	all := manyFlows(30018)
	c := newConfirmed(nil, confirmed{})
	todo, _, err := c.diff(all[:30000], 0)
	if err != nil {
		b.Fatal(err)
	}
	c.apply(todo)
	for b.Loop() {
		todo, _, err := c.diff(all, 0)
		if err != nil || len(todo) != 18 {
			b.Fatalf("%d changes, %v", len(todo), err)
		}
	}
}

// BenchmarkFirstSync is the filling of an empty switch.
func BenchmarkFirstSync(b *testing.B) {
	s := flowtest.Dial(b, flowtest.Node(b), Dial)
	want := manyFlows(30000)
	for b.Loop() {
		flowtest.Sync(b, s, want)
		b.StopTimer()
		flowtest.Sync(b, s, nil)
		b.StartTimer()
	}
}
