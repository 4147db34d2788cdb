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

// atOnce is the number of concurrent ADDs.
const atOnce = 32

// BenchmarkRootCNI measures ADD and DEL of routed pods beside the reference plugins: of one pod, of 32 concurrently,
// and of one on nodes with more and more pods.
func BenchmarkRootCNI(b *testing.B) {
	x := newBed(b, lab.Options{Nodes: 1, Datapath: "netdev", IPFamily: underlay.IPv4})
	x.knowPods(b, atOnce+fullest)
	x.compare(b, 1, 3) // warm-up: bridge, caches
	c := curve{bed: x, datapath: "userspace datapath"}
	c.at(b, 0, 30, 0.6, 0.5)
	many := x.compare(b, atOnce, 10)
	many.report(b, fmt.Sprintf("%d in parallel, per pod", atOnce), 0.4, 0.5)
	c.at(b, 50, 20, 0, 0)
	c.at(b, kubelets, 14, 0, 0)
	c.at(b, fullest, 10, 0, 0)
	c.draw(b)
}

// BenchmarkKernelCNI is the same on the kernel's datapath, one pod at a time. In User-Mode Linux, starting a program
// takes 20 times as long as elsewhere, and the peer starts two.
func BenchmarkKernelCNI(b *testing.B) {
	x := newBed(b, lab.Options{Nodes: 1, Datapath: "system", IPFamily: underlay.IPv4})
	x.knowPods(b, atOnce+fullest)
	x.compare(b, 1, 2)
	c := curve{bed: x, datapath: "kernel's datapath", prefix: "kernel's datapath, ",
		note: "User-Mode Linux counts in steps of 10 ms"}
	c.at(b, 0, 10, 0, 0)
	c.at(b, 50, 10, 0, 0)
	c.at(b, kubelets, 8, 0, 0)
	c.at(b, fullest, 6, 0, 0)
	c.draw(b)
}

// knowPods creates Pods pod-0, pod-1, ... in the API: kubelet passes a Pod's name with every call, and so does the
// benchmark.
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

// sandboxes are new sandboxes for many Pods, starting with number first.
func (x *bed) sandboxes(b *testing.B, n network, first, many int) []*libcni.RuntimeConf {
	b.Helper()
	var out []*libcni.RuntimeConf
	for i := range many {
		out = append(out, x.sandboxFor(b, n, fmt.Sprintf("pod-%d", first+i)))
	}
	return out
}

// times are samples: ms per pod, by verb and network ("ADD fairlead"), and the costs of our ADDs, by name of the cost.
type times map[string][]float64

// compare adds and deletes many pods concurrently on each network, in alternating order, for some rounds.
func (x *bed) compare(b *testing.B, many, rounds int) times {
	b.Helper()
	t := times{}
	networks := []network{x.fl, x.pe}
	for range rounds {
		for _, n := range networks {
			pods := x.sandboxes(b, n, 0, many)
			add := func() { t["ADD "+n.Name] = append(t["ADD "+n.Name], x.add(b, n, pods...)/float64(many)) }
			if n.Name == x.fl.Name {
				for what, cost := range x.costs(b, add) {
					t[what] = append(t[what], cost/float64(many))
				}
			} else {
				add()
				x.settle(0) // a pod lives longer than the work of its ADD lasts
			}
			t["DEL "+n.Name] = append(t["DEL "+n.Name], x.del(b, n, pods...)/float64(many))
			x.remove(b, n, pods...)
		}
		slices.Reverse(networks)
	}
	return t
}

// report adds the rows of both verbs; a target of 0 means none.
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
