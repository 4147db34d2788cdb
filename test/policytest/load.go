package policytest

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/chaos"
)

// Local is the node whose pods are local.
const Local = "node0"

// Cases calls check with n seeds: those that have failed before, and then new ones. It prints the seed of one that
// fails, which belongs in testdata/seeds, and stops. The environment variable SEED repeats one.
func Cases(t *testing.T, n int, check func(t *testing.T, seed uint64) error) {
	t.Helper()
	seeds := chaos.Seeds(t)
	if !chaos.OneSeed() {
		start := New(chaos.Start(), false)
		for len(seeds) < n {
			seeds = append(seeds, start.Uint64())
		}
	}
	t.Logf("%d cases, the first seed is %d", len(seeds), seeds[0])
	for _, seed := range seeds {
		if err := check(t, seed); err != nil {
			t.Fatalf("SEED=%d: %v", seed, err)
		}
	}
}

// Load gives c the objects of w, in random order.
func (w World) Load(r Random, c *compile.Compiler) {
	var steps []func()
	for _, n := range w.Namespaces {
		steps = append(steps, func() { c.SetNamespace(policy.FromNamespace(n)) })
	}
	for _, n := range w.Nodes {
		steps = append(steps, func() { c.SetNode(policy.FromNode(n)) })
	}
	for _, p := range w.Pods {
		steps = append(steps, func() { SetPod(c, p) })
	}
	for _, p := range w.Policies {
		steps = append(steps, func() { c.SetPolicy(NetworkPolicy(p)) })
	}
	for _, p := range w.Cluster {
		steps = append(steps, func() { c.SetPolicy(ClusterNetworkPolicy(p)) })
	}
	r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		step()
	}
}

// SetPod gives c a pod as it is now, or deletes it if it has ended.
func SetPod(c *compile.Compiler, o *corev1.Pod) {
	if p, ok := policy.FromPod(o, Local); ok {
		c.SetPod(&p)
	} else {
		c.DeletePod(policy.PodKey{Namespace: o.Namespace, Name: o.Name})
	}
}

// NetworkPolicy reads o as the API server writes it.
func NetworkPolicy(o *networkingv1.NetworkPolicy) policy.Policy {
	return parse(o, policy.ParseNetworkPolicy)
}

// ClusterNetworkPolicy reads o as the API server writes it.
func ClusterNetworkPolicy(o *v1alpha2.ClusterNetworkPolicy) policy.Policy {
	return parse(o, policy.ParseClusterNetworkPolicy)
}

func parse(o any, read func([]byte) (policy.Policy, error)) policy.Policy {
	doc, err := json.Marshal(o)
	if err != nil {
		panic(err) // the types of the API
	}
	p, err := read(doc)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", doc, err))
	}
	return p
}

// About returns c as seen from one end; ok is false if its address is not a local pod's.
func (w World) About(c Connection, d policy.Direction) (about compile.Connection, ok bool) {
	self, peer := c.To, c.From
	if d == policy.Egress {
		self, peer = peer, self
	}
	p := w.PodAt(self)
	if p == nil || p.Spec.NodeName != Local {
		return about, false
	}
	numbers := map[corev1.Protocol]policy.Protocol{"TCP": policy.TCP, "UDP": policy.UDP, "SCTP": policy.SCTP}
	return compile.Connection{Direction: d, Pod: policy.PodKey{Namespace: p.Namespace, Name: p.Name}, Peer: peer,
		Protocol: numbers[c.Protocol], Port: uint16(c.Port)}, true
}
