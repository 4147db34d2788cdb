package inputs

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-cni/fairlead/kube/follow"
)

func controllerOf(m metav1.ObjectMeta) Controller {
	o := metav1.GetControllerOfNoCopy(&m)
	if o == nil {
		return Controller{}
	}
	return Controller{o.APIVersion, o.Kind, o.Name, string(o.UID)}
}

// Above implements Source.
func (k *Kubernetes) Above(ctx context.Context, namespace string, c Controller) (Controller, error) {
	gv, err := schema.ParseGroupVersion(c.APIVersion)
	if err != nil {
		return Controller{}, err
	}
	r, _ := meta.UnsafeGuessKindToResource(gv.WithKind(c.Kind))
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	found, err := k.client.Metadata.Resource(r).Namespace(namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Controller{}, fmt.Errorf("the %s %s/%s of the Pod does not exist", c.Kind, namespace, c.Name)
	case err != nil:
		return Controller{}, fmt.Errorf("asking the API server for the owner of %s %s/%s failed: %s", c.Kind, namespace, c.Name,
			follow.ShortError(err))
	case string(found.UID) != c.UID:
		return Controller{}, fmt.Errorf("the %s %s/%s of the Pod was deleted and recreated", c.Kind, namespace,
			c.Name)
	}
	return controllerOf(found.ObjectMeta), nil
}

// FirstOrdinal implements Source.
func (k *Kubernetes) FirstOrdinal(ctx context.Context, namespace, name string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	sets := k.client.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"})
	set, err := sets.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("asking the API server for the first ordinal of the StatefulSet %s/%s failed: %s", namespace, name,
			follow.ShortError(err))
	}
	start, _, err := unstructured.NestedInt64(set.Object, "spec", "ordinals", "start")
	return int(start), err
}

// Above implements Source: manifests have no owner references.
func (d *Directory) Above(context.Context, string, Controller) (Controller, error) {
	return Controller{}, nil
}

// FirstOrdinal implements Source: StatefulSets are not read from manifests.
func (d *Directory) FirstOrdinal(context.Context, string, string) (int, error) { return 0, nil }
