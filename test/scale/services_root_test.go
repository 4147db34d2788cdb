package scale

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// manyServices have endpointsEach endpoints each.
const manyServices, endpointsEach = 10000, 5

// BenchmarkRootManyServices measures what 10,000 Services cost an agent and its ovs-vswitchd compared with few: the
// time until they work, from an empty switch; memory; and the time until an added endpoint receives a packet.
func BenchmarkRootManyServices(b *testing.B) {
	var own serve // other benchmarks need an API server without Services, and deleting them takes minutes
	b.Cleanup(func() {
		if err := own.server.Stop(); err != nil {
			b.Error(err)
		}
	})
	for b.Loop() {
		x := newBedOn(b, &own)
		x.start()
		x.add(1 + endpointsEach)
		s := servicesBed{bed: x, client: x.podNetns(0)}
		for i := range endpointsEach {
			s.pods = append(s.pods, x.serve(1+i))
		}
		s.create(0, 1)
		s.create(manyServices-1, manyServices)
		fewStarts, fewInstalls := s.fromStart(5), s.installs(5)
		agentFew, switchFew := x.memories(time.Minute)
		s.create(1, manyServices-1)
		manyStarts := s.fromStart(5)
		x.sleep(time.Minute)
		high := x.peak()
		manyInstalls := s.installs(5)
		agentMany, switchMany := x.memories(time.Minute)
		row := func(name, unit string, ours, peer []float64, target report.Target, note string) {
			add(b, report.Result{Name: fmt.Sprintf("%d Services x %d endpoints: %s", manyServices, endpointsEach, name), Unit: unit,
				Ours: ours, Peer: peer, Against: "2 Services", Difference: true, Target: target, Note: note})
		}
		row("start of ovs-vswitchd until they work", "ms", manyInstalls, fewInstalls, report.AtMost(1000),
			"until connections to the first and the last work; the agent has run before")
		row("start of the agent until they work, empty switch", "ms", manyStarts, fewStarts, report.Target{},
			"it reads them from the API server")
		row("memory of ovs-vswitchd", "MiB", switchMany, switchFew, report.AtMost(60), "")
		row("memory of the agent", "MiB", agentMany, agentFew, report.AtMost(40),
			fmt.Sprintf("a minute after its last change; at most %.0f MiB since its start", high))
		add(b, report.Result{Name: fmt.Sprintf("%d Services: one endpoint more until it has a packet", manyServices), Unit: "ms",
			Ours: s.oneMore(20), Target: report.AtMost(50),
			Note: "from the request to the API server; of connections one after the other, a fifth go to it"})
		x.stop()
	}
}

// servicesBed is a bed with Services whose endpoints are its pods, and a pod as their client.
type servicesBed struct {
	*bed
	client string // its network namespace
	pods   []string
}

func (x *bed) podNetns(i int) string { return fmt.Sprintf("/run/netns/scale-%d", i) }

// serve makes the pod of this number answer each connection with its address, which is returned.
func (x *bed) serve(i int) (addr string) {
	x.b.Helper()
	var l net.Listener
	x.must(x.host.DoNet(x.podNetns(i), func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := eth0.Addrs()
		if err != nil {
			return err
		}
		addr = netip.MustParsePrefix(addrs[0].String()).Addr().String()
		l, err = net.Listen("tcp", net.JoinHostPort(addr, "8080"))
		return err
	}))
	x.b.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, addr) // the client detects a truncated answer
			conn.Close()
		}
	}()
	return addr
}

// vip is the ClusterIP of a Service.
func vip(i int) string { return fmt.Sprintf("10.96.%d.%d", 16+i>>8, i&255) }

func service(i int) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("service-%d", i), Namespace: "default"},
		Spec: corev1.ServiceSpec{ClusterIP: vip(i), ClusterIPs: []string{vip(i)},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// slice is the EndpointSlice of a Service: the first and the last Service have pods of the bed, the others pods of
// nodes elsewhere.
func (s servicesBed) slice(i, endpoints int) *discoveryv1.EndpointSlice {
	var ends []discoveryv1.Endpoint
	for j := range endpoints {
		addr, at := netip.AddrFrom4([4]byte{10, byte(200 + j), byte(i >> 8), byte(i)}), NodeName((i+j)%usualPeers)
		if i == 0 || i == manyServices-1 {
			addr, at = netip.MustParseAddr(s.pods[j]), node
		}
		ends = append(ends, endpoint(addr, at, "default", fmt.Sprintf("pod-%d-%d", i, j)))
	}
	out := sliceOf(i, ends)
	out.Namespace = "default"
	return out
}

// sliceOf is the EndpointSlice of a Service, as kube-controller-manager writes it.
func sliceOf(i int, ends []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name := service(i).Name
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name + "-x7k2p",
		Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports:     []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: ends}
}

