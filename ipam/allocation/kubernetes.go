package allocation

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/fairlead-cni/fairlead/api"
)

// Kubernetes is the Store in the Kubernetes API. Its errors wrap the API server's.
type Kubernetes struct{ client dynamic.ResourceInterface }

// NewKubernetes returns the Store behind c. It sends no request.
func NewKubernetes(c dynamic.Interface) *Kubernetes {
	return &Kubernetes{c.Resource(api.AllocationResource)}
}

// holderTries bounds how often Create looks up the holder of an address that turns out to be free each time, because
// others allocate and release it concurrently.
const holderTries = 10

// Create implements Store.
func (k *Kubernetes) Create(ctx context.Context, a api.IPAllocation) (api.IPAllocation, error) {
	u, err := toObject(a)
	if err != nil {
		return api.IPAllocation{}, err
	}
	for range holderTries {
		made, err := k.client.Create(ctx, u, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return result("taking", a.Name, made, err)
		}
		held, err := k.client.Get(ctx, a.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		holder, err := result("reading an allocation", a.Name, held, err)
		if err != nil {
			return api.IPAllocation{}, err
		}
		return api.IPAllocation{}, &TakenError{Holder: holder}
	}
	return api.IPAllocation{}, fmt.Errorf("allocating address %s: %w", a.Name, ErrConflict)
}

// Get implements Store.
func (k *Kubernetes) Get(ctx context.Context, name string) (api.IPAllocation, error) {
	u, err := k.client.Get(ctx, name, metav1.GetOptions{})
	return result("reading an allocation", name, u, err)
}

// List implements Store.
func (k *Kubernetes) List(ctx context.Context, f Filter) ([]api.IPAllocation, error) {
	var fields []string
	for _, s := range []struct{ field, value string }{{api.AllocationNodeField, f.Node}, {api.AllocationPoolField, f.Pool},
		{api.AllocationUIDField, f.UID}, {api.AllocationOrdinalField, f.Ordinal}} {
		if s.value != "" {
			fields = append(fields, s.field+"="+s.value)
		}
	}
	if f.Unused {
		fields = append(fields, api.AllocationPhaseField+"!="+string(api.PhaseAllocated))
	}
	// The API server sorts by name, and without a resourceVersion it returns the latest state.
	list, err := k.client.List(ctx, metav1.ListOptions{FieldSelector: strings.Join(fields, ",")})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("listing the IPAllocations: %w (%w): kubectl apply -f build/manifests/fairlead.yaml -l app.kubernetes.io/component=crds", ErrNoKind, err)
	}
	if f.Unused && apierrors.IsBadRequest(err) { // the CustomResourceDefinition is older, and does not select phases
		all := f
		all.Unused = false
		out, err := k.List(ctx, all)
		return slices.DeleteFunc(out, func(a api.IPAllocation) bool { return !f.fits(a) }), err
	}
	if err != nil {
		return nil, fmt.Errorf("listing the IPAllocations: %w", err)
	}
	out := make([]api.IPAllocation, 0, len(list.Items))
	for i := range list.Items {
		a, err := fromObject(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// Update implements Store.
func (k *Kubernetes) Update(ctx context.Context, a api.IPAllocation) (api.IPAllocation, error) {
	u, err := toObject(a)
	if err != nil {
		return api.IPAllocation{}, err
	}
	u, err = k.client.Update(ctx, u, metav1.UpdateOptions{})
	return result("updating", a.Name, u, err)
}

// Delete implements Store.
func (k *Kubernetes) Delete(ctx context.Context, a api.IPAllocation) error {
	err := k.client.Delete(ctx, a.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &a.UID, ResourceVersion: &a.ResourceVersion}})
	if err != nil {
		return known("freeing", a.Name, err)
	}
	return nil
}

// result converts the API server's response to a request about an address.
func result(doing, name string, u *unstructured.Unstructured, err error) (api.IPAllocation, error) {
	if err != nil {
		return api.IPAllocation{}, known(doing, name, err)
	}
	return fromObject(u)
}

// known maps API errors that callers check for to this package's errors.
func known(doing, name string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("%w (%w)", ErrNotFound, err)
	case apierrors.IsConflict(err):
		err = fmt.Errorf("%w (%w)", ErrConflict, err)
	}
	return fmt.Errorf("%s address %s: %w", doing, name, err)
}

func toObject(a api.IPAllocation) (*unstructured.Unstructured, error) {
	a.APIVersion, a.Kind = api.AllocationGroup+"/"+api.AllocationVersion, api.AllocationKind
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&a)
	if err != nil {
		return nil, fmt.Errorf("IPAllocation %s: %w", a.Name, err)
	}
	return &unstructured.Unstructured{Object: object}, nil
}

func fromObject(u *unstructured.Unstructured) (a api.IPAllocation, err error) {
	u.SetManagedFields(nil) // longer than all the rest; the API server keeps them on its side
	if err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &a); err != nil {
		return api.IPAllocation{}, fmt.Errorf("IPAllocation %s: %w", u.GetName(), err)
	}
	return a, nil
}
