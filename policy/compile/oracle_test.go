package compile_test

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/policytest"
)

// 1,000 clusters with some 18 connections each, or ten times as many with FAIRLEAD_TEST_LONG=1. Each cluster changes
// twice: after each change, Judge and the flows agree with the specifications, and at the end the flows are those of a
// Compiler that has seen only the final state.
func TestOracle(t *testing.T) {
	t.Parallel()
	n := 1000
	if os.Getenv("FAIRLEAD_TEST_LONG") != "" {
		n = 10000
	}
	judged := [2]int{}
	policytest.Cases(t, n, func(t *testing.T, seed uint64) error {
		r := policytest.New(seed, false)
		w := r.World()
		c := compile.New()
		w.Load(r, c)
		flows := policytest.Flows{}
		for step := range 3 {
			if step > 0 {
				change(r, &w, c)
			}
			if err := flows.Apply(c.Changes()); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			if err := compare(r, w, c, flows, &judged); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		again := compile.New()
		w.Load(r, again)
		return same(flows, again)
	})
	t.Logf("denied %d, accepted %d", judged[0], judged[1])
}

// compare checks some connections.
func compare(r policytest.Random, w policytest.World, c *compile.Compiler, flows policytest.Flows,
	judged *[2]int) error {
	for range 10 {
		packet := r.Connection(w)
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			about, ok := w.About(packet, d)
			if !ok {
				continue
			}
			want := policy.Deny
			if w.Allowed(packet, d == policy.Egress) {
				want = policy.Accept
			}
			judged[2-want]++
			got, ok := c.Judge(about)
			if !ok || got.Verdict != want {
				return fmt.Errorf("%s of %+v: Judge says %+v, %v, want %v in\n%s", d, packet, got, ok, want, print(w))
			}
			if v, err := flows.Judge(about); err != nil || v != want {
				return fmt.Errorf("%s of %+v: the flows say %v, %v, want %v in\n%s", d, packet, v, err, want, print(w))
			}
			if want == policy.Deny {
				if err := without(flows, about); err != nil {
					return fmt.Errorf("%s of %+v: %w in\n%s", d, packet, err, print(w))
				}
			}
		}
	}
	return nil
}

// without deletes the flow with the class of the peer's address, as a manual change may. A denied connection stays
// denied, unless the flow guards it: the switch has such flows twice.
func without(flows policytest.Flows, about compile.Connection) error {
	for bits := about.Peer.BitLen(); bits >= 0; bits-- {
		p, err := about.Peer.Prefix(bits)
		if err != nil {
			return err
		}
		f, there := flows[compile.Match{Direction: about.Direction, Kind: compile.Address, Address: p}]
		if !there {
			continue
		}
		if f.Guards {
			return nil
		}
		delete(flows, f.Match)
		v, err := flows.Judge(about)
		flows[f.Match] = f
		if v == policy.Accept {
			return fmt.Errorf("denied, but accepted without %+v", f)
		}
		return err
	}
	return nil
}

// same compares flows with those of a new Compiler.
func same(flows policytest.Flows, again *compile.Compiler) error {
	fresh := policytest.Flows{}
	if err := fresh.Apply(again.Changes()); err != nil {
		return err
	}
	for m, f := range fresh {
		if !reflect.DeepEqual(f, flows[m]) {
			return fmt.Errorf("the flow %+v is %+v after changes", f, flows[m])
		}
	}
	for m, f := range flows {
		if _, there := fresh[m]; !there {
			return fmt.Errorf("the flow %+v is too many after changes", f)
		}
	}
	listed := policytest.Flows{}
	for _, f := range again.Flows() {
		listed[f.Match] = f
	}
	if !maps.EqualFunc(listed, fresh, func(a, b compile.Flow) bool { return reflect.DeepEqual(a, b) }) {
		return fmt.Errorf("Flows returns %d other flows than Changes, %d", len(listed), len(fresh))
	}
	return nil
}