func endpoint(addr netip.Addr, on, namespace, pod string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &on,
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod}}
}

// create creates the Services from one number to another.
func (s servicesBed) create(from, to int) {
	s.b.Helper()
	s.must(Together(s.b.Context(), to-from, func(ctx context.Context, i int) error {
		_, err := s.cluster.Client.CoreV1().Services("default").Create(ctx, service(from+i), metav1.CreateOptions{})
		if err == nil {
			_, err = s.cluster.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, s.slice(from+i, endpointsEach),
				metav1.CreateOptions{})
		}
		return err
	}))
}

// fromStart restarts ovs-vswitchd, which then has no flows, and the agent, n times, and returns the times from the
// agent's start until the first and the last Service work.
func (s servicesBed) fromStart(n int) (took []float64) {
	s.b.Helper()
	for range n {
		s.stop()
		s.emptySwitch()
		begin := time.Now()
		s.start()
		s.work()
		took = append(took, ms(time.Since(begin)))
	}
	return took
}

// installs restarts ovs-vswitchd under a running agent, n times, and returns the times until both Services work.
func (s servicesBed) installs(n int) (took []float64) {
	s.b.Helper()
	for range n {
		begin := s.emptySwitch()
		s.work()
		took = append(took, ms(time.Since(begin)))
	}
	return took
}

// emptySwitch restarts ovs-vswitchd, and returns the time just before its start.
func (x *bed) emptySwitch() (began time.Time) {
	x.b.Helper()
	x.must(x.lab.OVSStop(x.b.Context(), node, lab.Vswitchd))
	began = time.Now()
	x.must(x.lab.OVSStart(x.b.Context(), node, lab.Vswitchd))
	return began
}

// work waits until the first and the last Service work.
func (s servicesBed) work() {
	for _, i := range []int{0, manyServices - 1} {
		s.until(i, func(string) bool { return true })
	}
}

// oneMore adds an endpoint to the last Service, this many times, and returns the times until that endpoint answers.
func (s servicesBed) oneMore(times int) (took []float64) {
	s.b.Helper()
	last := manyServices - 1
	slices := s.cluster.Client.DiscoveryV1().EndpointSlices("default")
	newest := func(who string) bool { return who == s.pods[endpointsEach-1] }
	for range times {
		_, err := slices.Update(s.b.Context(), s.slice(last, endpointsEach-1), metav1.UpdateOptions{})
		s.must(err)
		s.sleep(2 * time.Second)
		s.must(s.host.DoNet(s.client, func() error {
			for range 100 {
				if who, err := call(vip(last)); err == nil && newest(who) {
					return fmt.Errorf("%s has left, and answers", who)
				}
			}
			return nil
		}))
		begin := time.Now()
		_, err = slices.Update(s.b.Context(), s.slice(last, endpointsEach), metav1.UpdateOptions{})
		s.must(err)
		s.until(last, newest)
		took = append(took, ms(time.Since(begin)))
	}
	return took
}

// until calls a Service until the right endpoint answers.
func (s servicesBed) until(i int, right func(who string) bool) {
	s.b.Helper()
	deadline := time.Now().Add(time.Minute)
	s.must(s.host.DoNet(s.client, func() error { // once for all calls: entering the namespace costs as much as a call
		for {
			who, err := call(vip(i))
			if err == nil && right(who) {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("Service %d: %q, %w\n%s", i, who, err, s.log())
			}
		}
	}))
}

// call makes one connection. It does not wait for a lost packet: Linux retransmits it after a second.
func call(ip string) (who string, err error) {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "80"), 50*time.Millisecond)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	return string(text), err
}

// memories are the agent's and ovs-vswitchd's memory, after some time without changes: Go returns memory slowly.
func (x *bed) memories(after time.Duration) (agent, vswitchd []float64) {
	x.b.Helper()
	x.sleep(after)
	for range 5 {
		for pid, samples := range map[int]*[]float64{x.pid: &agent, lab.Vswitchd.PID(x.host): &vswitchd} {
			now, _, err := Memory(pid)
			x.must(err)
			*samples = append(*samples, now)
		}
		x.sleep(time.Second)
	}
	return agent, vswitchd
}

// peak is the agent's peak memory since its start, in MiB.
func (x *bed) peak() float64 {
	x.b.Helper()
	_, high, err := Memory(x.pid)
	x.must(err)
	return high
}
