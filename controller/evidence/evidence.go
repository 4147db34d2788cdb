// Package evidence reads from the API server whether pods of a node may still run. It uses no cache: a release cannot
// be undone.
package evidence

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// Node returns what matters for reclaim in a Node; n is nil if there is none.
func Node(n *corev1.Node) reclaim.ClusterNode {
	if n == nil {
		return reclaim.ClusterNode{}
	}
	return reclaim.ClusterNode{UID: string(n.UID), Created: n.CreationTimestamp.Time, Fenced: len(Fences(n)) > 0,
		Ready: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})}
}

// Fences returns the taints that fence a Node.
func Fences(n *corev1.Node) (out []corev1.Taint) {
	for _, t := range n.Spec.Taints {
		if t.Key == reclaim.TaintOutOfService {
			out = append(out, t)
		}
	}
	return out
}

// ReadNode reads the Node of that name; the zero value means that there is none.
func ReadNode(ctx context.Context, c kubernetes.Interface, name string) (reclaim.ClusterNode, error) {
	n, err := getNode(ctx, c, name)
	return Node(n), err
}

// getNode is the Node of that name, nil if there is none.
func getNode(ctx context.Context, c kubernetes.Interface, name string) (*corev1.Node, error) {
	n, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Node %s: %w", name, err)
	}
	return n, nil
}

// ReadPods reads the Pods on the node of that name, whether or not there is a Node.
func ReadPods(ctx context.Context, c kubernetes.Interface, name string) ([]reclaim.Pod, error) {
	// Without a resourceVersion the API server returns the latest state.
	list, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return nil, fmt.Errorf("listing the Pods of Node %s: %w", name, err)
	}
	var out []reclaim.Pod
	for _, p := range list.Items {
		one := reclaim.Pod{UID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
			ConfigHash: p.Annotations["kubernetes.io/config.hash"], Created: p.CreationTimestamp.Time,
			HostNetwork: p.Spec.HostNetwork,
			Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed}
		for _, ip := range p.Status.PodIPs {
			if addr, err := netip.ParseAddr(ip.IP); err == nil {
				one.IPs = append(one.IPs, addr)
			}
		}
		out = append(out, one)
	}
	return out, nil
}
