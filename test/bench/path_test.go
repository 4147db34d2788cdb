package bench

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// The pods between which packets are sent: two on node1, one on node2.
const here, beside, across = "here", "beside", "across"

// withPods creates a lab of two nodes with these pods.
func withPods(b *testing.B, o lab.Options) *bed {
	b.Helper()
	o.Nodes, o.IPFamily = 2, underlay.IPv4
	x := newBed(b, o)
	x.pods(b)
	return x
}

// pods starts them.
func (x *bed) pods(b *testing.B) {
	b.Helper()
	var manifests []string
	for pod, node := range map[string]string{here: "node1", beside: "node1", across: "node2"} {
		manifests = append(manifests, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"+
			"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n", pod, node))
	}
	if _, err := x.Apply("pods", []byte(strings.Join(manifests, "---\n"))); err != nil {
		b.Fatal(err)
	}
	if err := x.WaitPods(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func (x *bed) pod(b *testing.B, name string) *sandbox.Record {
	b.Helper()
	r, err := x.Records().Load("default/" + name)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// netns is the network namespace of a pod, open until the benchmark ends.
func (x *bed) netns(b *testing.B, name string) (netns ns.NetNS) {
	b.Helper()
	r := x.pod(b, name)
	h, err := x.Host(r.Node)
	if err != nil {
		b.Fatal(err)
	}
	err = h.DoNet(r.Netns, func() (err error) { netns, err = ns.GetCurrentNS(); return err })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { netns.Close() })
	return netns
}

// BenchmarkRootPath counts the tables that a packet from pod to pod traverses, and how often the datapath misses its
// flow cache; and the packets that the same streams lose when the agent of their node is stopped and started.
func BenchmarkRootPath(b *testing.B) {
	x := withPods(b, lab.Options{Datapath: "netdev"})
	for _, to := range []string{beside, across} {
		x.countTables(b, to)
	}
	for _, how := range []string{"SIGTERM", "SIGKILL"} {
		x.restarts(b, how)
	}
}

// countTables traces the packet through ovs-vswitchd's flows, on both nodes if its destination is on the other one, and
// reads the datapath flows that real packets have installed.
func (x *bed) countTables(b *testing.B, to string) {
	b.Helper()
	if out, err := x.PodExec(b.Context(), "default/"+here, "ping", "-c", "5", "-i", "0.05", x.pod(b, to).IPs[0]); err != nil {
		b.Fatal(out, err)
	}
	trace, err := x.Trace(b.Context(), "default/"+here, "default/"+to)
	if err != nil {
		b.Fatal(err)
	}
	most, nodes, tables := 0, 0, map[string]bool{}
	table := regexp.MustCompile(`^\s*table (\d+) `)
	for _, line := range trace {
		if strings.HasPrefix(line, "On ") {
			nodes, tables = nodes+1, map[string]bool{}
		}
		if m := table.FindStringSubmatch(line); m != nil {
			tables[m[1]] = true
			most = max(most, len(tables))
		}
	}
	if most == 0 || nodes != 1 && to == beside || nodes != 2 && to == across {
		b.Fatalf("no trace of both nodes' tables:\n%s", strings.Join(trace, "\n"))
	}
	again := 0
	for _, node := range x.Nodes()[:nodes] {
		flows, err := x.NodeExec(b.Context(), node, "ovs-appctl", "-T", "5", "dpctl/dump-flows")
		if err != nil {
			b.Fatal(err)
		}
		seen := 0
		for line := range strings.Lines(flows) {
			if !strings.Contains(line, "eth_type(0x0800)") {
				continue
			}
			seen++
			if strings.Contains(line, "recirc(") || !strings.Contains(line, "recirc_id(0)") {
				again++
			}
		}
		if seen == 0 {
			b.Fatalf("%s has no flow of IPv4 in its datapath:\n%s", node, flows)
		}
	}
	where := map[string]string{beside: "one node", across: "across nodes"}[to]
	report.Add(b, report.Result{Group: "pod to pod", Name: "tables, " + where, Unit: "tables", Ours: []float64{float64(most)},
		Worst: true, Target: report.AtMost(4), Note: "on the node where there are more"})
	report.Add(b, report.Result{Group: "pod to pod", Name: "recirculations, " + where, Unit: "flows",
		Ours: []float64{float64(again)}, Worst: true, Target: report.AtMost(0)})
}

// restarts stops the agent of node1 at random times, with either signal, also soon after its start, and counts the
// packets that streams lose. On a busy machine ovs-vswitchd, which is the datapath here, loses packets without a
// restart: a restart counts only if the same streams lost nothing in the same time before it.
func (x *bed) restarts(b *testing.B, how string) {
	b.Helper()
	end := map[string]func() error{"SIGTERM": func() error { return x.AgentStop(b.Context(), "node1") },
		"SIGKILL": func() error { return x.AgentKill(b.Context(), "node1") }}[how]
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	restart := func() {
		time.Sleep(rand.N(200 * time.Millisecond))
		must(end())
		must(x.AgentStart(b.Context(), "node1"))
		time.Sleep(rand.N(400 * time.Millisecond)) // at a random point of its start
		must(end())
		must(x.AgentStart(b.Context(), "node1"))
		must(x.WaitReady(b.Context(), "node1"))
	}
	var lost, before []float64
	noisy := 0
	for len(lost) < 10 {
		began := time.Now()
		idle := x.lost(b, func() { time.Sleep(1500 * time.Millisecond) })
		if idle > 0 && noisy < 20 {
			noisy++
			b.Logf("without a restart %v packets are lost in %s: tried again", idle, time.Since(began))
			continue
		}
		before, lost = append(before, idle), append(lost, x.lost(b, restart))
	}
	report.Add(b, report.Result{Group: "restarts of the agent, two each time", Name: "packets lost, " + how, Unit: "packets",
		Ours: lost, Peer: before, Against: "the same streams before", Worst: true, Target: report.AtMost(0),
		Note: fmt.Sprintf("one every 2 ms from pod to pod on one node, and to the other node; of %d times without a restart "+
			"%d lost packets too", noisy+len(lost), noisy)})
}

// lost is the number of packets that two streams from a pod, one to a pod on its node and one to a pod on the other,
// lose while f runs.
func (x *bed) lost(b *testing.B, f func()) float64 {
	b.Helper()
	from := x.netns(b, here)
	var streams []*probe.Stream
	for _, to := range []string{beside, across} {
		addr := netip.MustParseAddr(x.pod(b, to).IPs[0])
		port, stop, err := probe.Echo(x.netns(b, to), addr)
		if err != nil {
			b.Fatal(err)
		}
		defer stop()
		own := netip.MustParseAddr(x.pod(b, here).IPs[0])
		s, err := probe.Start(from, own, netip.AddrPortFrom(addr, port), 2*time.Millisecond)
		if err != nil {
			b.Fatal(err)
		}
		streams = append(streams, s)
	}
	f()
	time.Sleep(300 * time.Millisecond)
	total := 0
	for _, s := range streams {
		r := s.Stop()
		if r.Sent < 100 {
			b.Fatalf("a stream of %d packets says nothing", r.Sent)
		}
		total += r.Lost
	}
	return float64(total)
}
