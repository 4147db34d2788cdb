package inputs

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// judged receives the objects that policies depend on, until the test ends.
type judged struct {
	*cluster
	k    *Kubernetes
	seen map[feed.Key]any
	// lost are Pods that were reported as gone.
	lost []string
}

func (c *cluster) judged(t *testing.T) *judged {
	file := filepath.Join(c.dir, "policies.json")
	return &judged{c, c.source(func(k *Kubernetes) { k.FollowPolicies(file) }), map[feed.Key]any{}, nil}
}

func (j *judged) until(what string, ok func() bool) {
	j.t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		changed, _, known := j.k.PolicyObjects().Take()
		for key, v := range changed {
			if j.seen[key] = v; v == nil && key.Kind == feed.Pod {
				j.lost = append(j.lost, key.Name)
			}
		}
		if known && ok() {
			return
		}
		if time.Since(start) > patience {
			j.t.Fatalf("%s: not within %s, but known: %v, %v", what, patience, known, j.seen)
		}
	}
}

func (j *judged) has(kind, name string, ok func(v any) bool) func() bool {
	return func() bool {
		v, there := j.seen[feed.Key{Kind: kind, Name: name}]
		return there && ok(v)
	}
}

func gone(v any) bool { return v == nil }

// pod reports whether a running Pod is known.
func (j *judged) pod(name string) bool {
	p, is := j.seen[feed.Key{Kind: feed.Pod, Name: name}].(*policy.Pod)
	return is && len(p.Addrs) == 1 && p.Labels["app"] != ""
}

// run creates a running Pod.
func (c *cluster) run(namespace, name, node, addr string) {
	c.t.Helper()
	pods := c.Admin().CoreV1().Pods(namespace)
	p, err := pods.Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	c.must(err)
	c.t.Cleanup(func() {
		_ = pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}) // if any
	})
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addr, PodIPs: []corev1.PodIP{{IP: addr}}}
	_, err = pods.UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{})
	c.must(err)
}

// allow creates a NetworkPolicy for all Pods of the namespace default, with these peers.
func (c *cluster) allow(name string, from networkingv1.NetworkPolicyPeer) {
	c.t.Helper()
	_, err := c.Admin().NetworkingV1().NetworkPolicies("default").Create(c.t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{from}}}},
	}, metav1.CreateOptions{})
	c.must(err)
}

// The objects that policies depend on are read with the shipped RBAC rules. Without their CRD it is known that there
// are no ClusterNetworkPolicies, and they are read once it is installed.
func TestKubePolicyObjects(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	j := c.judged(t)
	j.until("the namespace", j.has(feed.Namespace, "default", func(v any) bool {
		n, ok := v.(policy.Namespace)
		return ok && n.Labels[corev1.LabelMetadataName] == "default"
	}))
	for _, is := range []string{"true", "false"} {
		_, err := c.Admin().CoreV1().Namespaces().Patch(t.Context(), "default", types.MergePatchType,
			[]byte(`{"metadata": {"annotations": {"`+api.AnnotationLogDenied+`": "`+is+`"}}}`), metav1.PatchOptions{})
		c.must(err)
		j.until("the annotation "+is, j.has(feed.Namespace, "default", func(v any) bool {
			n, ok := v.(policy.Namespace)
			return ok && n.LogDenied == (is == "true")
		}))
	}
	j.until("the Node", j.has(feed.Node, "me", func(v any) bool { _, ok := v.(policy.Node); return ok }))
	c.run("default", "mine", "me", "10.0.0.8")
	j.until("the Pod of this node", func() bool { return j.pod("default/mine") })
	if p := j.seen[feed.Key{Kind: feed.Pod, Name: "default/mine"}].(*policy.Pod); !p.Local {
		t.Errorf("%+v is not local", p)
	}
	c.must(c.Admin().CoreV1().Pods("default").Delete(t.Context(), "mine", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	j.until("its deletion", j.has(feed.Pod, "default/mine", gone))
	all := c.Admin().NetworkingV1().NetworkPolicies("default")
	c.allow("deny", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}})
	j.until("the policy", j.has(feed.NetworkPolicy, "default/deny", func(v any) bool {
		p, ok := v.(policy.Policy)
		return ok && p.Isolates[policy.Ingress]
	}))
	c.must(all.Delete(t.Context(), "deny", metav1.DeleteOptions{}))
	j.until("its deletion", j.has(feed.NetworkPolicy, "default/deny", gone))
	c.clusterPolicies(t, "v1alpha2", func() {
		j.until("the ClusterNetworkPolicy", j.has(feed.ClusterNetworkPolicy, "deny", func(v any) bool {
			p, ok := v.(policy.Policy)
			return ok && p.Tier == policy.Admin && len(p.Rules[policy.Ingress]) == 1
		}))
	})
}

