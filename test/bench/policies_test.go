package bench

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// isolates allows traffic between pods with the label, and nothing else.
const isolates = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated}
spec:
  podSelector: {matchLabels: {app: isolated}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {app: isolated}}}], ports: [{port: 8080}]}]
  egress: [{to: [{podSelector: {matchLabels: {app: isolated}}}], ports: [{port: 8080}]}]
`

// BenchmarkRootPolicies compares connections between pods that are isolated in both directions with those between pods
// without policies, on the userspace datapath, and the ADD of an isolated pod with that of one that is not.
func BenchmarkRootPolicies(b *testing.B) {
	b.Run("ADD", isolatedADD)
	b.Run("packets", func(b *testing.B) { isolated(b, vswitch.Netdev, "userspace datapath") })
}

// BenchmarkKernelPolicies compares connections on the kernel's datapath.
func BenchmarkKernelPolicies(b *testing.B) { isolated(b, vswitch.System, "kernel's datapath") }

func isolated(b *testing.B, datapath vswitch.Datapath, name string) {
	x := withPods(b, lab.Options{Datapath: datapath, Config: []byte("networkPolicies: enforce\n")})
	var manifests []string
	pod := func(name, node, more string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: isolated-%s, labels: {app: isolated}}\n"+
			"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n%s", name, node, more)
	}
	nodes := map[string]string{here: "node1", beside: "node1", across: "node2"}
	for name, node := range nodes {
		manifests = append(manifests, pod(name, node, ""))
	}
	apply := func(what string) {
		if _, err := x.Apply(what, []byte(strings.Join(manifests, "---\n"))); err != nil {
			b.Fatal(err)
		}
	}
	if apply("isolated"); x.WaitPods(b.Context()) != nil {
		b.Fatal("the pods do not come")
	}
	manifests = []string{isolates}
	for name, node := range nodes {
		addr := x.endOf(b, "isolated-"+name).addr
		manifests = append(manifests, pod(name, node, fmt.Sprintf("status: {podIP: %[1]q, podIPs: [{ip: %[1]q}]}\n", addr)))
	}
	apply("isolated")
	type pair struct {
		from end
		to   string
	}
	pairOf := func(prefix, pod string) pair {
		to := x.endOf(b, prefix+pod)
		serve(b, to)
		p := pair{x.endOf(b, prefix+here), net.JoinHostPort(to.addr, "8080")}
		known(b, p.from, p.to)
		return p
	}
	group := "isolated pods beside others, " + name
	for _, c := range []struct{ pod, where string }{{beside, "one node"}, {across, "across nodes"}} {
		closed, open := pairOf("isolated-", c.pod), pairOf("", c.pod)
		until(b, func() bool { _, err := dialSoon(x.endOf(b, here), closed.to); return err != nil }) // it is isolated
		of := func(isolated bool) pair {
			if isolated {
				return closed
			}
			return open
		}
		for _, m := range []struct {
			name, unit string
			measure    func(*testing.B, end, string) float64
			target     float64
		}{
			{"connect, request, close", "per s", connections, 0.75},
			{"requests over one connection", "per s", requests, 0.85},
			{"established throughput", "Gbit/s", download, 0.9},
		} {
			ours, theirs := inTurns(func(isolated bool) float64 { return m.measure(b, of(isolated).from, of(isolated).to) })
			report.Add(b, report.Result{Group: group, Name: m.name + ", " + c.where, Unit: m.unit, Ours: ours, Peer: theirs,
				Against: "without a policy", Target: report.AtLeast(m.target)})
		}
	}
}

// until polls a condition that takes a moment.
func until(b *testing.B, is func() bool) {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal("it did not happen within 20 s")
		}
	}
}

func dialSoon(from end, to string) (conn net.Conn, err error) {
	err = from.do(func() (err error) { conn, err = net.DialTimeout("tcp", to, 300*time.Millisecond); return err })
	if err == nil {
		conn.Close()
	}
	return conn, err
}

// requests is the number of requests per second that one connection gets answered, one at a time.
func requests(b *testing.B, from end, to string) float64 {
	b.Helper()
	conn, err := dial(from, to)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	answers, begin, n := bufio.NewReader(conn), time.Now(), 0
	for time.Since(begin) < callTime {
		if _, err := fmt.Fprintln(conn, "who"); err != nil {
			b.Fatal(err)
		}
		if _, err := answers.ReadString('\n'); err != nil {
			b.Fatalf("request %d to %s: %v", n, to, err)
		}
		n++
	}
	return float64(n) / time.Since(begin).Seconds()
}

// isolatedADD compares ADDs of pod-0, which no policy selects, with those of pod-1.
func isolatedADD(b *testing.B) {
	x := newBed(b, lab.Options{Config: []byte("networkPolicies: enforce\n")})
	x.knowPods(b, 2)
	labelled := strings.Replace(podYAML(1, ""), "namespace: default", "namespace: default, labels: {app: isolated}", 1)
	if _, err := x.Apply("pods", []byte(strings.Join([]string{podYAML(0, ""), labelled, isolates}, "---\n"))); err != nil {
		b.Fatal(err)
	}
	samples, order := [2][]float64{}, []int{0, 1}
	for range 21 {
		for _, i := range order {
			one := []*libcni.RuntimeConf{x.sandboxFor(b, x.fl, fmt.Sprintf("pod-%d", i))}
			samples[i] = append(samples[i], x.add(b, x.fl, one...))
			x.del(b, x.fl, one...)
			x.remove(b, x.fl, one...)
		}
		slices.Reverse(order)
	}
	report.Add(b, report.Result{Group: "CNI, isolated pods", Name: "ADD, one at a time", Unit: "ms", Ours: samples[1][1:],
		Peer: samples[0][1:], Against: "without a policy", Target: report.AtMost(1.1)})
}
