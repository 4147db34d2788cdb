package scale

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/bench/report"
)

// Sizes of the simulated cluster, per Node; one pod in five has an address of an IPPool.
const (
	podsPerNode, pooledPerNode = 20, 4
	simulatedPools             = 200
	ownPods                    = 100 // on the node whose agent is measured
)

// simulation is a bed with Pods, IPPools and a controller.
type simulation struct {
	*bed
	objects dynamic.Interface
	curves  map[string][][2]float64 // by line
}

// BenchmarkScale measures one agent and the controller as the cluster grows to 5,000 Nodes, 100,000 Pods, 20,000
// IPAllocations and 200 IPPools, and plots the cost of each.
func BenchmarkScale(b *testing.B) {
	for b.Loop() {
		x := newSimulation(b)
		x.start()
		x.add(ownPods)
		x.stop()
		began := time.Now()
		for _, n := range []int{100, 300, 1000, 2500, 5000} {
			x.grow(n)
			fmt.Printf("%d Nodes, %d Pods after %s\n", n, n*podsPerNode, time.Since(began).Round(time.Second))
			x.agent(n)
			x.controller(n)
			x.draw()
		}
		add(b, report.Result{Name: "simulation: 5,000 Nodes, 100,000 Pods, 200 IPPools, from first to last", Unit: "s",
			Ours: []float64{time.Since(began).Seconds()}})
	}
}

func newSimulation(b *testing.B) *simulation {
	b.Helper()
	x := &simulation{bed: newBed(b), curves: map[string][][2]float64{}}
	x.must(x.cluster.Apply(b.Context(), "../../build/manifests/fairlead.yaml", "app.kubernetes.io/component=crds"))
	var err error
	x.objects, err = dynamic.NewForConfig(&rest.Config{Host: x.cluster.URL, BearerToken: apitest.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: x.cluster.CA()}})
	x.must(err)
	x.must(Together(b.Context(), simulatedPools, func(ctx context.Context, i int) error {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": api.PoolGroup + "/" + api.PoolVersion,
			"kind": api.PoolKind, "metadata": map[string]any{"name": fmt.Sprint("pool", i)}, "spec": map[string]any{
				"ipRanges":   []any{map[string]any{"start": fmt.Sprintf("10.240.%d.2", i), "end": fmt.Sprintf("10.240.%d.254", i)}},
				"subnetInfo": map[string]any{"gateway": fmt.Sprintf("10.240.%d.1", i), "prefixLength": int64(24)}}}}
		_, err := x.objects.Resource(api.PoolResource).Create(ctx, u, metav1.CreateOptions{})
		return err
	}))
	return x
}

// grow creates Nodes until there are n, with their Pods.
func (x *simulation) grow(n int) {
	x.b.Helper()
	from := x.nodes
	x.peers(n)
	store := allocation.NewKubernetes(x.objects)
	x.must(Together(x.b.Context(), (n-from)*podsPerNode, func(ctx context.Context, i int) error {
		i += from * podsPerNode
		p, err := x.cluster.Client.CoreV1().Pods("default").Create(ctx, Pod(i, NodeName(i/podsPerNode)), metav1.CreateOptions{})
		if err != nil || i%podsPerNode >= pooledPerNode {
			return err
		}
		pooled := i/podsPerNode*pooledPerNode + i%podsPerNode
		addr := netip.AddrFrom4([4]byte{10, 240, byte(pooled % simulatedPools), byte(2 + pooled/simulatedPools)})
		a := api.IPAllocation{Spec: api.IPAllocationSpec{Address: addr.String(), Pool: fmt.Sprint("pool", pooled%simulatedPools),
			Phase: api.PhaseAllocated, Owner: api.AllocationOwner{PodUID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
				ContainerID: strings.Repeat(fmt.Sprintf("%08x", i), 8), IfName: "eth0", Network: "fairlead", Node: p.Spec.NodeName,
				Netns: "/var/run/netns/cni-" + string(p.UID), BootID: "4c6ef9a7-2a5d-4b83-9a3f-5b0d4a3b8c11"}}}
		a.Name = allocation.Name("", addr)
		_, err = store.Create(ctx, a)
		return err
	}))
}

// point adds to a line of a plot.
func (x *simulation) point(line string, nodes int, value float64) {
	x.curves[line] = append(x.curves[line], [2]float64{float64(nodes), value})
}

// agent starts the agent, and measures the cost of the start and of running with nothing but heartbeats.
func (x *simulation) agent(n int) {
	x.b.Helper()
	received := x.door.Received.Load()
	x.point("agent start to CNI ready, ms", n, ms(x.start()))
	x.rest(30 * time.Second)
	x.point("agent start, MB received", n, float64(x.door.Received.Load()-received)/1e6)
	received = x.door.Received.Load()
	cpu, before, began := x.cpu(), x.metrics(), time.Now()
	x.rest(2 * resyncEvery)
	took := time.Since(began).Seconds()
	x.point("agent, % of a core", n, 100*(x.cpu()-cpu).Seconds()/took)
	x.point("agent watches, kB/s", n, float64(x.door.Received.Load()-received)/1000/took)
	now := x.metrics()
	x.point("full resync, ms", n, 500*(now["fairlead_loop_round_duration_seconds_sum"]-before["fairlead_loop_round_duration_seconds_sum"]))
	x.point("flows", n, now["fairlead_flows"])
	rss, _, err := Memory(x.pid)
	x.must(err)
	x.point("agent", n, rss)
	x.stop()
}

// controller starts the controller, and measures its cost once its informers have synced.
func (x *simulation) controller(n int) {
	x.b.Helper()
	var c *Controller
	var err error
	dir := x.b.TempDir()
	theServer.do(func() { c, err = StartController(x.cluster.Server, filepath.Join(binDir, "fairlead-controller"), dir) })
	x.must(err)
	defer c.Stop()
	for deadline := time.Now().Add(5 * time.Minute); !c.Ready(); x.sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) || x.b.Context().Err() != nil {
			x.b.Fatalf("the controller has not read everything:\n%s", c.LogTail())
		}
	}
	x.rest(20 * time.Second)
	first, err := CPU(c.PID)
	x.must(err)
	const period = 20 * time.Second
	x.rest(period)
	second, err := CPU(c.PID)
	x.must(err)
	rss, _, err := Memory(c.PID)
	x.must(err)
	x.point("controller", n, rss)
	x.point("controller, % of a core", n, 100*(second-first).Seconds()/period.Seconds())
	x.point("controller start, s of CPU", n, first.Seconds())
}

// draw stores the results so far.
func (x *simulation) draw() {
	x.b.Helper()
	for _, c := range []struct {
		name, y string
		lines   []string
	}{
		{"memory", "MiB", []string{"agent", "controller"}},
		{"CPU at rest", "% of a core", []string{"agent, % of a core", "controller, % of a core"}},
		{"time", "ms", []string{"agent start to CNI ready, ms", "full resync, ms"}},
		{"bytes from the API server", "MB at the start, kB/s at rest", []string{"agent start, MB received", "agent watches, kB/s"}},
		{"flows", "flows in br-int", []string{"flows"}},
		{"controller start", "s of CPU", []string{"controller start, s of CPU"}},
	} {
		curve := report.Curve{Name: "scale: " + c.name, X: "Nodes (20 Pods each)", Y: c.y}
		for _, line := range c.lines {
			curve.Lines = append(curve.Lines, report.Line{Name: line, Points: x.curves[line]})
		}
		report.AddCurve(x.b, curve)
		for _, l := range curve.Lines {
			fmt.Println(" ", l.Name, l.Points[len(l.Points)-1])
		}
	}
}
