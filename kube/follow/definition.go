package follow

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
)

// Definitions checks whether a kind that is read is defined in the cluster.
type Definitions struct {
	Dynamic   dynamic.Interface
	Metadata  metadata.Interface
	Discovery discovery.ServerResourcesInterface
}

// ErrOtherVersion says that there are objects of a kind that the server has only in other versions.
var ErrOtherVersion = errors.New("it has objects only in another version")

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// Absent returns nil if the cluster has no object of a resource that the server has answered "not found" for, else why
// it may have one. That answer alone proves nothing: a starting server gives it as long as it has not read the
// definitions, or has not connected to the servers of a group; so do a proxy in front of it, and one of several servers
// that has fallen behind. What these objects deny would be open. So the definition itself must be missing in the
// server's storage, which has it before anything is served: that answer names the definition, which the answer for an
// unserved path does not. And the server must not list the resource, as it does for one that needs no definition.
func (d Definitions) Absent(ctx context.Context, r schema.GroupVersionResource) error {
	name := r.Resource + "." + r.Group
	u, err := d.Dynamic.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && stored(err, name):
		return d.unlisted(r)
	case err != nil:
		return fmt.Errorf("cannot determine whether %s are defined: %w", r.GroupResource(), ofPath(err))
	}
	return d.others(ctx, r, u)
}

// stored reports whether "not found" is the storage's answer about an object of that name, and not about the path of
// the request.
func stored(err error, name string) bool {
	status := apierrors.APIStatus(nil)
	_, path := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	return !path && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name == name
}

// ofPath is err, but no longer a "not found", which would say nothing about the resource in question.
func ofPath(err error) error {
	if apierrors.IsNotFound(err) {
		return errors.New(ShortError(err))
	}
	return err
}

// unlisted returns an error if the server lists a resource, or does not say whether it has it.
func (d Definitions) unlisted(r schema.GroupVersionResource) error {
	list, err := d.Discovery.ServerResourcesForGroupVersion(r.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot determine whether %s are served: %w", r.GroupResource(), err)
	}
	for _, one := range list.APIResources {
		if one.Name == r.Resource {
			return fmt.Errorf("%s are served without a definition, but not found", r.GroupResource())
		}
	}
	return nil
}

// others returns an error unless the definition serves other versions only, and there is no object in them.
func (d Definitions) others(ctx context.Context, r schema.GroupVersionResource,
	definition *unstructured.Unstructured) error {
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return err
	}
	var served []string
	for _, v := range versions {
		if one, _ := v.(map[string]any); one["served"] == true {
			served = append(served, fmt.Sprint(one["name"]))
		}
	}
	for _, version := range served {
		if version == r.Version {
			return fmt.Errorf("%s are defined, but not found", r.GroupResource())
		}
		l, err := d.Metadata.Resource(r.GroupResource().WithVersion(version)).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("listing %s in version %s: %w", r.GroupResource(), version, ofPath(err))
		}
		if len(l.Items) > 0 {
			return fmt.Errorf("%w: %s %s is served as %s, and read as %s", ErrOtherVersion, r.GroupResource(),
				l.Items[0].Name, strings.Join(served, ", "), r.Version)
		}
	}
	if len(served) == 0 { // there may be some in the storage
		return fmt.Errorf("%w: %s are served in no version", ErrOtherVersion, r.GroupResource())
	}
	return nil
}
