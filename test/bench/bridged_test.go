package bench

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// Numbers of measured ADDs whose address the agent has probed on the underlay in advance, and of those whose address it
// has not; each of the latter is the first of its IPPool.
const probedRounds, unprobedRounds = 20, 12

// timeout is how long an ADD probes the underlay: the default of ipam.conflictProbeTimeout.
const timeout = 200

// BenchmarkRootBridged measures ADDs with the allocation in a real API server, beside the reference plugins, which
// store theirs in a directory; and counts the write requests to the API server per ADD.
func BenchmarkRootBridged(b *testing.B) {
	x := newBed(b, lab.Options{Nodes: 1, Datapath: "netdev", IPFamily: underlay.IPv4, Mode: underlay.Bridge,
		Cluster: lab.Kube, KubeProxy: "none"})
	if err := x.RunnerStop(b.Context()); err != nil { // otherwise it would run the Pods
		b.Fatal(err)
	}
	manifests := []string{podYAML(0, "shared"), poolYAML("shared", 110, 2, 250)}
	for i := range unprobedRounds {
		pool := fmt.Sprintf("pool-%d", i+1)
		manifests = append(manifests, podYAML(i+1, pool), poolYAML(pool, 120, 10*(i+1), 10*(i+1)+5))
	}
	routed := unprobedRounds + 1
	manifests = append(manifests, podYAML(routed, ""))
	if _, err := x.Apply("pods and pools", []byte(strings.Join(manifests, "---\n"))); err != nil {
		b.Fatal(err)
	}
	for range 3 { // warm-up: bridge, caches, addresses probed in advance
		x.pair(b, 0)
		x.awaitAhead(b)
	}
	probed := func(int) int { return 0 }
	x.compareBridged(b, "address asked for ahead, first of its VLAN", probedRounds, probed, 0, 0)
	x.add(b, x.fl, x.sandboxFor(b, x.fl, "pod-0")) // remains
	x.awaitAhead(b)
	x.compareBridged(b, "address asked for ahead", probedRounds, probed, 0, 0)
	x.compareBridged(b, "first of an IPPool", unprobedRounds, func(i int) int { return i + 1 }, 1, timeout)
	x.countWrites(b, "routed pod", routed, 0)
	x.countWrites(b, "bridged pod, one address", 0, 1)
}

// poolYAML is an IPPool of VLAN 10 or 20 of the lab, by the third and last bytes of its addresses.
func poolYAML(name string, third, first, last int) string {
	return fmt.Sprintf("apiVersion: crd.antrea.io/v1beta1\nkind: IPPool\nmetadata: {name: %[1]s}\nspec:\n"+
		"  ipRanges: [{start: 192.168.%[2]d.%[3]d, end: 192.168.%[2]d.%[4]d}]\n"+
		"  subnetInfo: {gateway: 192.168.%[2]d.1, prefixLength: 24, vlan: %[5]d}\n", name, third, first, last, third-100)
}

// pair is one ADD of Pod number pod on each network, in alternating order, and their DELs. It returns ms.
func (x *bed) pair(b *testing.B, pod int) (ours, theirs float64) {
	b.Helper()
	name := fmt.Sprintf("pod-%d", pod)
	first := x.made%4 == 0 // each pair is two pods
	once := func(n network) (took float64) {
		s := x.sandboxFor(b, n, name)
		took = x.add(b, n, s)
		x.del(b, n, s)
		x.remove(b, n, s)
		return took
	}
	if !first {
		theirs = once(x.pe)
	}
	ours = once(x.fl)
	if first {
		theirs = once(x.pe)
	}
	return ours, theirs
}

