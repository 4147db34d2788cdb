package verdict

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Pods are read in pages, up to maxPages: a question about one policy must not read a large cluster.
const (
	pageOfPods = 500
	maxPages   = 20
)

// Idle reads what one policy applies to, and returns the parts of it that affect no pod; nil if there are none, the
// policy is gone, or it applies to more pods than are read.
func Idle(ctx context.Context, client *kube.Client, ref policy.Ref) (*compile.Idle, error) {
	p, found, err := readPolicy(ctx, client, ref)
	if err != nil || !found {
		return nil, err
	}
	r := reading{c: compile.New(), client: client}
	r.c.SetPolicy(p)
	all, err := client.Kubernetes.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading Namespaces: %w", err)
	}
	var namespaces []policy.Namespace
	for i := range all.Items {
		n := policy.FromNamespace(&all.Items[i])
		namespaces = append(namespaces, n)
		r.c.SetNamespace(n)
	}
	for _, namespace := range subjects(p, namespaces) {
		if err := r.read(ctx, namespace); err != nil {
			return nil, err
		}
	}
	if idle := r.idle(); idle != nil && len(idle.Ports) > 0 && namesPortsOfPeers(p) {
		if err := r.read(ctx, metav1.NamespaceAll); err != nil {
			return nil, err
		}
	}
	return r.idle(), nil
}

// reading reads pods until a policy affects one.
type reading struct {
	c      *compile.Compiler
	client *kube.Client
	pages  int
}

// idle is what affects none of the pods that were read; nil if all does, or there are too many pods to read.
func (r *reading) idle() *compile.Idle {
	all := r.c.Idle()
	if len(all) == 0 || r.pages >= maxPages {
		return nil
	}
	return &all[0]
}

func (r *reading) read(ctx context.Context, namespace string) error {
	for o := (metav1.ListOptions{Limit: pageOfPods}); r.idle() != nil; r.pages++ {
		list, err := r.client.Kubernetes.CoreV1().Pods(namespace).List(ctx, o)
		if err != nil {
			return fmt.Errorf("reading Pods: %w", err)
		}
		for i := range list.Items {
			if p, running := policy.FromPod(&list.Items[i], ""); running {
				r.c.SetPod(&p)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			break
		}
	}
	return nil
}

// subjects are the namespaces whose pods a policy applies to; metav1.NamespaceAll stands for all of them.
func subjects(p policy.Policy, all []policy.Namespace) (out []string) {
	switch {
	case p.Subject.Namespace != "":
		return []string{p.Subject.Namespace}
	case p.Subject.Namespaces.Everything():
		return []string{metav1.NamespaceAll}
	}
	for _, n := range all {
		if p.Subject.Namespaces.Matches(n.Labels) {
			out = append(out, n.Name)
		}
	}
	return out
}

// namesPortsOfPeers reports whether p names a port of the pods that its own pods connect to.
func namesPortsOfPeers(p policy.Policy) bool {
	return slices.ContainsFunc(p.Rules[policy.Egress], func(r policy.Rule) bool { return len(r.NamedPorts) > 0 })
}

func readPolicy(ctx context.Context, client *kube.Client, ref policy.Ref) (p policy.Policy, found bool, err error) {
	kind := kinds()[ref.Kind]
	list, err := client.Dynamic.Resource(kind.resource).Namespace(ref.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", ref.Name).String()})
	if err != nil || len(list.Items) == 0 {
		return policy.Policy{}, false, err
	}
	doc, err := list.Items[0].MarshalJSON()
	if err != nil {
		return policy.Policy{}, false, err
	}
	p, err = kind.parse(doc)
	return p, err == nil, err
}
