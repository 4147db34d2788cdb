package antrea

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/pager"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/kube"
)

// Outcome is the outcome for an entry.
type Outcome string

// The outcomes.
const (
	// New: it can be imported; nothing is done yet.
	New Outcome = "new"
	// Imported: an allocation was created just now.
	Imported Outcome = "imported"
	// Exists: the same owner has the address already.
	Exists Outcome = "there"
	// Refused: it cannot be verified, or the address is allocated to another owner. Nothing was done.
	Refused Outcome = "refused"
)

// Result is one entry and its outcome.
type Result struct {
	Pool    string  `json:"pool"`
	Address string  `json:"address"`
	Owner   string  `json:"owner"`
	Outcome Outcome `json:"outcome"`
	// Why is the reason of a refusal.
	Why string `json:"why,omitempty"`

	allocation api.IPAllocation
}

// Plan returns the outcome for each entry of each pool. It writes nothing. network is the name of Fairlead's network.
func Plan(ctx context.Context, client *kube.Client, network string) ([]Result, error) {
	w, err := read(ctx, client, network)
	if err != nil {
		return nil, err
	}
	held := map[string]api.IPAllocation{}
	all, err := allocation.NewKubernetes(client.Dynamic).List(ctx, allocation.Filter{})
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		held[a.Name] = a
	}
	var out []Result
	err = each(ctx, client, api.PoolResource, func(u *unstructured.Unstructured) error {
		p, err := poolOf(u)
		if err != nil {
			return err
		}
		found, err := entries(p)
		if err != nil {
			return err
		}
		valid, invalid := pool.FromObject(u)
		for _, e := range found {
			r := Result{Pool: p.Name, Address: e.IPAddress, Owner: e.Owner.String(), Outcome: New}
			if invalid == nil {
				r.allocation, err = w.claim(valid, e)
			} else {
				err = fmt.Errorf("the IPPool is invalid: %w", invalid)
			}
			if err == nil {
				err = r.checkExisting(held)
			}
			if err != nil {
				r.Outcome, r.Why = Refused, err.Error()
			}
			out = append(out, r)
		}
		return nil
	})
	return out, err
}

// checkExisting compares with the existing allocations, and adds this one if there is none.
func (r *Result) checkExisting(held map[string]api.IPAllocation) error {
	there, taken := held[r.allocation.Name]
	switch {
	case !taken:
		held[r.allocation.Name] = r.allocation
	case same(there.Spec, r.allocation.Spec):
		r.Outcome = Exists
	default:
		return &allocation.TakenError{Holder: there}
	}
	return nil
}

// same reports whether both allocations are for the same entry.
func same(a, b api.IPAllocationSpec) bool {
	if a.Pool != b.Pool {
		return false
	}
	if a.Owner.PodUID != "" && b.Owner.PodUID != "" {
		return a.Owner.PodUID == b.Owner.PodUID && a.Owner.IfName == b.Owner.IfName
	}
	return a.Reservation != nil && b.Reservation != nil && a.Reservation.Same(*b.Reservation)
}

// Import creates the allocation for a New entry, in one write, after reading the Pod once more. It may be killed at any
// instruction: the rest is New in the next Plan. Errors are those of the API server; a refusal is in r.
func (r *Result) Import(ctx context.Context, client *kube.Client) error {
	store := allocation.NewKubernetes(client.Dynamic)
	if gone, err := r.gone(ctx, client); err != nil || gone {
		return err
	}
	made, err := store.Create(ctx, r.allocation)
	if taken := (*allocation.TakenError)(nil); errors.As(err, &taken) {
		if r.Outcome = Exists; !same(taken.Holder.Spec, r.allocation.Spec) {
			r.Outcome, r.Why = Refused, taken.Error()
		}
		return nil
	}
	if err != nil {
		return err
	}
	r.Outcome = Imported
	// If the Pod was deleted in between, its DEL found no allocation to release.
	if gone, err := r.gone(ctx, client); err != nil || !gone {
		return err
	}
	if err := store.Delete(ctx, made); err != nil && !errors.Is(err, allocation.ErrNotFound) &&
		!errors.Is(err, allocation.ErrConflict) {
		return err
	}
	return nil
}

// gone reports whether the Pod no longer exists, and then refuses the entry.
func (r *Result) gone(ctx context.Context, client *kube.Client) (bool, error) {
	o := r.allocation.Spec.Owner
	if o.PodUID == "" {
		return false, nil
	}
	p, err := client.Kubernetes.CoreV1().Pods(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading Pod %s/%s: %w", o.Namespace, o.Name, err)
	}
	if err == nil && string(p.UID) == o.PodUID {
		return false, nil
	}
	r.Outcome, r.Why = Refused, "the Pod was deleted in the meantime"
	return true, nil
}

func poolOf(u *unstructured.Unstructured) (p api.IPPool, err error) {
	text, err := u.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, fmt.Errorf("IPPool %s: %w", u.GetName(), err)
	}
	return p, nil
}

// each calls do with every object of a kind.
func each(ctx context.Context, client *kube.Client, r schema.GroupVersionResource,
	do func(*unstructured.Unstructured) error) error {
	list := client.Dynamic.Resource(r)
	err := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return list.List(ctx, o)
	}).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		return do(o.(*unstructured.Unstructured))
	})
	if err != nil {
		return fmt.Errorf("listing %s: %w", r.GroupResource(), err)
	}
	return nil
}

// attachments is the resource of NetworkAttachmentDefinitions, which may not be installed.
func attachments() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
}

func read(ctx context.Context, client *kube.Client, network string) (world, error) {
	w := world{pods: map[string]*corev1.Pod{}, sets: map[string]*appsv1.StatefulSet{}, nodes: map[string]*corev1.Node{},
		networks: map[string]string{}, main: network}
	pods, err := client.Kubernetes.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, fmt.Errorf("listing Pods: %w", err)
	}
	for i, p := range pods.Items {
		w.pods[p.Namespace+"/"+p.Name] = &pods.Items[i]
	}
	sets, err := client.Kubernetes.AppsV1().StatefulSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, fmt.Errorf("listing StatefulSets: %w", err)
	}
	for i, s := range sets.Items {
		w.sets[s.Namespace+"/"+s.Name] = &sets.Items[i]
	}
	nodes, err := client.Kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, fmt.Errorf("listing Nodes: %w", err)
	}
	for i, n := range nodes.Items {
		w.nodes[n.Name] = &nodes.Items[i]
	}
	err = each(ctx, client, attachments(), func(u *unstructured.Unstructured) error {
		config, _, _ := unstructured.NestedString(u.Object, "spec", "config")
		var conf struct{ Name string }
		if json.Unmarshal([]byte(config), &conf) == nil { // else the object's name counts
			w.networks[u.GetNamespace()+"/"+u.GetName()] = conf.Name
		}
		return nil
	})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return w, err
}
