package bench

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// A round is many short turns of calls, for the same reason as in throughput. All turns together must not exhaust a
// client's ports to its endpoint: conntrack keeps those of closed connections (docs/services.md), and then the wait for
// a free port is measured.
const (
	callRounds = 10
	callTime   = 50 * time.Millisecond
	streamTime = 100 * time.Millisecond
)

// BenchmarkRootServices compares connections to a ClusterIP with direct ones to its endpoint, and with those that the
// node's kube-proxy translates, on the userspace datapath.
func BenchmarkRootServices(b *testing.B) { services(b, vswitch.Netdev, "userspace datapath", 1.3) }

// BenchmarkKernelServices does so on the kernel's datapath.
func BenchmarkKernelServices(b *testing.B) { services(b, vswitch.System, "kernel's datapath", 1.0) }

func services(b *testing.B, datapath vswitch.Datapath, datapathName string, overProxy float64) {
	x := newBed(b, lab.Options{Datapath: datapath, Nodes: len(translators()) + 1, IPFamily: underlay.IPv4,
		Cluster: lab.Kube, KubeProxy: "none"})
	x.translate(b)
	places := map[string][]way{"one node": x.waysTo(b, "one node"), "across nodes": x.waysTo(b, "across nodes")}
	x.quiet(b)
	for _, where := range []string{"one node", "across nodes"} {
		for _, m := range []struct {
			name, unit         string
			measure            func(*testing.B, end, string) float64
			overDirect, overKP report.Target
		}{
			{"connect, request, close", "per s", connections, report.AtLeast(0.85), report.AtLeast(overProxy)},
			{"established throughput", "Gbit/s", download, report.AtLeast(0.95), report.Target{}},
		} {
			ways := places[where]
			got := byTurns(len(ways), func(i int) float64 { return m.measure(b, ways[i].from, ways[i].to) })
			compare := func(group string, ours, peer int, target report.Target) {
				report.Add(b, report.Result{Group: group + ", " + datapathName, Name: m.name + ", " + where, Unit: m.unit,
					Ours: got[ours], Peer: got[peer], Against: ways[peer].name, Target: target,
					Note: fmt.Sprintf("the smallest ratio of a round is %.2f", smallest(got[ours], got[peer]))})
			}
			compare("a Service beside its endpoint", 0, 3, m.overDirect)
			compare("a Service beside kube-proxy's iptables", 0, 1, m.overKP)
			compare("a Service beside kube-proxy's nftables", 0, 2, m.overKP)
			compare("direct, beside another node", 4, 3, report.Target{})
		}
	}
}

func smallest(ours, peer []float64) float64 {
	least := math.Inf(1)
	for i := range ours {
		least = min(least, ours[i]/peer[i])
	}
	return least
}

// inTurns calls f alternately for Fairlead and for its peer.
func inTurns(f func(ours bool) float64) (ours, peer []float64) {
	got := byTurns(2, func(i int) float64 { return f(i == 0) })
	return got[0], got[1]
}

// byTurns calls f for each of n, many times in each round, each time in random order: a call profits from a preceding
// one over the same path.
func byTurns(n int, f func(i int) float64) [][]float64 {
	order, rounds := make([]int, n), make([][]float64, n)
	for i := range order {
		order[i] = i
	}
	for round := range callRounds {
		for i := range rounds {
			rounds[i] = append(rounds[i], 0)
		}
		for range turns {
			for _, i := range order {
				rounds[i][round] += f(i) / turns
			}
			rand.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
	}
	return rounds
}

func serviceManifest(name, vip, endpoint string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {clusterIP: %[2]s, clusterIPs: [%[2]s], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [%[3]s]}]
`, name, vip, endpoint)
}

// serve answers on port 8080 of an end until the benchmark ends: "from" with its client's address, "stream" with data
// until the client closes, and any other line with that line.
func serve(b *testing.B, at end) {
	b.Helper()
	var l net.Listener
	err := at.do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(at.addr, "8080")); return err })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answer(conn)
		}
	}()
}

func answer(conn net.Conn) {
	defer conn.Close()
	asked := bufio.NewReader(conn)
	for {
		line, err := asked.ReadString('\n')
		if strings.TrimSpace(line) == "stream" {
			for data := make([]byte, 1<<17); err == nil; {
				_, err = conn.Write(data)
			}
		}
		if err != nil {
			return
		}
		if line == "from\n" {
			line = conn.RemoteAddr().String() + "\n"
		}
		fmt.Fprint(conn, line)
	}
}

// dial connects within 10 s, from a port that the kernel chooses.
func dial(from end, to string) (net.Conn, error) { return dialBy(from, to, 0) }

func dialBy(from end, to string, port int) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{Port: port}}
	err = from.do(func() (err error) { conn, err = d.Dial("tcp", to); return err })
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return conn, err
}

// known waits until a connection succeeds: a Service's flows are installed a moment after its manifest is applied. It
// picks the source ports itself: where kube-proxy translates, conntrack remembers for two minutes that traffic from a
// port that sent too early is not translated.
func known(b *testing.B, from end, to string) {
	b.Helper()
	port := 20000
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		conn, err := dialBy(from, to, port)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("no connection to %s: %v", to, err)
		}
		port++
	}
}

// connections is the number of connections per second: one client connects, sends a request, reads the answer and
// closes.
func connections(b *testing.B, from end, to string) float64 {
	b.Helper()
	begin, n := time.Now(), 0
	err := from.do(func() error { // once for all calls: entering the namespace costs as much as a call
		for time.Since(begin) < callTime {
			if err := ask(to); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	if err != nil {
		b.Fatalf("call %d of %s: %v", n, to, err)
	}
	return float64(n) / time.Since(begin).Seconds()
}

func ask(to string) error {
	conn, err := net.DialTimeout("tcp", to, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, "who"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && line != "who\n" {
		err = errors.New("it answers " + line)
	}
	return err
}

// download is the receive rate of one connection, in Gbit/s.
func download(b *testing.B, from end, to string) float64 {
	b.Helper()
	conn, err := dial(from, to)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, "stream"); err != nil {
		b.Fatal(err)
	}
	begin, received, buf := time.Now(), 0, make([]byte, 1<<17)
	for time.Since(begin) < streamTime {
		n, err := conn.Read(buf)
		if err != nil {
			b.Fatalf("a stream from %s: %v", to, err)
		}
		received += n
	}
	return float64(received) * 8 / 1e9 / time.Since(begin).Seconds()
}
