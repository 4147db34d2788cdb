package scale

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairlead-cni/fairlead/test/bench/report"
)

// nodesPods is the number of pods on the node while policies change, and policyChanges the number of changes of each
// kind.
const nodesPods, policyChanges = 100, 25

// Many policies: a namespace for each pod of the node, which has a pod on each of as many nodes.
const manyNamespaces, podsEach, policiesEach = 100, 100, 10

// BenchmarkRootPoliciesChange measures the time from a request to the API server until packets obey it: when a pod
// becomes isolated and when it no longer is, and when a label makes another pod a peer and when it no longer does.
func BenchmarkRootPoliciesChange(b *testing.B) {
	x := policiesBedOf(b)
	for b.Loop() {
		x.start()
		server, client := x.join(0, "default", "server"), x.join(1, "default", "client")
		for i := 2; i < nodesPods; i++ {
			x.join(i, "default", "other")
		}
		s := x.stream(client, server)
		var isolated, opened, left, joined []float64
		for range policyChanges {
			isolated = append(isolated, s.until(false, func() { x.isolate("server") }))
			joined = append(joined, s.until(true, func() { x.label("client", "friend") }))
			left = append(left, s.until(false, func() { x.label("client", "client") }))
			opened = append(opened, s.until(true, func() { x.unisolate() }))
		}
		for _, row := range []struct {
			name    string
			samples []float64
		}{{"a policy isolates a pod", isolated}, {"the policy is deleted", opened},
			{"another pod becomes a peer by its labels", joined}, {"it is no peer any more", left}} {
			add(b, report.Result{Name: row.name + ", until packets obey", Unit: "ms", Ours: row.samples, Target: report.AtMost(100),
				Note: fmt.Sprintf("from the request to the API server; %d pods on the node; a datagram every 0.5 ms", nodesPods)})
		}
		x.stop()
	}
}

// BenchmarkRootPoliciesMany measures what the policies of a large cluster cost an agent and its ovs-vswitchd: the time
// until they are enforced, from an empty switch; flows; memory.
func BenchmarkRootPoliciesMany(b *testing.B) {
	x := policiesBedOf(b)
	for b.Loop() {
		x.start()
		var local []member
		for i := range manyNamespaces {
			x.namespace(team(i))
			local = append(local, x.join(i, team(i), "app-0"))
		}
		// The second may call the first: then the rules of both, and those for all pods, are in force.
		x.podsElsewhere(local)
		fewStarts := x.installs(local, 3)
		flowsFew := x.flows()
		agentFew, switchFew := x.memories(time.Minute)
		x.must(Together(b.Context(), manyNamespaces*policiesEach, func(ctx context.Context, i int) error {
			p := teamPolicy(i/policiesEach, i%policiesEach)
			_, err := x.cluster.Client.NetworkingV1().NetworkPolicies(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
			return err
		}))
		manyStarts := x.installs(local, 3)
		agentMany, switchMany := x.memories(time.Minute)
		name := func(what string) string {
			return fmt.Sprintf("%d pods, %d policies: %s", manyNamespaces*podsEach, manyNamespaces*policiesEach, what)
		}
		row := func(what, unit string, ours, peer []float64, target report.Target, note string) {
			add(b, report.Result{Name: name(what), Unit: unit, Ours: ours, Peer: peer, Against: "no policy", Difference: true,
				Target: target, Note: note})
		}
		row("start of the agent until pods are served, empty switch", "ms", manyStarts, fewStarts, report.AtMost(2000),
			"until one pod reaches another that a rule lets it reach; all is read from the API server")
		row("flows", "", []float64{x.flows()}, []float64{flowsFew}, report.AtMost(24000),
			fmt.Sprintf("both directions, of %d pods, all pods of the cluster are peers", manyNamespaces))
		row("memory of ovs-vswitchd", "MiB", switchMany, switchFew, report.AtMost(30), "")
		row("memory of the agent", "MiB", agentMany, agentFew, report.AtMost(40),
			fmt.Sprintf("a minute after its last change; at most %.0f MiB since its start", x.peak()))
		x.stop()
	}
}

// policiesBed is a bed with an API server of its own.
type policiesBed struct{ *bed }

func policiesBedOf(b *testing.B) policiesBed {
	own := new(serve)
	b.Cleanup(func() {
		if err := own.server.Stop(); err != nil {
			b.Error(err)
		}
	})
	return policiesBed{newBedOn(b, own)}
}

// member is a pod that exists in the API server.
type member struct {
	netns string
	addr  netip.Addr
}

// join adds a pod with the label app, and its object.
func (x policiesBed) join(i int, namespace, app string) member {
	x.b.Helper()
	m, err := x.joined(x.b.Context(), i, namespace, app)
	x.must(err)
	return m
}

func (x policiesBed) joined(ctx context.Context, i int, namespace, app string) (m member, err error) {
	p := Pod(i, node)
	p.Labels = map[string]string{"app": app}
	if p.Name = app; app == "other" {
		p.Name = fmt.Sprint("other-", i)
	}
	if p, err = x.cluster.Client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return m, err
	}
	list, err := libcni.ConfListFromBytes([]byte(network))
	if err != nil {
		return m, err
	}
	m.netns = x.podNetns(i)
	if err := x.host.MakeNetns(m.netns); err != nil {
		return m, err
	}
	conf := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("scale-%d", i), NetNS: m.netns, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", string(p.UID)}}}
	if err := x.host.Do(func() error {
		out, err := libcni.NewCNIConfig([]string{"/opt/cni/bin"}, nil).AddNetworkList(ctx, list, conf)
		if err != nil {
			return err
		}
		got, err := types100.NewResultFromResult(out)
		if err != nil {
			return err
		}
		m.addr = netip.MustParsePrefix(got.IPs[0].Address.String()).Addr()
		return nil
	}); err != nil {
		return m, err
	}
	return m, x.runs(ctx, p, m.addr)
}

