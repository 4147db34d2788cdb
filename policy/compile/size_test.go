package compile_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// size is a cluster of 10,000 pods in 100 namespaces of 10 apps, with 10 policies in each namespace.
type size struct {
	name string
	// local reports whether the i-th pod of the n-th namespace is on this node.
	local func(n, i int) bool
	// peers returns the peers of the i-th policy of the n-th namespace.
	peers func(n, i int) []networkingv1.NetworkPolicyPeer
	// flows is the maximum number of one direction.
	flows int
}

func spread(_, i int) bool { return i == 0 }

func labels(pairs ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		s.MatchLabels[pairs[i]] = pairs[i+1]
	}
	return s
}

func name(n int) string { return fmt.Sprintf("ns%d", n%100) }
func app(i int) string  { return fmt.Sprintf("app%d", i%10) }

func sizes() []size {
	type peers = []networkingv1.NetworkPolicyPeer
	inNamespace := func(n int) *metav1.LabelSelector { return labels("kubernetes.io/metadata.name", name(n)) }
	return []size{
		{"spread: own namespace and another", spread, func(n, i int) peers {
			return peers{{PodSelector: &metav1.LabelSelector{}}, {NamespaceSelector: inNamespace(n + 1)}}
		}, 12000},
		{"spread: one app of the own namespace, and another namespace", spread, func(n, i int) peers {
			return peers{{PodSelector: labels("app", app(i+1))}, {NamespaceSelector: inNamespace(n + 1)}}
		}, 13500},
		{"packed: own namespace and another", func(n, _ int) bool { return n == 0 }, func(n, i int) peers {
			return peers{{PodSelector: &metav1.LabelSelector{}}, {NamespaceSelector: inNamespace(n + 1)}}
		}, 400},
		{"spread: every pod may reach every pod", spread, func(int, int) peers {
			return peers{{NamespaceSelector: &metav1.LabelSelector{}}}
		}, 12000},
		{"spread: one app of every namespace", spread, func(_, i int) peers {
			return peers{{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: labels("app", app(i))}}
		}, 12000},
	}
}

func podOf(n, i int, local bool) policy.Pod {
	return policy.Pod{PodKey: policy.PodKey{Namespace: name(n), Name: fmt.Sprintf("pod%d", i)}, Local: local,
		Labels: map[string]string{"app": app(i), "pod-template-hash": "5d4f8c7b9", "tier": "backend"},
		Addrs:  []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n), 0, byte(i)})},
		Ports:  []policy.PodPort{{NamedPort: policy.NamedPort{Protocol: policy.TCP, Name: "http"}, Number: 8080}}}
}

func policyOf(n, i int, peers []networkingv1.NetworkPolicyPeer) policy.Policy {
	o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: name(n), Name: fmt.Sprintf("np%d", i)}}
	o.Spec.PodSelector = *labels("app", "app0") // that of the local pod: all 1,000 policies apply to the node
	port := intstr.FromInt32(int32(8000 + i))
	ports := []networkingv1.NetworkPolicyPort{{Port: &port}}
	o.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress"}
	o.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}}
	o.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}}
	return policy.FromNetworkPolicy(o)
}

func (s size) load() *compile.Compiler {
	c := compile.New()
	for n := range 100 {
		c.SetNamespace(policy.Namespace{Name: name(n), Labels: map[string]string{"kubernetes.io/metadata.name": name(n)}})
		for i := range 100 {
			c.SetPod(new(podOf(n, i, s.local(n, i))))
		}
		for i := range 10 {
			c.SetPolicy(policyOf(n, i, s.peers(n, i)))
		}
	}
	return c
}

// The number of flows for 10,000 pods and 1,000 policies; a change of a peer pod changes only its own flows.
func TestFlowCounts(t *testing.T) {
	for _, s := range sizes() {
		c := s.load()
		all := c.Changes().Put
		counts := map[compile.Kind]int{}
		clauses, most := 0, 0
		for _, f := range all {
			if f.Direction == policy.Ingress {
				counts[f.Kind]++
				clauses += len(f.Clauses)
				most = max(most, len(f.Clauses))
			}
		}
		sum := 0
		for _, n := range counts {
			sum += n
		}
		t.Logf("%s: %d flows of ingress: %d addresses, %d classes, %d rules, %d pods, %d ports, %d isolated; %d clauses, "+
			"at most %d in a flow", s.name, sum, counts[compile.Address], counts[compile.Class], counts[compile.Rule],
			counts[compile.Pod], counts[compile.Port], counts[compile.Isolated], clauses, most)
		if sum > s.flows {
			t.Errorf("%s: more than %d flows per direction", s.name, s.flows)
		}
		if got := changesOf(c, podOf(1, 150, false)); got != 2 {
			t.Errorf("%s: a peer pod more is %d flows, want its own: one per direction", s.name, got)
		}
		c.DeletePod(podOf(1, 150, false).PodKey)
		if got := c.Changes(); len(got.Put)+len(got.Delete) > 2 {
			t.Errorf("%s: a peer pod less is %d flows", s.name, len(got.Put)+len(got.Delete))
		}
	}
}

