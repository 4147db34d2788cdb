package openflow

import "testing"

// A big cluster seen from one node: 250 pods, 5,000 peers, both families.

func BenchmarkPipeline(b *testing.B) {
	v := bigView(250, 5000)
	for b.Loop() {
		Pipeline(v)
	}
}

// BenchmarkDiff is what a Sync computes when one pod is added.
func BenchmarkDiff(b *testing.B) {
	without, with := Pipeline(bigView(250, 5000)), Pipeline(bigView(251, 5000))
	c := newConfirmed(nil, confirmed{})
	todo, _, err := c.diff(without)
	if err != nil {
		b.Fatal(err)
	}
	c.apply(todo)
	for b.Loop() {
		todo, _, err := c.diff(with)
		if err != nil || len(todo) != len(with)-len(without) {
			b.Fatalf("%d changes, %v", len(todo), err)
		}
	}
}

// BenchmarkFirstSync is the filling of an empty switch.
func BenchmarkFirstSync(b *testing.B) {
	s := dialTest(b, node(b))
	want := Pipeline(bigView(250, 5000))
	for b.Loop() {
		syncAll(b, s, want)
		b.StopTimer()
		syncAll(b, s, nil)
		b.StartTimer()
	}
}
