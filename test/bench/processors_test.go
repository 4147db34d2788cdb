package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// BenchmarkRootProcessors measures ADD with the agent's Go code on 1, 2 and 4 processors (GOMAXPROCS), in turns, each
// with a new agent. The first is the agent's own choice on a machine with fewer than eight.
func BenchmarkRootProcessors(b *testing.B) {
	const turns = 6
	x := newBed(b, lab.Options{Nodes: 1, Datapath: "netdev", IPFamily: underlay.IPv4})
	x.knowPods(b, atOnce)
	counts := []int{1, 2, 4}
	one, many := map[int][]float64{}, map[int][]float64{} // ms, by number of processors
	for range turns {
		rand.Shuffle(len(counts), func(i, j int) { counts[i], counts[j] = counts[j], counts[i] })
		for _, n := range counts {
			x.restart(b, n)
			x.own(b, 1, 2) // warm-up
			one[n] = append(one[n], x.own(b, 1, 10)...)
			many[n] = append(many[n], x.own(b, atOnce, 3)...)
		}
	}
	for _, n := range []int{2, 4} {
		for how, samples := range map[string]map[int][]float64{"one at a time": one,
			fmt.Sprintf("%d in parallel, per pod", atOnce): many} {
			report.Add(b, report.Result{Group: "CNI, processors of the agent", Name: fmt.Sprintf("ADD, %s: GOMAXPROCS=%d", how, n),
				Unit: "ms", Ours: samples[n], Peer: samples[1], Against: "GOMAXPROCS=1"})
		}
	}
}

// restart restarts the agent with its Go code on n processors.
func (x *bed) restart(b *testing.B, n int) {
	b.Helper()
	err := x.AgentStop(b.Context(), "node1")
	if err == nil {
		err = os.Setenv("GOMAXPROCS", strconv.Itoa(n))
	}
	if err == nil {
		err = x.AgentStart(b.Context(), "node1")
	}
	if err == nil { // the plugin's process keeps its usual setting
		err = os.Unsetenv("GOMAXPROCS")
	}
	if err == nil {
		err = x.WaitReady(b.Context(), "node1")
	}
	if err != nil {
		b.Fatal(err)
	}
}

// own is compare without the peer; it returns ADD's times only.
func (x *bed) own(b *testing.B, many, rounds int) (took []float64) {
	b.Helper()
	for range rounds {
		pods := x.sandboxes(b, x.fl, 0, many)
		took = append(took, x.add(b, x.fl, pods...)/float64(many))
		x.del(b, x.fl, pods...)
		x.remove(b, x.fl, pods...)
	}
	return took
}
