package compile_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/policytest"
)

// With colliding hashes, the numbers depend on the order, and the verdicts do not.
func TestEqualHashes(t *testing.T) {
	t.Parallel()
	policytest.Cases(t, 500, func(_ *testing.T, seed uint64) error {
		r := policytest.New(seed, false)
		w := r.World()
		c := compile.NewWithHash(func(text string) uint32 { return uint32(len(text) % 3) })
		w.Load(r, c)
		flows := policytest.Flows{}
		judged := [2]int{}
		for range 3 {
			if err := flows.Apply(c.Changes()); err != nil {
				return err
			}
			if err := compare(r, w, c, flows, &judged); err != nil {
				return err
			}
			change(r, &w, c)
		}
		return nil
	})
}

// one is a compiler of one local pod, ns0/pod0, and its flows.
type one struct {
	*compile.Compiler
	t     *testing.T
	flows policytest.Flows
}

func newOne(t *testing.T) one {
	o := one{compile.New(), t, policytest.Flows{}}
	o.SetNamespace(policy.Namespace{Name: name(0)})
	o.SetPod(podOf(0, 0, true))
	return o
}

func (o one) SetPod(p policy.Pod) { o.Compiler.SetPod(&p) }

// ingress returns the decision on TCP to port 80, by Judge and by the flows, which must agree.
func (o one) ingress(from string) compile.Decision {
	o.t.Helper()
	if err := o.flows.Apply(o.Changes()); err != nil {
		o.t.Fatal(err)
	}
	about := toPort80(0, from)
	d, ok := o.Judge(about)
	if v, err := o.flows.Judge(about); err != nil || v != d.Verdict || !ok {
		o.t.Errorf("from %s: Judge says %v, %v, the flows %v, %v", from, d.Verdict, ok, v, err)
	}
	return d
}

func toPort80(pod int, from string) compile.Connection {
	return compile.Connection{Pod: podOf(0, pod, true).PodKey, Peer: netip.MustParseAddr(from), Protocol: policy.TCP,
		Port: 80}
}

func (o one) want(from string, v policy.Verdict, why string) {
	o.t.Helper()
	if d := o.ingress(from); d.Verdict != v {
		o.t.Errorf("%s: from %s %v, want %v", why, from, d.Verdict, v)
	}
}

func ingress(name, subject string, peers ...networkingv1.NetworkPolicyPeer) policy.Policy {
	o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns0", Name: name}}
	if subject != "" {
		o.Spec.PodSelector = *labels("app", subject)
	}
	if len(peers) > 0 {
		o.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers}}
	}
	return policy.FromNetworkPolicy(o)
}

// The rules of a pod in a namespace that is not known yet are unknown.
func TestUnknownNamespace(t *testing.T) {
	o := newOne(t)
	o.want("10.0.0.1", policy.Accept, "no policies")
	o.DeleteNamespace(name(0))
	if d := o.ingress("10.0.0.1"); d.Verdict != policy.Deny || !d.Closed {
		t.Errorf("without the namespace: %+v", d)
	}
	o.SetNamespace(policy.Namespace{Name: name(0)})
	o.want("10.0.0.1", policy.Accept, "the namespace is back")

	// Nor is a peer of an unknown namespace selected because of a label that it does not have.
	not := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "x", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	o.SetPolicy(ingress("a", "", networkingv1.NetworkPolicyPeer{NamespaceSelector: &not}))
	o.SetPod(podOf(1, 1, false))
	o.want("10.1.0.1", policy.Deny, "a peer of an unknown namespace")
	o.SetNamespace(policy.Namespace{Name: name(1)})
	o.want("10.1.0.1", policy.Accept, "a peer of a known one")
}