// runs sets a Pod's status to running, with its address.
func (x policiesBed) runs(ctx context.Context, p *corev1.Pod, addr netip.Addr) error {
	ip := addr.String()
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	_, err := x.cluster.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

func (x policiesBed) label(pod, app string) {
	x.b.Helper()
	_, err := x.cluster.Client.CoreV1().Pods("default").Patch(x.b.Context(), pod, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata": {"labels": {"app": %q}}}`, app), metav1.PatchOptions{})
	x.must(err)
}

// isolate lets only pods with the label app: friend reach those with the given label.
func (x policiesBed) isolate(app string) {
	x.b.Helper()
	_, err := x.cluster.Client.NetworkingV1().NetworkPolicies("default").Create(x.b.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "friends"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: apps("friend")}}}}},
	}, metav1.CreateOptions{})
	x.must(err)
}

func (x policiesBed) unisolate() {
	x.b.Helper()
	x.must(x.cluster.Client.NetworkingV1().NetworkPolicies("default").Delete(x.b.Context(), "friends", metav1.DeleteOptions{}))
}

func apps(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func namespaces(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
}

// team is the name of a namespace.
func team(i int) string { return fmt.Sprintf("team-%d", i%manyNamespaces) }

func (x policiesBed) namespace(name string) {
	x.b.Helper()
	_, err := x.cluster.Client.CoreV1().Namespaces().Create(x.b.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	x.must(err)
}

// podsElsewhere creates the pods of all namespaces on the other nodes: the same number with each label.
func (x policiesBed) podsElsewhere(local []member) {
	x.b.Helper()
	x.must(Together(x.b.Context(), len(local)*(podsEach-1), func(ctx context.Context, i int) error {
		namespace, at := i%len(local), 1+i/len(local)
		p := Pod(i, NodeName(at))
		p.Name, p.Labels = fmt.Sprint("pod-", at), map[string]string{"app": fmt.Sprint("app-", at%policiesEach)}
		p, err := x.cluster.Client.CoreV1().Pods(team(namespace)).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return x.runs(ctx, p, netip.AddrFrom4([4]byte{10, 128, byte(at), byte(2 + namespace)}))
	}))
}

// teamPolicy is a namespace's policy for the pods of an app: it allows ingress from one other app of the namespace, and
// from all pods of the next and the previous namespace, and egress likewise.
func teamPolicy(namespace, app int) *networkingv1.NetworkPolicy {
	peers := func(app int) []networkingv1.NetworkPolicyPeer {
		next := namespaces(team(namespace + 1))
		before := namespaces(team(namespace + manyNamespaces - 1))
		return []networkingv1.NetworkPolicyPeer{{PodSelector: apps(fmt.Sprint("app-", app%policiesEach))},
			{NamespaceSelector: next}, {NamespaceSelector: before}}
	}
	ports := []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(8080))}}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("policy-", app), Namespace: team(namespace)},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: *apps(fmt.Sprint("app-", app)),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers(app + 1), Ports: ports}},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers(app + policiesEach - 1), Ports: ports}}}}
}