// A Node that is rejected because its podCIDR or an annotation is invalid is still used by policies.
func TestKubePoliciesSeeWhatIsRefused(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.makeNode(1, func(n *corev1.Node) { n.Annotations = map[string]string{transportAddresses: "nonsense"} })
	j := c.judged(t)
	node := func(addr string) func(any) bool {
		return func(v any) bool {
			n, ok := v.(policy.Node)
			return ok && slices.Contains(n.Addrs, netip.MustParseAddr(addr))
		}
	}
	j.until("the Node", j.has(feed.Node, "node-1", node("192.0.0.1")))
	c.until(j.k, "the problem", func(s *Snapshot) bool { return len(s.Problems) == 1 && s.Nodes["node-1"].Name == "" })
	n, err := c.Admin().CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	c.must(err)
	n.Status.Addresses[0].Address = "192.0.2.77" // rejected for the same reason
	_, err = c.Admin().CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	c.must(err)
	j.until("its new address", j.has(feed.Node, "node-1", node("192.0.2.77")))
	c.must(c.Admin().CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
	j.until("its deletion", j.has(feed.Node, "node-1", gone))
}

// Only those Pods of other nodes are read that policies of this node's Pods can refer to: they are known once such a
// policy is passed on, stay known when others are read as well, and are dropped with it.
func TestKubePeers(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.run("default", "mine", "me", "10.0.0.8")
	c.run("default", "far", "another", "10.0.0.9")
	c.run("kube-public", "further", "another", "10.0.0.10")
	j := c.judged(t)
	j.until("the Pod of this node", func() bool { return j.pod("default/mine") })
	if len(j.seen) == 0 || j.pod("default/far") || j.pod("kube-public/further") {
		t.Fatalf("without policies these Pods of other nodes are read: %v", j.seen)
	}
	c.allow("own", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}})
	j.until("a policy of its own namespace", func() bool {
		return j.seen[feed.Key{Kind: feed.NetworkPolicy, Name: "default/own"}] != nil
	})
	if !j.pod("default/far") || j.pod("kube-public/further") {
		t.Fatalf("the policy is known, and of Pods: %v", j.seen)
	}
	c.allow("all", networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}})
	j.until("a policy of all namespaces", func() bool {
		return j.seen[feed.Key{Kind: feed.NetworkPolicy, Name: "default/all"}] != nil
	})
	if !j.pod("default/far") || !j.pod("kube-public/further") {
		t.Fatalf("the policy of all namespaces is known, and of Pods: %v", j.seen)
	}
	c.run("kube-public", "late", "another", "10.0.0.11")
	j.until("a Pod that comes later", func() bool { return j.pod("kube-public/late") })
	all := c.Admin().NetworkingV1().NetworkPolicies("default")
	c.must(all.Delete(t.Context(), "all", metav1.DeleteOptions{}))
	j.until("the Pods of other namespaces to be forgotten", func() bool {
		return j.has(feed.Pod, "kube-public/late", gone)() && j.has(feed.Pod, "kube-public/further", gone)()
	})
	if len(j.lost) != 2 {
		t.Errorf("reported as gone: %v, want the two of kube-public, once", j.lost)
	}
	c.must(all.Delete(t.Context(), "own", metav1.DeleteOptions{}))
	j.until("all Pods of other nodes to be forgotten", j.has(feed.Pod, "default/far", gone))
	if !j.pod("default/mine") {
		t.Error("the Pod of this node is forgotten")
	}
}

// What is known about policies survives a restart without the API server, including a policy that was added just
// before; what was deleted meanwhile is removed when the server answers.
func TestKubePoliciesOfBefore(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.run("default", "mine", "me", "10.0.0.8")
	c.run("default", "far", "another", "10.0.0.9")
	door := c.door()
	file := filepath.Join(c.dir, "policies.json")
	t.Run("before", func(t *testing.T) {
		inner := *c
		inner.t = t
		j := inner.judged(t)
		j.until("the Pod of this node", func() bool { return j.pod("default/mine") })
		c.allow("own", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}})
		j.until("the policy", j.has(feed.NetworkPolicy, "default/own", func(v any) bool { return v != nil }))
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "own") {
			t.Errorf("the policy can be enforced and is not saved: %s, %v", text, err)
		}
	})
	door.shut()
	j := c.judged(t)
	j.until("what was saved", func() bool { return j.pod("default/mine") && j.pod("default/far") })
	if !j.has(feed.NetworkPolicy, "default/own", func(v any) bool { return v.(policy.Policy).Isolates[policy.Ingress] })() {
		t.Errorf("known: %v", j.seen)
	}
	c.must(c.Admin().NetworkingV1().NetworkPolicies("default").Delete(t.Context(), "own", metav1.DeleteOptions{}))
	j.lost = nil
	door.open()
	j.until("the policy's deletion", j.has(feed.NetworkPolicy, "default/own", gone))
	j.until("the peer's", j.has(feed.Pod, "default/far", gone))
	if len(j.lost) != 1 || !j.pod("default/mine") {
		t.Errorf("reported as gone: %v", j.lost)
	}
}

// clusterPolicies installs the CRD and a ClusterNetworkPolicy, and deletes both when seen has returned.
func (c *cluster) clusterPolicies(t *testing.T, version string, seen func()) {
	t.Helper()
	crd, deny := filepath.Join(c.dir, "crd.yaml"), filepath.Join(c.dir, "deny.yaml")
	names := "kind: ClusterNetworkPolicy, plural: clusternetworkpolicies, singular: clusternetworkpolicy"
	c.must(os.WriteFile(crd, []byte(fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusternetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {%s}
  versions:
  - name: %s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, names, version)), 0o600))
	c.must(c.Apply(t.Context(), crd, ""))
	defer func() {
		if err := c.Objects().Remove(t.Context(), apitest.Definitions, "", definition); !apierrors.IsNotFound(err) {
			c.must(err)
		}
	}()
	c.must(os.WriteFile(deny, []byte(strings.TrimSpace(`
{apiVersion: policy.networking.k8s.io/`+version+`, kind: ClusterNetworkPolicy, metadata: {name: deny},
 spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}
`)), 0o600))
	c.must(c.Apply(t.Context(), deny, ""))
	seen()
}
