package scale

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/bench/report"
)

// resyncEvery is the agent's resync interval.
const resyncEvery = 15 * time.Second

// The large cluster of BenchmarkRootAgent, and the usual one.
const largePeers, usualPeers = 5000, 1000

// BenchmarkRootAgent measures the idle agent, with 100 pods and 1,000 peers, and with 250 pods and 5,000 peers. All
// Nodes have heartbeats every five minutes, as kubelets send them.
func BenchmarkRootAgent(b *testing.B) {
	for b.Loop() {
		x := newBed(b)
		x.start()
		x.rest(20 * time.Second)
		x.memory("agent memory, idle", 40)
		x.peers(usualPeers)
		x.add(100)
		x.stop()
		x.starts("agent start to CNI ready, 100 pods, 1,000 peers", 10)
		x.rest(20 * time.Second)
		x.idleCPU("CPU of an idle agent, 100 pods, 1,000 peers", 60*time.Second)
		x.memory("agent memory, 100 pods, 1,000 peers", 60)
		x.peers(largePeers)
		x.stop()
		x.start()
		x.rest(30 * time.Second)
		x.memory("agent memory, 100 pods, 5,000 peers", 100)
		x.onePeer(10)
		x.add(250)
		x.resyncs(4)
		x.stop()
	}
}

func add(b *testing.B, r report.Result) {
	b.Helper()
	r.Group = "Scale"
	report.Add(b, r)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// starts restarts the agent n times, with all pods in place.
func (x *bed) starts(name string, n int) {
	x.b.Helper()
	r := report.Result{Name: name, Unit: "ms", Target: report.AtMost(1000)}
	for i := range n {
		if i > 0 {
			x.stop()
		}
		r.Ours = append(r.Ours, ms(x.start()))
	}
	add(x.b, r)
}

// rest lets the agent run with heartbeats of all Nodes.
func (x *bed) rest(how time.Duration) {
	ctx, cancel := context.WithTimeout(x.b.Context(), how)
	defer cancel()
	x.cluster.Heartbeats(ctx, x.nodes)
}

func (x *bed) memory(name string, most float64) {
	x.b.Helper()
	r := report.Result{Name: name, Unit: "MiB", Target: report.AtMost(most)}
	var high float64
	for range 5 {
		var now float64
		var err error
		now, high, err = Memory(x.pid)
		x.must(err)
		r.Ours = append(r.Ours, now)
		x.rest(time.Second)
	}
	r.Note = fmt.Sprintf("resident; at most %.1f since its start", high)
	add(x.b, r)
}

// idleCPU measures one period without events except resyncs and heartbeats.
func (x *bed) idleCPU(name string, period time.Duration) {
	x.b.Helper()
	before, received, began := x.cpu(), x.door.Received.Load(), time.Now()
	x.rest(period)
	took := time.Since(began).Seconds()
	add(x.b, report.Result{Name: name, Unit: "% of a core", Target: report.AtMost(0.3),
		Ours: []float64{100 * (x.cpu() - before).Seconds() / took},
		Note: fmt.Sprintf("over %s; %.0f heartbeats, %.1f kB/s from the API server", period,
			period.Minutes()/5*float64(x.nodes), float64(x.door.Received.Load()-received)/1000/took)})
}

// resyncs measures rounds in which the agent reads the whole node and all flows.
func (x *bed) resyncs(n int) {
	x.b.Helper()
	const sum = "fairlead_loop_round_duration_seconds_sum"
	r := report.Result{Name: fmt.Sprintf("full resync, %d pods, %d peers", x.pods, x.nodes), Unit: "ms",
		Target: report.AtMost(1000)}
	m := x.metrics()
	for range n {
		x.rest(resyncEvery)
		now := x.metrics()
		r.Ours = append(r.Ours, 1000*(now[sum]-m[sum]))
		m = now
	}
	r.Note = fmt.Sprintf("all of the node observed, %.0f flows listed and confirmed", m["fairlead_flows"])
	add(x.b, r)
}

// onePeer adds one Node, this many times.
func (x *bed) onePeer(times int) {
	x.b.Helper()
	flows := report.Result{Name: fmt.Sprintf("one peer more, %d peers: flow messages", x.nodes), Unit: "messages",
		Target: report.AtMost(3), Note: "a peer has 3 flows"}
	cpu := report.Result{Name: fmt.Sprintf("one peer more, %d peers: CPU of the agent", x.nodes), Unit: "ms"}
	changes := func(m map[string]float64) (sum float64) {
		for _, change := range []string{"added", "modified", "deleted"} {
			sum += m[fmt.Sprintf("fairlead_flow_changes_total{change=%q}", change)]
		}
		return sum
	}
	nodes := x.cluster.Client.CoreV1().Nodes()
	const settled = 3 * time.Second // the agent's file of inputs is written within two
	for range times {
		before := x.metrics()
		start := x.cpu()
		_, err := nodes.Create(x.b.Context(), Node(x.nodes), metav1.CreateOptions{})
		x.must(err)
		x.sleep(settled)
		cpu.Ours = append(cpu.Ours, ms(x.cpu()-start))
		after := x.metrics()
		if after["fairlead_peers"] != before["fairlead_peers"]+1 {
			x.b.Fatalf("%.0f peers, there were %.0f", after["fairlead_peers"], before["fairlead_peers"])
		}
		flows.Ours = append(flows.Ours, changes(after)-changes(before))
		x.must(nodes.Delete(x.b.Context(), NodeName(x.nodes), metav1.DeleteOptions{}))
		x.sleep(settled)
	}
	add(x.b, flows)
	add(x.b, cpu)
}

func (x *bed) cpu() time.Duration {
	x.b.Helper()
	d, err := CPU(x.pid)
	x.must(err)
	return d
}

func (x *bed) sleep(d time.Duration) {
	select {
	case <-x.b.Context().Done():
	case <-time.After(d):
	}
}
