package scale

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// The pods of all namespaces are replaced in turn, a tenth of them per minute: by churnWorkers, each with its own
// namespaces. One of podsEach is on this node, and these are all of its pods.
const (
	churnWorkers = 4
	churnMinute  = manyNamespaces * podsEach / 10
)

// BenchmarkRootServicesAndPolicies has 10,000 Services of 5 endpoints each and 1,000 policies for the same 10,000 pods
// of 1,000 Nodes, and measures the agent and its ovs-vswitchd at rest and while a tenth of the pods is replaced each
// minute: the time until a Service's new endpoint and a policy's new peer receive packets, CPU, memory.
func BenchmarkRootServicesAndPolicies(b *testing.B) {
	const times, period = 16, 2 * time.Minute // an even number: the Service ends with its first endpoint
	x := policiesBedOf(b)
	for b.Loop() {
		c := churnOf(x)
		starts := x.installs([]member{c.pods[0][0].member, c.pods[1][0].member}, 3)
		c.probe()
		atRest := c.measure(times, period)
		ctx, stop := context.WithCancel(b.Context())
		var replaced int
		done := make(chan error, 1)
		go func() {
			var err error
			replaced, err = c.replaceAll(ctx)
			done <- err
		}()
		began := time.Now()
		churning := c.measure(times, period)
		stop()
		x.must(<-done)
		c.report(starts, atRest, churning, float64(replaced)/time.Since(began).Minutes())
		x.stop()
	}
}

// churn is a bed with Services and policies, and pods that are replaced.
type churn struct {
	policiesBed
	pods   [manyNamespaces][podsEach]churnPod // the first of each namespace is on this node
	next   int                                // number of the next pod of this node
	mu     sync.Mutex                         // for next
	stream *stream
	ends   [2]member // endpoints of the measured Service
}

type churnPod struct {
	member
	number      int // of a pod on this node
	replacement bool
}

func (p *churnPod) elsewhere(namespace, at int) netip.Addr {
	host := 2 + namespace
	if p.replacement {
		host += manyNamespaces
	}
	return netip.AddrFrom4([4]byte{10, 128, byte(at), byte(host)})
}

func podName(at int) string { return fmt.Sprint("app-", at) }