// An address that two pods have belongs to the later one.
func TestTwoPodsWithOneAddress(t *testing.T) {
	o := newOne(t)
	o.SetPolicy(ingress("a", "", networkingv1.NetworkPolicyPeer{PodSelector: labels("app", "app1")}))
	old, late := podOf(0, 1, false), podOf(0, 2, false)
	late.Addrs, late.Created = old.Addrs, 7
	o.SetPod(old)
	o.want("10.0.0.1", policy.Accept, "the only pod")
	o.SetPod(late)
	o.want("10.0.0.1", policy.Deny, "the later pod is of another app")
	here := old
	here.Local = true
	o.SetPod(here)
	o.want("10.0.0.1", policy.Accept, "the node itself has given the address to the older pod")
	o.SetPod(old)
	o.want("10.0.0.1", policy.Deny, "the older pod has gone from the node")
	o.DeletePod(late.PodKey)
	o.want("10.0.0.1", policy.Accept, "the later pod is gone")
}

// A pod that another one of its name replaces with hostNetwork, and one that moves to another node.
func TestPodsThatAreReplaced(t *testing.T) {
	o := newOne(t)
	o.SetPolicy(ingress("a", "", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}))
	peer := podOf(0, 1, false)
	o.SetPod(peer)
	o.want("10.0.0.1", policy.Accept, "a pod")
	peer.HostNetwork = true
	o.SetPod(peer)
	o.want("10.0.0.1", policy.Deny, "a pod with hostNetwork")
	o.SetPod(podOf(0, 0, false))
	if err := o.flows.Apply(o.Changes()); err != nil || len(o.flows) != 0 {
		t.Errorf("without local pods: %v, %v", err, o.flows)
	}
}

// ClusterNetworkPolicies of equal priority are evaluated by name.
func TestEqualPriorities(t *testing.T) {
	o := newOne(t)
	cluster := func(name string, action v1alpha2.ClusterNetworkPolicyRuleAction) policy.Policy {
		p := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.Tier = v1alpha2.AdminTier
		p.Spec.Subject.Namespaces = &metav1.LabelSelector{}
		p.Spec.Ingress = []v1alpha2.ClusterNetworkPolicyIngressRule{{Action: action, Name: "r",
			From: []v1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: &metav1.LabelSelector{}}}}}
		return policy.FromClusterNetworkPolicy(p)
	}
	o.SetPod(podOf(0, 1, false))
	o.SetPolicy(cluster("b", "Accept"))
	o.want("10.0.0.1", policy.Accept, "b")
	o.SetPolicy(cluster("a", "Deny"))
	o.want("10.0.0.1", policy.Deny, "a before b")
	o.SetPolicy(cluster("a", "Pass"))
	o.SetPolicy(ingress("np", ""))
	o.want("10.0.0.1", policy.Deny, "a passes to the NetworkPolicy")
	o.DeletePolicy(policy.Ref{Kind: "ClusterNetworkPolicy", Name: "a"})
	o.want("10.0.0.1", policy.Accept, "b before the NetworkPolicy")
}

// One port number with two names, on two pods, is one part of a rule with both pods as subjects.
func TestNamedPortsOfOneNumber(t *testing.T) {
	o := newOne(t)
	port := func(n int, name string) policy.Pod {
		p := podOf(0, n, true)
		p.Ports = []policy.PodPort{{NamedPort: policy.NamedPort{Protocol: policy.TCP, Name: name}, Number: 80}}
		return p
	}
	o.SetPod(port(0, "web"))
	o.SetPod(port(1, "http"))
	np := ingress("np", "", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}})
	np.Rules[policy.Ingress][0].AnyPort = false
	np.Rules[policy.Ingress][0].NamedPorts = []policy.NamedPort{{Protocol: policy.TCP, Name: "http"},
		{Protocol: policy.TCP, Name: "web"}}
	o.SetPolicy(np)
	o.want("10.0.0.1", policy.Accept, "port web")
	if d, _ := o.Judge(toPort80(1, "10.0.0.0")); d.Verdict != policy.Accept {
		t.Errorf("port http: %+v", d)
	}
}

