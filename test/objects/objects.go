// Package objects applies manifests to a Kubernetes API, and deletes objects, within this process: kubectl takes up to
// half a second of a processor each time, as it reads all kinds and schemas that the API server has.
package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// servedTimeout is the time limit for a new definition to be served: a second on an idle machine.
const servedTimeout = time.Minute

// Apply makes the objects of a manifest that the label selector chooses be as they are there, as "kubectl apply
// --server-side --force-conflicts -l SELECTOR" does, and waits until the definitions among them are served. An object
// without a namespace is one of the cluster.
func Apply(ctx context.Context, client dynamic.Interface, manifest []byte, selector string) error {
	chosen, err := labels.Parse(selector)
	if err != nil {
		return err
	}
	objects, err := read(manifest)
	if err != nil {
		return err
	}
	var definitions []*unstructured.Unstructured
	found := false
	for _, o := range objects {
		if !chosen.Matches(labels.Set(o.GetLabels())) {
			continue
		}
		found = true
		guess, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		_, err := client.Resource(guess).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o,
			metav1.ApplyOptions{FieldManager: "test", Force: true})
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() == "CustomResourceDefinition" {
			definitions = append(definitions, o)
		}
	}
	if !found {
		return fmt.Errorf("no object has labels %q", selector)
	}
	return awaitServed(ctx, client, definitions)
}

// read returns the objects of a manifest.
func read(manifest []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096); ; {
		o := &unstructured.Unstructured{}
		switch err := d.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(o.Object) > 0: // a document may be comments alone
			objects = append(objects, o)
		}
	}
}

// awaitServed waits until the objects of all versions that these definitions say are served can be listed.
func awaitServed(ctx context.Context, client dynamic.Interface, definitions []*unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	for _, d := range definitions {
		versions, _, err := unstructured.NestedSlice(d.Object, "spec", "versions")
		if err != nil {
			return err
		}
		resource, group, _ := strings.Cut(d.GetName(), ".")
		for _, v := range versions {
			version, _ := v.(map[string]any)
			if version["served"] != true {
				continue
			}
			what := schema.GroupVersionResource{Group: group, Version: fmt.Sprint(version["name"]), Resource: resource}
			if err := awaitList(ctx, client.Resource(what)); err != nil {
				return fmt.Errorf("%v is not served: %w", what, err)
			}
		}
	}
	return nil
}

func awaitList(ctx context.Context, objects dynamic.ResourceInterface) error {
	for {
		_, err := objects.List(ctx, metav1.ListOptions{Limit: 1})
		if !apierrors.IsNotFound(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTooManyRequests(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Clear deletes all objects of these resources ("pods", "ippools.v1beta1.crd.antrea.io") in all namespaces, at once.
// Resources that are not defined have none.
func Clear(ctx context.Context, client dynamic.Interface, resources ...string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, name := range resources {
		resource, group := schema.ParseResourceArg(name)
		if resource == nil {
			resource = &schema.GroupVersionResource{Version: "v1", Resource: group.Resource}
		}
		list, err := client.Resource(*resource).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("listing %s: %w", name, err)
		}
		if err != nil {
			continue
		}
		for _, o := range list.Items {
			err := client.Resource(*resource).Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), now)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting %s %s: %w", name, o.GetName(), err)
			}
		}
	}
	return nil
}
