package bench

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// A round is many short turns of calls, for the reason that throughput's are short. All of them together must leave a
// client ports for its endpoint: those of ended connections are not free before conntrack forgets them
// (docs/services.md), and what is measured then is the wait for one.
const (
	callRounds = 10
	callTime   = 50 * time.Millisecond
)

// BenchmarkRootServices compares connections to a ClusterIP with direct ones to its endpoint, on the userspace
// datapath.
func BenchmarkRootServices(b *testing.B) { services(b, vswitch.Netdev, "userspace datapath") }

// BenchmarkKernelServices does it on the kernel's.
func BenchmarkKernelServices(b *testing.B) { services(b, vswitch.System, "kernel's datapath") }

func services(b *testing.B, datapath vswitch.Datapath, name string) {
	x := withPods(b, lab.Options{Datapath: datapath, Config: []byte("services: ovs\n")})
	from := x.endOf(b, here)
	for i, c := range []struct{ pod, where string }{{beside, "one node"}, {across, "across nodes"}} {
		to := x.endOf(b, c.pod)
		vip := fmt.Sprintf("10.96.0.%d", 10+i)
		serve(b, to)
		if _, err := x.Apply(c.pod+"-service", serviceManifest(c.pod, vip, to.addr)); err != nil {
			b.Fatal(err)
		}
		direct, service := net.JoinHostPort(to.addr, "8080"), net.JoinHostPort(vip, "80")
		known(b, from, direct)
		known(b, from, service)
		group := "a Service beside its endpoint, " + name
		ours, theirs := inTurns(func(s bool) float64 { return connections(b, from, pick(s, service, direct)) })
		report.Add(b, report.Result{Group: group, Name: "connect, request, close, " + c.where, Unit: "per s", Ours: ours,
			Peer: theirs, Against: "direct", Target: report.AtLeast(0.85)})
		ours, theirs = inTurns(func(s bool) float64 { return download(b, from, pick(s, service, direct)) })
		report.Add(b, report.Result{Group: group, Name: "established throughput, " + c.where, Unit: "Gbit/s", Ours: ours,
			Peer: theirs, Against: "direct", Target: report.AtLeast(0.95)})
	}
}

func pick(service bool, a, b string) string {
	if service {
		return a
	}
	return b
}

// inTurns calls f for the Service and for direct traffic, many times, each round beginning with the other one.
func inTurns(f func(service bool) float64) (service, direct []float64) {
	order := []bool{true, false}
	for range callRounds {
		sum := map[bool]float64{}
		for range turns {
			for _, which := range order {
				sum[which] += f(which) / turns
			}
			slices.Reverse(order)
		}
		service, direct = append(service, sum[true]), append(direct, sum[false])
	}
	return service, direct
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

// serve answers at port 8080 of an end until the benchmark ends: a line by a line, and "stream" by data until the
// client closes.
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
		fmt.Fprint(conn, line)
	}
}

// dial connects within 10 s.
func dial(from end, to string) (conn net.Conn, err error) {
	err = from.do(func() (err error) { conn, err = net.DialTimeout("tcp", to, 10*time.Second); return err })
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return conn, err
}

// known waits until a connection succeeds: flows of a Service are there a moment after its manifest.
func known(b *testing.B, from end, to string) {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		conn, err := dial(from, to)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("no connection to %s: %v", to, err)
		}
	}
}

// connections is how many times a second one client connects, asks, has its answer and closes.
func connections(b *testing.B, from end, to string) float64 {
	b.Helper()
	begin, n := time.Now(), 0
	err := from.do(func() error { // once for all calls: to enter the namespace costs as much as a call
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

// download is what one connection receives, in Gbit/s.
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