// compareBridged measures ADDs of Pods during each of which the agent probes asks addresses; others are skipped. wait
// is the time of these probes in ms, for a second row without it.
func (x *bed) compareBridged(b *testing.B, which string, rounds int, pod func(round int) int, asks, wait float64) {
	b.Helper()
	var ours, theirs, rest []float64
	for i := range rounds {
		before := x.asked(b, "add")
		o, t := x.pair(b, pod(i))
		if got := x.asked(b, "add") - before; got != asks {
			b.Logf("round %d does not count: the ADD asked about %v addresses, not %v", i, got, asks)
			continue
		}
		ours, theirs, rest = append(ours, o), append(theirs, t), append(rest, o-wait)
		x.awaitAhead(b)
	}
	r := report.Result{Group: "CNI, bridged pods", Name: "ADD, " + which, Unit: "ms", Ours: ours, Peer: theirs,
		Against: peerName}
	if wait == 0 {
		r.Target = report.AtMost(1)
	}
	report.Add(b, r)
	if wait > 0 {
		r.Name, r.Ours, r.Target = fmt.Sprintf("%s, less the %v ms that it asks", r.Name, wait), rest, report.AtMost(1)
		report.Add(b, r)
	}
}

// awaitAhead waits until the agent has probed the next addresses.
func (x *bed) awaitAhead(b *testing.B) {
	b.Helper()
	quiet, last := time.Now(), x.asked(b, "ahead")
	for limit := time.Now().Add(10 * time.Second); time.Since(quiet) < 2*timeout*time.Millisecond; {
		if time.Now().After(limit) {
			b.Fatal("the agent asks the underlay all the time")
		}
		time.Sleep(50 * time.Millisecond)
		if now := x.asked(b, "ahead"); now != last {
			quiet, last = time.Now(), now
		}
	}
}

// asked is the number of addresses that the agent has probed, from its metrics.
func (x *bed) asked(b *testing.B, when string) float64 {
	b.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = x.host.Do(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return conn, err
		}}}
	answer, err := client.Get("http://127.0.0.1:10350/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	want := fmt.Sprintf(`fairlead_pool_probes_total{when=%q} `, when)
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), want); found {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// countWrites counts write requests to the API server from an ADD until no more follow.
func (x *bed) countWrites(b *testing.B, which string, pod int, most float64) {
	b.Helper()
	var writes []float64
	for range 10 {
		var what []string
		s := x.sandboxFor(b, x.fl, fmt.Sprintf("pod-%d", pod))
		before := x.writes(b)
		x.add(b, x.fl, s)
		x.awaitAhead(b)
		after := x.writes(b)
		total := 0.0
		for verb, n := range after {
			if n > before[verb] {
				what = append(what, fmt.Sprintf("%v %s", n-before[verb], verb))
				total += n - before[verb]
			}
		}
		if total > most {
			b.Logf("ADD of a %s: %s", which, strings.Join(what, ", "))
		}
		writes = append(writes, total)
		x.del(b, x.fl, s)
		x.remove(b, x.fl, s)
		x.awaitWritten(b)
	}
	report.Add(b, report.Result{Group: "API writes per ADD", Name: which, Unit: "requests", Ours: writes, Worst: true,
		Target: report.AtMost(most)})
}

// awaitWritten waits until there was no write for a second: the allocation's release comes after the answer.
func (x *bed) awaitWritten(b *testing.B) {
	b.Helper()
	for limit := time.Now().Add(20 * time.Second); ; {
		before := fmt.Sprint(x.writes(b))
		time.Sleep(time.Second)
		if fmt.Sprint(x.writes(b)) == before {
			return
		}
		if time.Now().After(limit) {
			b.Fatal("the API server is written all the time")
		}
	}
}

// writes are the write requests by verb and resource, as the API server counts them. Leases are left out: components of
// the control plane renew theirs continuously.
func (x *bed) writes(b *testing.B) map[string]float64 {
	b.Helper()
	client, err := x.Client()
	if err != nil {
		b.Fatal(err)
	}
	text, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	resource, verb := regexp.MustCompile(`resource="([^"]*)"`), regexp.MustCompile(`verb="(POST|PUT|PATCH|APPLY|DELETE)"`)
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		v, r := verb.FindStringSubmatch(line), resource.FindStringSubmatch(line)
		if !strings.HasPrefix(line, "apiserver_request_total{") || v == nil || r[1] == "leases" {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			b.Fatal(err)
		}
		out[v[1]+" "+r[1]] += n
	}
	return out
}
