package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/pager"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// controllerLease is the Lease by which replicas of fairlead-controller elect their leader.
const controllerLease = "fairlead-controller"

// Read reads these parts concurrently.
func Read(ctx context.Context, client *kube.Client, parts ...Part) *View {
	r := reader{client: client, view: &View{At: time.Now(), Unread: map[Part]error{}}}
	all := map[Part]func(context.Context) error{Nodes: r.nodes, Agents: r.agents, Leader: r.leader, Pools: r.pools,
		Allocations: r.allocations, ReservationOwners: r.reservationOwners, Ranges: r.ranges, Policies: r.policies,
		Warnings: r.warnings}
	var running sync.WaitGroup
	for _, p := range parts {
		if read := all[p]; read != nil {
			running.Go(func() { r.done(p, read(ctx)) })
		}
	}
	running.Wait()
	// Read after the allocations: an owner that has no Pod then is gone.
	if slices.Contains(parts, Pods) {
		r.done(Pods, r.pods(ctx))
	}
	return r.view
}

type reader struct {
	client *kube.Client
	mu     sync.Mutex
	view   *View
}

func (r *reader) done(p Part, err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.Unread[p] = Explain(string(p), err)
}

// Explain says why something could not be read, and what to do.
func Explain(what string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s may not be read with this kubeconfig: %w", what, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s could not be read: the API server does not accept the credentials. Is the kubeconfig's token or certificate still valid? (%w)", what, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: the resource is not installed: kubectl apply -f build/manifests/fairlead.yaml -l app.kubernetes.io/component=crds (%w)", what, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s could not be read: the API server did not answer in time", what)
	}
	return fmt.Errorf("%s could not be read: %w", what, err)
}

// page is how many objects one request lists.
const page = 500

// each calls do with every object that list returns.
func each[L, T runtime.Object](ctx context.Context, o metav1.ListOptions,
	list func(context.Context, metav1.ListOptions) (L, error), do func(T)) error {
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	p.PageSize = page
	return p.EachListItem(ctx, o, func(obj runtime.Object) error {
		if t, ok := obj.(T); ok {
			do(t)
		}
		return nil
	})
}

func (r *reader) nodes(ctx context.Context) error {
	return each(ctx, metav1.ListOptions{}, r.client.Kubernetes.CoreV1().Nodes().List,
		func(n *corev1.Node) { r.view.Nodes = append(r.view.Nodes, nodeOf(n)) })
}

func (r *reader) pods(ctx context.Context) error {
	return each(ctx, metav1.ListOptions{}, r.client.Kubernetes.CoreV1().Pods(metav1.NamespaceAll).List,
		func(p *corev1.Pod) { r.view.Pods = append(r.view.Pods, podOf(p)) })
}

func (r *reader) agents(ctx context.Context) error {
	return each(ctx, metav1.ListOptions{LabelSelector: api.AgentPodSelector},
		r.client.Kubernetes.CoreV1().Pods(metav1.NamespaceSystem).List,
		func(p *corev1.Pod) { r.view.Agents = append(r.view.Agents, agentOf(p)) })
}

func (r *reader) leader(ctx context.Context) error {
	leases := r.client.Kubernetes.CoordinationV1().Leases(metav1.NamespaceSystem)
	l, err := leases.Get(ctx, controllerLease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c := Controller{Present: true}
	if l.Spec.HolderIdentity != nil {
		c.Leader = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		c.Renewed = metav1.NewTime(l.Spec.RenewTime.Time)
		c.Works = c.Leader != "" && time.Since(c.Renewed.Time) < leaseStale
	}
	r.view.Controller = c
	return nil
}

// objects reads all objects of one of Fairlead's kinds.
func objects[T any](ctx context.Context, r *reader, resource schema.GroupVersionResource) (out []T, err error) {
	var bad error
	err = each(ctx, metav1.ListOptions{}, r.client.Dynamic.Resource(resource).List, func(o runtime.Unstructured) {
		var t T
		text, merr := json.Marshal(o.UnstructuredContent())
		if merr == nil {
			merr = json.Unmarshal(text, &t)
		}
		bad = cmp.Or(bad, merr)
		out = append(out, t)
	})
	return out, cmp.Or(err, bad)
}

func (r *reader) pools(ctx context.Context) (err error) {
	r.view.Pools, err = objects[api.IPPool](ctx, r, api.PoolResource)
	return err
}

func (r *reader) allocations(ctx context.Context) (err error) {
	r.view.Allocations, err = allocation.NewKubernetes(r.client.Dynamic).List(ctx, allocation.Filter{})
	return err
}

// ranges exist if NodeIPAM is enabled. A missing CRD is not an error.
func (r *reader) ranges(ctx context.Context) (err error) {
	r.view.Ranges, err = objects[api.PodCIDRRange](ctx, r, api.RangeResource)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *reader) reservationOwners(ctx context.Context) error {
	uids := map[string]bool{}
	for _, resource := range []string{"statefulsets", "deployments"} {
		objects := r.client.Metadata.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource})
		err := each(ctx, metav1.ListOptions{}, objects.List,
			func(o *metav1.PartialObjectMetadata) { uids[string(o.UID)] = true })
		if err != nil {
			return err
		}
	}
	r.view.ReservationOwners = uids
	return nil
}

func (r *reader) policies(ctx context.Context) (err error) {
	r.view.Policies, err = inputs.Policies(ctx, r.client.Metadata)
	return err
}

// warnings reads the Warning Events of agents and controllers.
func (r *reader) warnings(ctx context.Context) error {
	for _, source := range []string{kube.Component, controllerLease} {
		err := each(ctx, metav1.ListOptions{FieldSelector: "type=Warning,source=" + source},
			r.client.Kubernetes.CoreV1().Events(metav1.NamespaceAll).List,
			func(e *corev1.Event) { r.view.Warnings = append(r.view.Warnings, warningOf(e)) })
		if err != nil {
			return err
		}
	}
	slices.SortFunc(r.view.Warnings, func(a, b Warning) int { return b.Last.Compare(a.Last.Time) })
	return nil
}

func warningOf(e *corev1.Event) Warning {
	about := e.InvolvedObject.Kind + " " + path.Join(e.InvolvedObject.Namespace, e.InvolvedObject.Name)
	last := e.LastTimestamp
	if last.IsZero() {
		last = metav1.NewTime(e.EventTime.Time)
	}
	return Warning{About: about, Reason: e.Reason, Message: e.Message, Last: last}
}
