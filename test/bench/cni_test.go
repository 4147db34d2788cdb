package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// atOnce is the number of concurrent ADDs, and staying the number of existing pods in the last comparison.
const atOnce, staying = 32, 50

// BenchmarkRootCNI measures ADD and DEL of routed pods beside the reference plugins: of one pod, of 32 concurrently,
// and of one on a node that has 50.
func BenchmarkRootCNI(b *testing.B) {
	x := newBed(b, lab.Options{Nodes: 1, Datapath: "netdev", IPFamily: underlay.IPv4})
	x.knowPods(b, atOnce+staying)
	x.compare(b, 1, 3) // warm-up: bridge, caches
	one := x.compare(b, 1, 30)
	one.report(b, "one at a time", 0.6, 0.5)
	many := x.compare(b, atOnce, 10)
	many.report(b, fmt.Sprintf("%d in parallel, per pod", atOnce), 0.4, 0.5)
	x.fill(b)
	full := x.compare(b, 1, 20)
	full.report(b, fmt.Sprintf("one at a time, %d pods stay", staying), 0, 0)
}

// BenchmarkKernelCNI is the same on the kernel's datapath, one pod at a time. In User-Mode Linux the start of a program
// takes 20 times as long as elsewhere, and the peer starts two.
func BenchmarkKernelCNI(b *testing.B) {
	x := newBed(b, lab.Options{Nodes: 1, Datapath: "system", IPFamily: underlay.IPv4})
	x.knowPods(b, atOnce+staying)
	x.compare(b, 1, 2)
	one := x.compare(b, 1, 10)
	one.report(b, "kernel's datapath, one at a time", 0, 0)
	x.fill(b)
	full := x.compare(b, 1, 10)
	full.report(b, fmt.Sprintf("kernel's datapath, one at a time, %d pods stay", staying), 0, 0)
}

// fill adds pods that stay, on both networks.
func (x *bed) fill(b *testing.B) {
	b.Helper()
	for _, n := range []network{x.pe, x.fl} {
		x.add(b, n, x.sandboxes(b, n, atOnce, staying)...)
	}
}

// knowPods creates Pods pod-0, pod-1, ... in the API: a kubelet names them with every call, and so does the benchmark.
func (x *bed) knowPods(b *testing.B, many int) {
	b.Helper()
	if err := x.RunnerStop(b.Context()); err != nil { // otherwise it would run them
		b.Fatal(err)
	}
	var manifests []string
	for i := range many {
		manifests = append(manifests, podYAML(i, ""))
	}
	if _, err := x.Apply("pods", []byte(strings.Join(manifests, "---\n"))); err != nil {
		b.Fatal(err)
	}
}

// podYAML is Pod number i, of an IPPool if that is not "".
func podYAML(i int, pool string) string {
	annotations := ""
	if pool != "" {
		annotations = fmt.Sprintf(", annotations: {ipam.antrea.io/ippools: %s}", pool)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: pod-%d, namespace: default%s}\n"+
		"spec: {nodeName: node1, containers: [{name: main, image: none}]}\n", i, annotations)
}

// sandboxes are new ones for many Pods from number first.
func (x *bed) sandboxes(b *testing.B, n network, first, many int) []*libcni.RuntimeConf {
	b.Helper()
	var out []*libcni.RuntimeConf
	for i := range many {
		out = append(out, x.sandboxFor(b, n, fmt.Sprintf("pod-%d", first+i)))
	}
	return out
}

// times are samples in ms per pod, by verb and network: "ADD fairlead".
type times map[string][]float64

// compare adds and deletes many pods concurrently on each network, in alternating order, for some rounds.
func (x *bed) compare(b *testing.B, many, rounds int) times {
	b.Helper()
	t := times{}
	networks := []network{x.fl, x.pe}
	for range rounds {
		for _, n := range networks {
			pods := x.sandboxes(b, n, 0, many)
			t["ADD "+n.Name] = append(t["ADD "+n.Name], x.add(b, n, pods...)/float64(many))
			t["DEL "+n.Name] = append(t["DEL "+n.Name], x.del(b, n, pods...)/float64(many))
			x.remove(b, n, pods...)
		}
		slices.Reverse(networks)
	}
	return t
}

// report adds the rows of both verbs; a target of 0 is none.
func (t times) report(b *testing.B, how string, add, del float64) {
	b.Helper()
	for i, verb := range []string{"ADD", "DEL"} {
		most := []float64{add, del}[i]
		r := report.Result{Group: "CNI, routed pods", Name: verb + ", " + how, Unit: "ms", Ours: t[verb+" fairlead"],
			Peer: t[verb+" peer"], Against: peerName}
		if most > 0 {
			r.Target = report.AtMost(most)
		}
		report.Add(b, r)
	}
}
