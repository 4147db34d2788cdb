// Package objects applies manifests to a Kubernetes API, and deletes objects, within this process: kubectl takes up to
// half a second of a processor each time, as it reads all kinds and schemas that the API server has.
package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// patience is the time limit for a new definition to be served, and for a deleted object to be gone: a second on an
// idle machine.
const patience = time.Minute

// Client reaches objects of any kind.
type Client struct {
	dynamic   *dynamic.DynamicClient
	discovery *discovery.DiscoveryClient

	mu    sync.Mutex
	kinds map[schema.GroupVersionKind]kind // those found so far: a definition never changes its plural and scope
}

// kind is what the paths of its objects depend on.
type kind struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

// New returns a client.
func New(config *rest.Config) (*Client, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	return &Client{dynamic: objects, discovery: kinds, kinds: map[schema.GroupVersionKind]kind{}}, err
}

// Resource returns the objects of a resource like "ippools.v1beta1.crd.antrea.io", or "pods" of the core API.
func (c *Client) Resource(name string) dynamic.NamespaceableResourceInterface {
	resource, group := schema.ParseResourceArg(name)
	if resource == nil {
		resource = &schema.GroupVersionResource{Version: "v1", Resource: group.Resource}
	}
	return c.dynamic.Resource(*resource)
}

// of returns where an object of a manifest is. As for kubectl, the namespace is "default" if it has none.
func (c *Client) of(ctx context.Context, o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	k, err := c.kind(ctx, o.GroupVersionKind())
	if err != nil || !k.namespaced {
		return c.dynamic.Resource(k.resource), err
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	return c.dynamic.Resource(k.resource).Namespace(o.GetNamespace()), nil
}

func (c *Client) kind(ctx context.Context, gvk schema.GroupVersionKind) (kind, error) {
	if gvk.Version == "" || gvk.Kind == "" {
		return kind{}, errors.New("it has no apiVersion or kind")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.kinds[gvk]; ok {
		return known, nil
	}
	path := "/apis/" + gvk.GroupVersion().String()
	if gvk.Group == "" {
		path = "/api/" + gvk.Version
	}
	var list metav1.APIResourceList
	if err := c.discovery.RESTClient().Get().AbsPath(path).Do(ctx).Into(&list); err != nil {
		return kind{}, fmt.Errorf("the resources of %s: %w", gvk.GroupVersion(), err)
	}
	for _, r := range list.APIResources {
		if r.Kind == gvk.Kind && !strings.Contains(r.Name, "/") { // that would be a subresource
			c.kinds[gvk] = kind{gvk.GroupVersion().WithResource(r.Name), r.Namespaced}
			return c.kinds[gvk], nil
		}
	}
	return kind{}, fmt.Errorf("%s has no kind %s", gvk.GroupVersion(), gvk.Kind)
}

// Change is what was done with one object of a manifest.
type Change struct {
	Object string // in kubectl's form: "pod/web" or "deployment.apps/web"
	What   string // "created", "configured", "unchanged", "deleted" or "not found"
}

func changeOf(o *unstructured.Unstructured, what string) Change {
	gk := o.GroupVersionKind().GroupKind()
	return Change{Object: strings.ToLower(gk.String()) + "/" + o.GetName(), What: what}
}

// Apply applies the objects of a manifest that the label selector matches, as "kubectl apply --server-side
// --force-conflicts -l SELECTOR" does, and waits until the definitions among them are served. Like kubectl, it
// continues after an error.
func (c *Client) Apply(ctx context.Context, manifest []byte, selector string) ([]Change, error) {
	objects, err := read(manifest, selector)
	if err != nil {
		return nil, err
	}
	var changes []Change
	var definitions []*unstructured.Unstructured
	var failed []error
	for _, o := range objects {
		what, err := c.apply(ctx, o)
		if err != nil {
			failed = append(failed, fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err))
			continue
		}
		changes = append(changes, changeOf(o, what))
		if o.GetKind() == "CustomResourceDefinition" {
			definitions = append(definitions, o)
		}
	}
	for _, d := range definitions {
		failed = append(failed, c.awaitServed(ctx, d))
	}
	return changes, errors.Join(failed...)
}

func (c *Client) apply(ctx context.Context, o *unstructured.Unstructured) (what string, err error) {
	objects, err := c.of(ctx, o)
	if err != nil {
		return "", err
	}
	before, err := objects.Get(ctx, o.GetName(), metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return "", err
	}
	data, err := o.MarshalJSON()
	if err != nil {
		return "", err
	}
	force := true
	after, err := objects.Patch(ctx, o.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
		FieldManager: "test", Force: &force, FieldValidation: metav1.FieldValidationStrict})
	switch {
	case err != nil:
		return "", err
	case absent:
		return "created", nil
	case equal(o, before, after):
		return "unchanged", nil
	default:
		return "configured", nil
	}
}

// equal compares two states of the object o of a manifest. It ignores who has written them and when, and what
// controllers write meanwhile: the status, and annotations that o does not have.
func equal(o, a, b *unstructured.Unstructured) bool {
	_, status := o.Object["status"]
	for _, s := range []*unstructured.Unstructured{a, b} {
		s.SetManagedFields(nil)
		s.SetResourceVersion("")
		s.SetGeneration(0)
		annotations := s.GetAnnotations()
		maps.DeleteFunc(annotations, func(key, _ string) bool { _, has := o.GetAnnotations()[key]; return !has })
		if len(annotations) == 0 {
			annotations = nil // as if there were none
		}
		s.SetAnnotations(annotations)
		if !status {
			delete(s.Object, "status")
		}
	}
	return equality.Semantic.DeepEqual(a.Object, b.Object)
}