func changesOf(c *compile.Compiler, p policy.Pod) int {
	c.SetPod(&p)
	changes := c.Changes()
	return len(changes.Put) + len(changes.Delete)
}

// 500 rules of ClusterNetworkPolicies for every pod: each has a rank of its own, and no address flows of its own.
func TestFlowCountsOfClusterNetworkPolicies(t *testing.T) {
	c := sizes()[0].load()
	c.Changes()
	for i := range 20 {
		o := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cnp%d", i)}}
		o.Spec.Tier, o.Spec.Priority = v1alpha2.AdminTier, int32(i)
		o.Spec.Subject.Namespaces = &metav1.LabelSelector{}
		for j := range 25 {
			peer := v1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: labels("kubernetes.io/metadata.name", name(25*i+j))}
			ssh := &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: &v1alpha2.Port{Number: 22}}
			o.Spec.Ingress = append(o.Spec.Ingress, v1alpha2.ClusterNetworkPolicyIngressRule{Action: "Deny",
				From:      []v1alpha2.ClusterNetworkPolicyIngressPeer{peer},
				Protocols: []v1alpha2.ClusterNetworkPolicyProtocol{{TCP: ssh}}})
		}
		c.SetPolicy(policy.FromClusterNetworkPolicy(o))
	}
	kinds := map[compile.Kind]int{}
	for _, f := range c.Changes().Put {
		kinds[f.Kind]++
	}
	t.Logf("500 rules: %v", kinds)
	if n := kinds[compile.Group]; n != 500 || kinds[compile.Member] != 100 {
		t.Errorf("500 rules are %d flows of groups and %d of pods, want 500 and 100", n, kinds[compile.Member])
	}
	addresses := 0
	for _, f := range c.Flows() {
		if f.Kind == compile.Address && f.Direction == policy.Ingress {
			addresses++
		}
	}
	if addresses != 10000 {
		t.Errorf("%d flows of addresses, want 10,000", addresses)
	}
}

// Each network, and each exception from one, is one flow.
func TestFlowCountsOfNetworks(t *testing.T) {
	blocks := func(n int) (out []networkingv1.NetworkPolicyPeer) {
		for i := range n {
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("172.%d.%d.0/24", i/256, i%256)}})
		}
		return out
	}
	var except []string
	for i := range 1000 {
		except = append(except, fmt.Sprintf("10.%d.%d.77/32", i%250, i*7%256))
	}
	for _, test := range []struct {
		name  string
		peers []networkingv1.NetworkPolicyPeer
		flows int
	}{
		{"1,000 ipBlocks", blocks(1000), 1000},
		{"a /8 with 1,000 excepts", []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: except}}}, 1001},
	} {
		c := compile.New()
		c.SetNamespace(policy.Namespace{Name: name(0)})
		c.SetPod(new(podOf(0, 0, true)))
		c.SetPolicy(policyOf(0, 0, test.peers))
		kinds := map[compile.Kind]int{}
		for _, f := range c.Changes().Put {
			if f.Direction == policy.Ingress {
				kinds[f.Kind]++
			}
		}
		t.Logf("%s: %v", test.name, kinds)
		if kinds[compile.Address] != test.flows || kinds[compile.Class] != 1 {
			t.Errorf("%s: %v, want %d addresses of 1 class", test.name, kinds, test.flows)
		}
	}
}

// cpu is the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkFromNothing(b *testing.B) {
	for _, s := range sizes() {
		b.Run(s.name, func(b *testing.B) {
			used := cpu(b)
			for b.Loop() {
				s.load().Changes()
			}
			b.ReportMetric(float64((cpu(b)-used).Milliseconds())/float64(b.N), "CPU-ms/op")
		})
	}
}

func BenchmarkPeerPod(b *testing.B) {
	for _, s := range sizes() {
		b.Run(s.name, func(b *testing.B) {
			c := s.load()
			c.Changes()
			p := podOf(1, 150, false)
			used := cpu(b)
			for b.Loop() {
				c.SetPod(&p)
				c.Changes()
				c.DeletePod(p.PodKey)
				c.Changes()
			}
			b.ReportMetric(float64((cpu(b)-used).Microseconds())/float64(b.N)/1000, "CPU-ms/op")
		})
	}
}

func BenchmarkPolicyChange(b *testing.B) {
	s := sizes()[1]
	c := s.load()
	c.Changes()
	for i := 0; b.Loop(); i++ {
		c.SetPolicy(policyOf(1, 3, s.peers(1, i%9)))
		c.Changes()
	}
}

func BenchmarkMemory(b *testing.B) {
	for _, s := range sizes() {
		b.Run(s.name, func(b *testing.B) {
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				c := s.load()
				c.Changes()
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(c)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		})
	}
}
