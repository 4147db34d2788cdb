// Package verdict finds out what policies mean for a connection, from the cluster's objects, and what this node's Open
// vSwitch does with it. Both must agree.
package verdict

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Cluster is all that policies depend on.
type Cluster struct {
	Compiler *compile.Compiler
	Pods     map[policy.PodKey]policy.Pod
	Policies []policy.Policy
	// Problems are the parts of policies that are not understood.
	Problems []string
	nodes    map[string]netip.Addr // their first internal addresses
	homes    map[policy.PodKey]string
}

// New returns a Cluster of pods, without anything else yet. Rules are computed for those for which local is true.
func New(pods []corev1.Pod, local func(policy.PodKey) bool) *Cluster {
	c := &Cluster{Compiler: compile.New(), Pods: map[policy.PodKey]policy.Pod{}, nodes: map[string]netip.Addr{},
		homes: map[policy.PodKey]string{}}
	for i := range pods {
		p, running := policy.FromPod(&pods[i], "")
		if !running {
			continue
		}
		p.Local = local(p.PodKey)
		c.Pods[p.PodKey], c.homes[p.PodKey] = p, pods[i].Spec.NodeName
		c.Compiler.SetPod(&p)
	}
	return c
}

// Read reads all that policies depend on. A cluster without that API has no ClusterNetworkPolicies.
func Read(ctx context.Context, client *kube.Client, local func(policy.PodKey) bool) (*Cluster, error) {
	all := metav1.ListOptions{}
	pods, err := client.Kubernetes.CoreV1().Pods(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("reading Pods: %w", err)
	}
	c := New(pods.Items, local)
	namespaces, err := client.Kubernetes.CoreV1().Namespaces().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("reading Namespaces: %w", err)
	}
	for i := range namespaces.Items {
		c.Compiler.SetNamespace(policy.FromNamespace(&namespaces.Items[i]))
	}
	nodes, err := client.Kubernetes.CoreV1().Nodes().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("reading Nodes: %w", err)
	}
	for i := range nodes.Items {
		c.takeNode(&nodes.Items[i])
	}
	return c, c.readPolicies(ctx, client)
}

func (c *Cluster) takeNode(n *corev1.Node) {
	c.Compiler.SetNode(policy.FromNode(n))
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if _, had := c.nodes[n.Name]; !had && err == nil && a.Type == corev1.NodeInternalIP {
			c.nodes[n.Name] = ip
		}
	}
}

// kind is how policies of one kind are read.
type kind struct {
	resource schema.GroupVersionResource
	parse    func([]byte) (policy.Policy, error)
}

func kinds() map[string]kind {
	return map[string]kind{
		feed.NetworkPolicy: {schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1",
			Resource: "networkpolicies"}, policy.ParseNetworkPolicy},
		feed.ClusterNetworkPolicy: {schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2",
			Resource: "clusternetworkpolicies"}, policy.ParseClusterNetworkPolicy},
	}
}

func (c *Cluster) readPolicies(ctx context.Context, client *kube.Client) error {
	for _, kind := range kinds() {
		list, err := client.Dynamic.Resource(kind.resource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", kind.resource.Resource, err)
		}
		for i := range list.Items {
			doc, err := list.Items[i].MarshalJSON()
			if err != nil {
				return err
			}
			p, err := kind.parse(doc)
			if err != nil {
				return err
			}
			c.SetPolicy(p)
		}
	}
	return nil
}

// SetPolicy adds a policy.
func (c *Cluster) SetPolicy(p policy.Policy) {
	for _, problem := range p.Problems {
		c.Problems = append(c.Problems, p.Ref.String()+": "+problem)
	}
	c.Policies = append(c.Policies, p)
	c.Compiler.SetPolicy(p)
}