func churnOf(x policiesBed) *churn {
	x.b.Helper()
	c := &churn{policiesBed: x, next: manyNamespaces}
	x.peers(usualPeers)
	x.start()
	for i := range manyNamespaces {
		x.namespace(team(i))
		c.pods[i][0] = churnPod{member: x.join(i, team(i), podName(0)), number: i}
	}
	x.must(Together(x.b.Context(), manyNamespaces*(podsEach-1), func(ctx context.Context, i int) error {
		return c.createElsewhere(ctx, i%manyNamespaces, 1+i/manyNamespaces)
	}))
	x.must(Together(x.b.Context(), manyServices, func(ctx context.Context, i int) error {
		s := service(i)
		s.Namespace = team(i)
		_, err := x.cluster.Client.CoreV1().Services(team(i)).Create(ctx, s, metav1.CreateOptions{})
		if err == nil {
			_, err = x.cluster.Client.DiscoveryV1().EndpointSlices(team(i)).Create(ctx, c.slice(i), metav1.CreateOptions{})
		}
		return err
	}))
	x.must(Together(x.b.Context(), manyNamespaces*policiesEach, func(ctx context.Context, i int) error {
		p := teamPolicy(i/policiesEach, i%policiesEach)
		_, err := x.cluster.Client.NetworkingV1().NetworkPolicies(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	}))
	return c
}

func (c *churn) createElsewhere(ctx context.Context, namespace, at int) error {
	p := Pod(at, NodeName(at))
	p.Name, p.Labels = podName(at), map[string]string{"app": podName(at % policiesEach)}
	p, err := c.cluster.Client.CoreV1().Pods(team(namespace)).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod := &c.pods[namespace][at]
	pod.addr = pod.elsewhere(namespace, at)
	return c.runs(ctx, p, pod.addr)
}

// slice is the EndpointSlice of the i-th Service, whose endpoints are in its namespace. A pod is an endpoint of
// endpointsEach Services.
func (c *churn) slice(i int) *discoveryv1.EndpointSlice {
	namespace, first := i%manyNamespaces, i/manyNamespaces
	var ends []discoveryv1.Endpoint
	for j := range endpointsEach {
		at := (first + j*podsEach/endpointsEach) % podsEach
		on := NodeName(at)
		if at == 0 {
			on = node
		}
		ends = append(ends, endpoint(c.pods[namespace][at].addr, on, team(namespace), podName(at)))
	}
	return sliceOf(i, ends)
}

// replaceAll replaces pods until ctx ends, and returns their number.
func (c *churn) replaceAll(ctx context.Context) (int, error) {
	counts, errs := [churnWorkers]int{}, [churnWorkers]error{}
	var all sync.WaitGroup
	for w := range churnWorkers {
		all.Go(func() {
			tick := time.NewTicker(churnWorkers * time.Minute / churnMinute)
			defer tick.Stop()
			for errs[w] == nil {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				namespace := counts[w]*churnWorkers%manyNamespaces + w
				at := counts[w] * churnWorkers / manyNamespaces % podsEach
				errs[w] = c.replace(c.b.Context(), namespace, at)
				counts[w]++
			}
		})
	}
	all.Wait()
	var replaced int
	for w := range churnWorkers {
		if errs[w] != nil {
			return 0, errs[w]
		}
		replaced += counts[w]
	}
	return replaced, nil
}

// replace deletes a pod and creates another one in its place, with another address, and updates its Services.
func (c *churn) replace(ctx context.Context, namespace, at int) error {
	pod := &c.pods[namespace][at]
	if at == 0 {
		if err := c.leave(ctx, pod.number, pod.netns); err != nil {
			return err
		}
	}
	err := c.cluster.Client.CoreV1().Pods(team(namespace)).Delete(ctx, podName(at),
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil {
		return err
	}
	if at == 0 {
		c.mu.Lock()
		pod.number = c.next
		c.next++
		c.mu.Unlock()
		pod.member, err = c.joined(ctx, pod.number, team(namespace), podName(0))
	} else {
		pod.replacement = !pod.replacement
		err = c.createElsewhere(ctx, namespace, at)
	}
	for j := 0; j < endpointsEach && err == nil; j++ {
		i := (at+j*podsEach/endpointsEach)%podsEach*manyNamespaces + namespace
		slices := c.cluster.Client.DiscoveryV1().EndpointSlices(team(namespace))
		_, err = slices.Update(ctx, c.slice(i), metav1.UpdateOptions{})
	}
	return err
}

// leave removes the pod of this number from the network.
func (c *churn) leave(ctx context.Context, number int, netns string) error {
	list, err := libcni.ConfListFromBytes([]byte(network))
	if err != nil {
		return err
	}
	conf := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("scale-%d", number), NetNS: netns, IfName: "eth0"}
	if err := c.host.Do(func() error {
		return libcni.NewCNIConfig([]string{"/opt/cni/bin"}, nil).DelNetworkList(ctx, list, conf)
	}); err != nil {
		return err
	}
	return c.host.RemoveNetns(netns)
}

// probe creates what is measured: a Service whose endpoint is one of two pods, and a stream that a policy controls.
func (c *churn) probe() {
	c.b.Helper()
	const first = 2 * manyNamespaces // numbers that no replaced pod of this node has
	for i := range c.ends {
		c.ends[i] = c.join(first+i, "default", fmt.Sprint("end-", i))
		c.serve(first + i)
	}
	server, client := c.join(first+2, "default", "server"), c.join(first+3, "default", "client")
	c.stream = c.policiesBed.stream(client, server)
	_, err := c.cluster.Client.CoreV1().Services("default").Create(c.b.Context(), service(manyServices), metav1.CreateOptions{})
	c.must(err)
	_, err = c.cluster.Client.DiscoveryV1().EndpointSlices("default").Create(c.b.Context(), c.end(0), metav1.CreateOptions{})
	c.must(err)
	c.stream.until(false, func() { c.isolate("server") })
}

// end is the EndpointSlice of the measured Service, with one of its two endpoints.
func (c *churn) end(i int) *discoveryv1.EndpointSlice {
	return sliceOf(manyServices, []discoveryv1.Endpoint{
		endpoint(c.ends[i].addr, node, "default", fmt.Sprint("end-", i))})
}

// churnFigures are samples, by quantity.
type churnFigures struct {
	endpoint, joined, left []float64 // ms
	agent, vswitchd        float64   // % of a core
	agentMiB, vswitchdMiB  []float64
}

// measure changes the Service's endpoint and the policy's peer, this many times, and then measures CPU and memory over
// a period.
func (c *churn) measure(times int, period time.Duration) (f churnFigures) {
	c.b.Helper()
	s := servicesBed{bed: c.bed, client: c.ends[0].netns}
	slices := c.cluster.Client.DiscoveryV1().EndpointSlices("default")
	for i := range times {
		end := (i + 1) % len(c.ends)
		begin := time.Now()
		_, err := slices.Update(c.b.Context(), c.end(end), metav1.UpdateOptions{})
		c.must(err)
		s.until(manyServices, func(who string) bool { return who == c.ends[end].addr.String() })
		f.endpoint = append(f.endpoint, ms(time.Since(begin)))
		f.joined = append(f.joined, c.stream.until(true, func() { c.label("client", "friend") }))
		f.left = append(f.left, c.stream.until(false, func() { c.label("client", "client") }))
	}
	agent, vswitchd, began := c.cpu(), c.switchCPU(), time.Now()
	c.rest(period)
	took := time.Since(began).Seconds() / 100
	f.agent, f.vswitchd = (c.cpu()-agent).Seconds()/took, (c.switchCPU()-vswitchd).Seconds()/took
	f.agentMiB, f.vswitchdMiB = c.memories(0)
	return f
}

func (c *churn) switchCPU() time.Duration {
	c.b.Helper()
	d, err := CPU(lab.Vswitchd.PID(c.host))
	c.must(err)
	return d
}

func (c *churn) report(starts []float64, rest, churning churnFigures, replaced float64) {
	row := func(what, unit string, ours, peer []float64, target report.Target, note string) {
		add(c.b, report.Result{Name: fmt.Sprintf("%d Services x %d, %d policies, pods replaced: %s", manyServices, endpointsEach,
			manyNamespaces*policiesEach, what), Unit: unit, Ours: ours, Peer: peer, Against: "at rest", Difference: true,
			Target: target, Note: note})
	}
	row("a Service's new endpoint has a packet", "ms", churning.endpoint, rest.endpoint, report.Target{},
		fmt.Sprintf("from the request to the API server; %.0f of %d pods are replaced a minute, each an endpoint of %d Services",
			replaced, manyNamespaces*podsEach, endpointsEach))
	row("a policy's new peer has a packet", "ms", churning.joined, rest.joined, report.Target{}, "from the request to the API server")
	row("a peer that is none any more has none", "ms", churning.left, rest.left, report.Target{}, "the same")
	row("CPU of the agent", "% of a core", []float64{churning.agent}, []float64{rest.agent}, report.Target{},
		fmt.Sprintf("%d pods of this node among them; heartbeats of %d Nodes", manyNamespaces, usualPeers))
	row("CPU of ovs-vswitchd", "% of a core", []float64{churning.vswitchd}, []float64{rest.vswitchd}, report.Target{},
		"2,000 packets a second among them")
	row("memory of the agent", "MiB", churning.agentMiB, rest.agentMiB, report.Target{},
		fmt.Sprintf("at most %.0f MiB since its start", c.peak()))
	row("memory of ovs-vswitchd", "MiB", churning.vswitchdMiB, rest.vswitchdMiB, report.Target{}, "")
	add(c.b, report.Result{Name: fmt.Sprintf("%d Services x %d, %d policies: start of the agent until pods are served, empty switch",
		manyServices, endpointsEach, manyNamespaces*policiesEach), Unit: "ms", Ours: starts,
		Note: "until one pod reaches another that a rule lets it reach; all is read from the API server"})
}