// installs starts the agent on an empty switch, this many times, and returns the times until the second pod reaches the
// first.
func (x policiesBed) installs(pods []member, times int) (took []float64) {
	x.b.Helper()
	var l net.Listener
	x.must(x.host.DoNet(pods[0].netns, func() (err error) { l, err = net.Listen("tcp4", ":8080"); return err }))
	defer l.Close()
	for range times {
		x.stop()
		x.emptySwitch()
		begin := time.Now()
		x.start()
		x.must(x.host.DoNet(pods[1].netns, func() error {
			for deadline := begin.Add(time.Minute); ; {
				conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(pods[0].addr, 8080).String(), 50*time.Millisecond)
				if err == nil {
					return conn.Close()
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("a pod does not reach another, which a rule allows: %w\n%s", err, x.log())
				}
			}
		}))
		took = append(took, ms(time.Since(begin)))
	}
	return took
}

// flows is the number of flows of the switch.
func (x policiesBed) flows() float64 {
	x.b.Helper()
	out, err := x.lab.NodeExec(x.b.Context(), node, "ovs-ofctl", "dump-aggregate", "br-int")
	x.must(err)
	_, count, _ := strings.Cut(out, "flow_count=")
	n, err := strconv.Atoi(strings.TrimSpace(count))
	x.must(err)
	return float64(n)
}

// stream is datagrams from one pod to another, one every half millisecond.
type stream struct {
	x    policiesBed
	last atomic.Int64 // time of the last arrival, in ns since 1970
}

func (x policiesBed) stream(from, to member) *stream {
	x.b.Helper()
	s := &stream{x: x}
	var in net.PacketConn
	var out net.Conn
	x.must(x.host.DoNet(to.netns, func() (err error) { in, err = net.ListenPacket("udp4", ":9000"); return err }))
	x.must(x.host.DoNet(from.netns, func() (err error) {
		out, err = net.Dial("udp4", netip.AddrPortFrom(to.addr, 9000).String())
		return err
	}))
	ended := make(chan struct{})
	x.b.Cleanup(func() { close(ended); in.Close(); out.Close() })
	go func() {
		for {
			if _, _, err := in.ReadFrom(make([]byte, 1)); err != nil {
				return
			}
			s.last.Store(time.Now().UnixNano())
		}
	}()
	go func() {
		for tick := time.NewTicker(500 * time.Microsecond); ; {
			_, _ = out.Write([]byte{0}) // an error counts as a datagram that was not sent
			select {
			case <-ended:
				return
			case <-tick.C:
			}
		}
	}()
	return s
}

// still is the time without a datagram after which datagrams count as denied: longer than any pause of the machine.
const still = 500 * time.Millisecond

// until makes a change, and returns the milliseconds until the first datagram arrives, or until the last one did.
func (s *stream) until(arrives bool, change func()) float64 {
	s.x.b.Helper()
	begin := time.Now()
	change()
	for deadline := begin.Add(time.Minute); ; time.Sleep(100 * time.Microsecond) {
		last := time.Unix(0, s.last.Load())
		switch {
		case arrives && last.After(begin), !arrives && time.Since(last) > still:
			s.x.sleep(still) // so that the next change does not overlap this one's remaining work
			return max(0, ms(last.Sub(begin)))
		case time.Now().After(deadline):
			s.x.b.Fatalf("datagrams arrive: %t, a minute after a change by which they should: %t\n%s", !arrives, arrives, s.x.log())
		}
	}
}
