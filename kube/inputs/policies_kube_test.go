package inputs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

// Policies, Pods of all nodes, Namespaces and Nodes are followed with the shipped RBAC rules. ClusterNetworkPolicies
// are known to be none without their CRD, and are followed when it comes.
func TestKubePolicyObjects(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	k := c.source((*Kubernetes).FollowPolicies)
	seen := map[feed.Key]any{}
	until := func(what string, ok func() bool) {
		t.Helper()
		for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			changed, _, known := k.PolicyObjects().Take()
			if maps.Copy(seen, changed); known && ok() {
				return
			}
			if time.Since(start) > patience {
				t.Fatalf("%s: not within %s, but known: %v, %v", what, patience, known, seen)
			}
		}
	}
	is := func(kind, name string, ok func(v any) bool) func() bool {
		return func() bool {
			v, there := seen[feed.Key{Kind: kind, Name: name}]
			return there && ok(v)
		}
	}
	gone := func(v any) bool { return v == nil }
	until("the namespace", is(feed.Namespace, "default", func(v any) bool {
		n, ok := v.(policy.Namespace)
		return ok && n.Labels[corev1.LabelMetadataName] == "default"
	}))
	until("the Node", is(feed.Node, "me", func(v any) bool { _, ok := v.(policy.Node); return ok }))

	pods := c.Admin().CoreV1().Pods("default")
	p, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "far", Labels: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{NodeName: "another", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	c.must(err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.9", PodIPs: []corev1.PodIP{{IP: "10.0.0.9"}}}
	_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	c.must(err)
	until("the pod of another node", is(feed.Pod, "default/far", func(v any) bool {
		p, ok := v.(policy.Pod)
		return ok && len(p.Addrs) == 1 && p.Labels["a"] == "b" && !p.Local
	}))
	c.must(pods.Delete(t.Context(), "far", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	until("its deletion", is(feed.Pod, "default/far", gone))

	all := c.Admin().NetworkingV1().NetworkPolicies("default")
	deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}}
	_, err = all.Create(t.Context(), deny, metav1.CreateOptions{})
	c.must(err)
	until("the policy", is(feed.NetworkPolicy, "default/deny", func(v any) bool {
		p, ok := v.(policy.Policy)
		return ok && p.Isolates[policy.Ingress]
	}))
	c.must(all.Delete(t.Context(), "deny", metav1.DeleteOptions{}))
	until("its deletion", is(feed.NetworkPolicy, "default/deny", gone))
	c.clusterPolicies(t, func() {
		until("the ClusterNetworkPolicy", is(feed.ClusterNetworkPolicy, "deny", func(v any) bool {
			p, ok := v.(policy.Policy)
			return ok && p.Tier == policy.Admin && len(p.Rules[policy.Ingress]) == 1
		}))
	})
}

// clusterPolicies installs the CRD and a ClusterNetworkPolicy, and deletes both when seen has returned.
func (c *cluster) clusterPolicies(t *testing.T, seen func()) {
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
  - name: v1alpha2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, names)), 0o600))
	c.must(c.Kubectl(t.Context(), "apply", "-f", crd))
	defer func() { c.must(c.Kubectl(t.Context(), "delete", "-f", crd)) }()
	c.must(c.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "-f", crd))
	c.must(os.WriteFile(deny, []byte(strings.TrimSpace(`
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: deny},
 spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}
`)), 0o600))
	deadline := time.Now().Add(patience)
	for err := c.Kubectl(t.Context(), "apply", "-f", deny); err != nil; err = c.Kubectl(t.Context(), "apply", "-f", deny) {
		if time.Now().After(deadline) { // a CRD is served some time after it is established
			t.Fatal(err)
		}
	}
	seen()
}