// The reasons of a decision: the rule that decides, the policies that isolate, and the rules that almost accept.
func TestReasons(t *testing.T) {
	o := newOne(t)
	o.SetPod(podOf(0, 1, false))
	isolate := ingress("isolate", "app0")
	http := policyOf(0, 0, []networkingv1.NetworkPolicyPeer{{PodSelector: labels("app", "app1")}}) // port 8000
	o.SetPolicy(isolate)
	o.SetPolicy(http)
	d := o.ingress("10.0.0.1")
	rule := compile.RuleRef{Policy: http.Ref, Tier: policy.NetworkPolicy, Verdict: policy.Accept}
	ports := []policy.PortRange{{Protocol: policy.TCP, First: 8000, Last: 8000}}
	want := compile.Decision{Verdict: policy.Deny, Tier: policy.NetworkPolicy,
		IsolatedBy: []policy.Ref{isolate.Ref, http.Ref}, Misses: []compile.Miss{{Rule: rule, Peer: true, Ports: ports}}}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("the reasons are %+v, want %+v", d, want)
	}
	o.SetPolicy(ingress("more", "", networkingv1.NetworkPolicyPeer{PodSelector: labels("app", "app1")}))
	if d = o.ingress("10.0.0.1"); d.Verdict != policy.Accept || d.Rule.Policy.Name != "more" {
		t.Errorf("the rule is %+v", d.Rule)
	}
	for _, f := range o.Flows() {
		r, ok := o.Rule(f.By)
		if f.Kind == compile.Rule && (!ok || !strings.HasPrefix(r.Policy.Namespace, "ns0")) {
			t.Errorf("the rule %d is %+v, %v", f.By, r, ok)
		}
	}
}

// More rules than one flow can have are reported.
func TestTooManyRules(t *testing.T) {
	o := newOne(t)
	for i := range compile.MaxClauses + 1 {
		o.SetPolicy(ingress(fmt.Sprint("p", i), "", networkingv1.NetworkPolicyPeer{PodSelector: labels("app", "app1")}))
	}
	o.SetPod(podOf(0, 1, false))
	o.Changes()
	want := []string{"4001 rules for one group of peers share one flow, and 4000 fit: the others accept nothing",
		"4001 rules for one pod share one flow, and 4000 fit: the others accept nothing"}
	if got := o.Problems(); !reflect.DeepEqual(got, want) {
		t.Errorf("the problems are %q", got)
	}
}

// Nothing is kept for deleted objects, in whatever order they are deleted.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	policytest.Cases(t, 300, func(_ *testing.T, seed uint64) error {
		r := policytest.New(seed, false)
		w := r.World()
		c := compile.New()
		w.Load(r, c)
		for range 5 {
			c.Changes()
			if _, stale := c.Held(); stale > 0 {
				return fmt.Errorf("%d things are stale", stale)
			}
			change(r, &w, c)
		}
		var steps []func()
		for _, n := range w.Namespaces {
			steps = append(steps, func() { c.DeleteNamespace(n.Name) })
		}
		for _, n := range w.Nodes {
			steps = append(steps, func() { c.DeleteNode(n.Name) })
		}
		for _, p := range w.Pods {
			steps = append(steps, func() { c.DeletePod(policy.PodKey{Namespace: p.Namespace, Name: p.Name}) })
		}
		for _, p := range w.Policies {
			steps = append(steps, func() { c.DeletePolicy(policytest.NetworkPolicy(p).Ref) })
		}
		for _, p := range w.Cluster {
			steps = append(steps, func() { c.DeletePolicy(policytest.ClusterNetworkPolicy(p).Ref) })
		}
		r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		for _, step := range steps {
			step()
			if r.IntN(3) == 0 {
				c.Changes()
			}
		}
		c.Changes()
		if held, _ := c.Held(); held > 0 {
			return fmt.Errorf("%d things are left", held)
		}
		return nil
	})
}