// read returns the objects of a manifest that the label selector matches, at least one.
func read(manifest []byte, selector string) ([]*unstructured.Unstructured, error) {
	choice, err := labels.Parse(selector)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	add := func(o runtime.Object) error {
		if o, ok := o.(*unstructured.Unstructured); ok && choice.Matches(labels.Set(o.GetLabels())) {
			objects = append(objects, o)
		}
		return nil
	}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096); ; {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		switch {
		case errors.Is(err, io.EOF) && len(objects) == 0:
			return nil, fmt.Errorf("no object has labels %q", selector)
		case errors.Is(err, io.EOF):
			return objects, nil
		case err == nil && o.IsList():
			err = o.EachListItem(add)
		case err == nil && len(o.Object) > 0: // a document may be comments alone
			err = add(o)
		}
		if err != nil {
			return nil, err
		}
	}
}

// awaitServed waits until the objects of all versions that this definition says are served can be listed, and are
// among the resources of their group.
func (c *Client) awaitServed(ctx context.Context, definition *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return err
	}
	kind, _, err := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	if err != nil {
		return err
	}
	resource, group, _ := strings.Cut(definition.GetName(), ".")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if version["served"] != true {
			continue
		}
		what := schema.GroupVersionResource{Group: group, Version: fmt.Sprint(version["name"]), Resource: resource}
		if err := awaitList(ctx, c.dynamic.Resource(what)); err != nil {
			return fmt.Errorf("%v is not served: %w", what, err)
		}
		if err := c.awaitKind(ctx, what.GroupVersion().WithKind(kind)); err != nil {
			return err
		}
	}
	return nil
}

func awaitList(ctx context.Context, objects dynamic.ResourceInterface) error {
	return poll(ctx, func() (done bool, err error) {
		_, err = objects.List(ctx, metav1.ListOptions{Limit: 1})
		return !apierrors.IsNotFound(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTooManyRequests(err), err
	})
}

func (c *Client) awaitKind(ctx context.Context, gvk schema.GroupVersionKind) error {
	return poll(ctx, func() (done bool, err error) {
		_, err = c.kind(ctx, gvk)
		return err == nil, err
	})
}

// poll returns the error of the first call that is done, or of the last one before ctx ended.
func poll(ctx context.Context, call func() (done bool, err error)) error {
	for {
		done, err := call()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Delete requests the deletion of the objects of a manifest that the label selector matches, and does not wait for it.
// An object that does not exist is no error.
func (c *Client) Delete(ctx context.Context, manifest []byte, selector string) ([]Change, error) {
	objects, err := read(manifest, selector)
	if err != nil {
		return nil, err
	}
	var changes []Change
	var failed []error
	for _, o := range objects {
		where, err := c.of(ctx, o)
		if err == nil {
			err = where.Delete(ctx, o.GetName(), background())
		}
		switch {
		case err == nil:
			changes = append(changes, changeOf(o, "deleted"))
		case apierrors.IsNotFound(err):
			changes = append(changes, changeOf(o, "not found"))
		default:
			failed = append(failed, fmt.Errorf("deleting %s %s: %w", o.GetKind(), o.GetName(), err))
		}
	}
	return changes, errors.Join(failed...)
}

// background is how kubectl deletes.
func background() metav1.DeleteOptions {
	policy := metav1.DeletePropagationBackground
	return metav1.DeleteOptions{PropagationPolicy: &policy}
}

// Remove deletes objects of a resource (see Resource) and waits until they are gone. The namespace of cluster-scoped
// objects is "".
func (c *Client) Remove(ctx context.Context, resource, namespace string, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	objects := c.Resource(resource).Namespace(namespace)
	for _, name := range names {
		if err := remove(ctx, objects, name); err != nil {
			return fmt.Errorf("deleting %s %s: %w", resource, name, err)
		}
	}
	return nil
}

// RemoveAll does what Remove does with all objects that the label selector matches.
func (c *Client) RemoveAll(ctx context.Context, resource, namespace, selector string) error {
	list, err := c.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("listing %s: %w", resource, err)
	}
	var names []string
	for _, o := range list.Items {
		names = append(names, o.GetName())
	}
	return c.Remove(ctx, resource, namespace, names...)
}

func remove(ctx context.Context, objects dynamic.ResourceInterface, name string) error {
	before, err := objects.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := objects.Delete(ctx, name, background()); err != nil {
		return err
	}
	return poll(ctx, func() (done bool, err error) {
		now, err := objects.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.GetUID() != before.GetUID() {
			return true, nil
		}
		return err != nil, err
	})
}

// Clear deletes all objects of these resources (see Resource) in all namespaces, at once. Resources that are not
// defined have none.
func (c *Client) Clear(ctx context.Context, resources ...string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, name := range resources {
		list, err := c.Resource(name).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("listing %s: %w", name, err)
		}
		if err != nil {
			continue
		}
		for _, o := range list.Items {
			err := c.Resource(name).Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), now)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting %s %s: %w", name, o.GetName(), err)
			}
		}
	}
	return nil
}
