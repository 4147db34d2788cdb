// Package manifest reads Kubernetes manifests and stores them in a directory, one file per object: a lab's replacement
// for the API server. All nodes of the lab share the directory; its content was validated before.
//
// A file is named KIND_NAME.yaml or KIND_NAMESPACE_NAME.yaml. An underscore cannot be in the name of an object, so no
// two objects share a file.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/api"
)

// Object is one parsed manifest: a Node, a Pod, a Namespace, an IPPool, a Service, an EndpointSlice or a policy.
type Object = metav1.Object

// kinds are the supported kinds, by apiVersion and kind. Decoding is strict: a misspelt key is an error instead of
// being dropped.
var kinds = map[string]func() Object{
	"v1 Node":      func() Object { return &corev1.Node{} },
	"v1 Pod":       func() Object { return &corev1.Pod{} },
	"v1 Namespace": func() Object { return &corev1.Namespace{} },
	"v1 Service":   func() Object { return &corev1.Service{} },

	"discovery.k8s.io/v1 EndpointSlice": func() Object { return &discoveryv1.EndpointSlice{} },

	"networking.k8s.io/v1 NetworkPolicy": func() Object { return &networkingv1.NetworkPolicy{} },
	"policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy": func() Object {
		return &v1alpha2.ClusterNetworkPolicy{}
	},

	api.PoolGroup + "/" + api.PoolVersion + " " + api.PoolKind:       func() Object { return &api.IPPool{} },
	api.PoolGroup + "/" + api.PoolVersionBefore + " " + api.PoolKind: func() Object { return &api.IPPool{} },
}

// Ref identifies an object. Only Pods, Services, EndpointSlices and NetworkPolicies have a Namespace.
type Ref struct{ Kind, Namespace, Name string }

// String is kubectl's form: pod/default/web or node/node1.
func (r Ref) String() string {
	if r.Namespace == "" {
		return strings.ToLower(r.Kind) + "/" + r.Name
	}
	return strings.ToLower(r.Kind) + "/" + r.Namespace + "/" + r.Name
}

// maxName keeps the names of files below the 255 bytes of NAME_MAX.
const maxName = 170

// RefOf is the Ref of a parsed object.
func RefOf(o Object) Ref {
	switch o.(type) {
	case *corev1.Node:
		return Ref{"Node", "", o.GetName()}
	case *api.IPPool:
		return Ref{api.PoolKind, "", o.GetName()}
	case *corev1.Namespace:
		return Ref{"Namespace", "", o.GetName()}
	case *corev1.Service:
		return Ref{"Service", o.GetNamespace(), o.GetName()}
	case *discoveryv1.EndpointSlice:
		return Ref{"EndpointSlice", o.GetNamespace(), o.GetName()}
	case *networkingv1.NetworkPolicy:
		return Ref{"NetworkPolicy", o.GetNamespace(), o.GetName()}
	case *v1alpha2.ClusterNetworkPolicy:
		return Ref{"ClusterNetworkPolicy", "", o.GetName()}
	default:
		return Ref{"Pod", o.GetNamespace(), o.GetName()}
	}
}

// Parse reads all documents of a YAML or JSON stream, all or none. The error names the document, its line, and what is
// wrong; source is the stream's name in it. A Pod without a namespace is in "default".
func Parse(source string, data []byte) ([]Object, error) {
	var objects []Object
	seen := map[Ref]bool{}
	docs := yamlv3.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		var doc yamlv3.Node
		err := docs.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", source, n, err)
		}
		if empty(&doc) {
			continue
		}
		o, err := parseOne(&doc)
		if err == nil && seen[RefOf(o)] {
			err = fmt.Errorf("%s is in it twice", RefOf(o))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: document %d (line %d): %w", source, n, doc.Line, err)
		}
		seen[RefOf(o)] = true
		objects = append(objects, o)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("%s: it has no objects", source)
	}
	return objects, nil
}

// empty reports whether a document has only comments, or nothing, between two "---".
func empty(doc *yamlv3.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].Tag == "!!null"
}

func parseOne(doc *yamlv3.Node) (Object, error) {
	data, err := yamlv3.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(data, &kind); err != nil {
		return nil, fmt.Errorf("not a Kubernetes object: %w", err)
	}
	if kind.Kind == "" || kind.APIVersion == "" {
		return nil, errors.New("apiVersion or kind is missing")
	}
	make := kinds[kind.APIVersion+" "+kind.Kind]
	if make == nil {
		return nil, fmt.Errorf("unknown kind %s %s: a lab supports v1 Node, Pod, Namespace and Service, "+
			"discovery.k8s.io/v1 EndpointSlice, networking.k8s.io/v1 NetworkPolicy, policy.networking.k8s.io/v1alpha2 "+
			"ClusterNetworkPolicy, and IPPools of %s, %s and %s",
			kind.APIVersion, kind.Kind, api.PoolGroup, api.PoolVersionBefore, api.PoolVersion)
	}
	o := make()
	if err := decodeStrict(data, o); err != nil {
		return nil, fmt.Errorf("%s: %w", kind.Kind, err)
	}
	if namespaced(kind.Kind) && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	return o, checkName(kind.Kind, o)
}

func namespaced(kind string) bool {
	return kind == "Pod" || kind == "Service" || kind == "EndpointSlice" || kind == "NetworkPolicy"
}

// decodeStrict is case-sensitive, as the API server: yaml.UnmarshalStrict would accept nodename for nodeName.
func decodeStrict(data []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	strict, err := json.UnmarshalStrict(asJSON, into)
	return errors.Join(append(strict, err)...)
}

func checkName(kind string, o Object) error {
	name, namespace := o.GetName(), o.GetNamespace()
	if name == "" {
		return fmt.Errorf("%s: metadata.name is missing", kind)
	}
	if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
		return fmt.Errorf("%s: metadata.name %q: %s", kind, name, strings.Join(msgs, "; "))
	}
	if len(name) > maxName {
		return fmt.Errorf("%s: metadata.name has %d characters, but a lab supports %d", kind, len(name), maxName)
	}
	if !namespaced(kind) && namespace != "" {
		return fmt.Errorf("%s %s: %s objects have no metadata.namespace", kind, name, kind)
	}
	if msgs := validation.IsDNS1123Label(namespace); namespaced(kind) && len(msgs) > 0 {
		return fmt.Errorf("%s %s: metadata.namespace %q: %s", kind, name, namespace, strings.Join(msgs, "; "))
	}
	return nil
}