// change changes one or two objects of w.
func change(r policytest.Random, w *policytest.World, c *compile.Compiler) {
	for range r.IntN(2) + 1 {
		switch r.IntN(7) {
		case 0, 1:
			i := r.IntN(len(w.Pods))
			old := w.Pods[i]
			w.Pods[i] = r.Pod(w, i)
			if w.Pods[i].Namespace != old.Namespace {
				c.DeletePod(policy.PodKey{Namespace: old.Namespace, Name: old.Name})
			}
			policytest.SetPod(c, w.Pods[i])
		case 2:
			i := r.IntN(len(w.Pods))
			w.Pods[i] = w.Pods[i].DeepCopy()
			w.Pods[i].Labels = r.Labels()
			policytest.SetPod(c, w.Pods[i])
		case 3:
			i := r.IntN(len(w.Namespaces))
			old := w.Namespaces[i]
			w.Namespaces[i] = old.DeepCopy()
			w.Namespaces[i].Labels = r.Labels()
			w.Namespaces[i].Labels[corev1.LabelMetadataName] = old.Name
			if r.IntN(3) == 0 {
				c.DeleteNamespace(old.Name)
			}
			c.SetNamespace(policy.FromNamespace(w.Namespaces[i]))
		case 4:
			i := r.IntN(len(w.Nodes) + 1)
			switch {
			case i == len(w.Nodes):
				w.Nodes = append(w.Nodes, r.Node(i))
			case i > 1 && r.IntN(2) == 0: // pods are on the first two
				c.DeleteNode(w.Nodes[len(w.Nodes)-1].Name)
				w.Nodes = w.Nodes[:len(w.Nodes)-1]
				continue
			default:
				w.Nodes[i] = r.Node(i)
			}
			c.SetNode(policy.FromNode(w.Nodes[i]))
		case 5:
			changePolicy(r, w, c)
		case 6:
			changeClusterPolicy(r, w, c)
		}
	}
}

func changePolicy(r policytest.Random, w *policytest.World, c *compile.Compiler) {
	i := r.IntN(len(w.Policies) + 1)
	if i == len(w.Policies) {
		w.Policies = append(w.Policies, r.Policy(w, i+100))
		c.SetPolicy(policytest.NetworkPolicy(w.Policies[i]))
		return
	}
	old := w.Policies[i]
	if r.IntN(3) == 0 {
		c.DeletePolicy(policytest.NetworkPolicy(old).Ref)
		w.Policies = append(w.Policies[:i:i], w.Policies[i+1:]...)
		return
	}
	w.Policies[i] = r.Policy(w, i)
	w.Policies[i].Name, w.Policies[i].Namespace = old.Name, old.Namespace
	c.SetPolicy(policytest.NetworkPolicy(w.Policies[i]))
}

func changeClusterPolicy(r policytest.Random, w *policytest.World, c *compile.Compiler) {
	i := r.IntN(len(w.Cluster) + 1)
	if i == len(w.Cluster) {
		if i == 5 { // each has a priority of its own
			return
		}
		w.Cluster = append(w.Cluster, r.ClusterPolicy(i))
		c.SetPolicy(policytest.ClusterNetworkPolicy(w.Cluster[i]))
		return
	}
	old := w.Cluster[i]
	if r.IntN(3) == 0 && i == len(w.Cluster)-1 {
		c.DeletePolicy(policytest.ClusterNetworkPolicy(old).Ref)
		w.Cluster = w.Cluster[:i:i]
		return
	}
	w.Cluster[i] = r.ClusterPolicy(i)
	w.Cluster[i].Name = old.Name
	c.SetPolicy(policytest.ClusterNetworkPolicy(w.Cluster[i]))
}

func print(w policytest.World) string {
	doc, err := json.Marshal(w)
	if err != nil {
		return err.Error()
	}
	return string(doc)
}
