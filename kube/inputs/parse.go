package inputs

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/api"
)

// object is one object of a manifest file, by its name in messages: "Node a".
type object struct {
	name string
	put  func(*Snapshot)
}

// objects are the objects of one manifest file.
type objects []object

// parseManifest reads the YAML documents (or JSON) of one file. It is all or nothing: the error names the document and
// what is wrong, and the caller then uses nothing of the file.
func parseManifest(data []byte) (objects, error) {
	var out objects
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if err := out.add(doc); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

func (o *objects) add(doc []byte) error {
	var any map[string]any
	if err := yaml.Unmarshal(doc, &any); err != nil {
		return fmt.Errorf("not YAML: %w", err)
	}
	if len(any) == 0 { // only comments, or nothing between two "---"
		return nil
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return fmt.Errorf("apiVersion and kind: %w", err)
	}
	if kind.Kind == "" || kind.APIVersion == "" {
		return errors.New("apiVersion or kind is missing")
	}
	switch gvk := kind.APIVersion + " " + kind.Kind; gvk {
	case "v1 Node":
		return addParsed(o, doc, judgedNode, func(n Node) object {
			return object{"Node " + n.Name, func(s *Snapshot) { s.Nodes[n.Name] = n }}
		})
	case "v1 Pod":
		return addParsed(o, doc, judgedPod, func(p Pod) object {
			key := p.Namespace + "/" + p.Name
			return object{"Pod " + key, func(s *Snapshot) { s.Pods[key] = p }}
		})
	case "v1 Namespace":
		return addParsed(o, doc, judgedNamespace, func(n Namespace) object {
			return object{"Namespace " + n.Name, func(s *Snapshot) { s.Namespaces[n.Name] = n }}
		})
	case api.PoolGroup + "/" + api.PoolVersion + " " + api.PoolKind,
		api.PoolGroup + "/" + api.PoolVersionBefore + " " + api.PoolKind:
		return addParsed(o, doc, poolFrom, func(p api.IPPool) object {
			return object{"IPPool " + p.Name, func(s *Snapshot) { s.IPPools[p.Name] = p }}
		})
	case "networking.k8s.io/v1 NetworkPolicy":
		return addParsed(o, doc, networkPolicyFrom, policyObject)
	case "policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy":
		return addParsed(o, doc, clusterPolicyFrom, policyObject)
	case "v1 Service":
		return addParsed(o, doc, ServiceFrom, func(v Service) object {
			key := v.Namespace + "/" + v.Name
			return object{"Service " + key, func(s *Snapshot) { s.services[key] = &v }}
		})
	case "discovery.k8s.io/v1 EndpointSlice":
		return addParsed(o, doc, EndpointSliceFrom, func(v EndpointSlice) object {
			key := v.Namespace + "/" + v.Name
			return object{"EndpointSlice " + key, func(s *Snapshot) { s.endpointSlices[key] = &v }}
		})
	case "v1 List":
		return o.addList(any["items"])
	default:
		return fmt.Errorf("%s is not read from manifests: v1 Node, v1 Pod, v1 Namespace, v1 Service, discovery.k8s.io/v1 "+
			"EndpointSlice, crd.antrea.io/v1beta1 or v1alpha2 IPPool, networking.k8s.io/v1 NetworkPolicy and policy.networking.k8s.io/v1alpha2 "+
			"ClusterNetworkPolicy are", gvk)
	}
}

// addList adds the objects of a List, which is how "kubectl get" prints several.
func (o *objects) addList(items any) error {
	list, ok := items.([]any)
	if !ok {
		return errors.New("items of a List is not a list")
	}
	for i, item := range list {
		doc, err := yaml.Marshal(item)
		if err == nil {
			err = o.add(doc)
		}
		if err != nil {
			return fmt.Errorf("item %d: %w", i+1, err)
		}
	}
	return nil
}

// addParsed decodes strictly and case-sensitively, so that a misspelt key is an error and not dropped.
func addParsed[K any, V any](to *objects, doc []byte, from func(*K) (V, error), of func(V) object) error {
	var obj K
	data, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	strict, err := json.UnmarshalStrict(data, &obj)
	if err := errors.Join(append(strict, err)...); err != nil {
		return err
	}
	v, err := from(&obj)
	if err != nil {
		return err
	}
	*to = append(*to, of(v))
	return nil
}

func nodeFrom(n *corev1.Node) (Node, error) {
	if n.Name == "" {
		return Node{}, errors.New("a Node without metadata.name")
	}
	out := Node{Name: n.Name, Created: n.CreationTimestamp.UTC(), Zone: n.Labels[corev1.LabelTopologyZone],
		NoAgent: NoAgent(n), Runtime: n.Status.NodeInfo.ContainerRuntimeVersion,
		NotReady: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		})}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	if n.Spec.PodCIDR != "" && cidrs[0] != n.Spec.PodCIDR {
		return Node{}, fmt.Errorf("Node %s: spec.podCIDR %s is not the first of spec.podCIDRs %v",
			n.Name, n.Spec.PodCIDR, cidrs)
	}
	for _, s := range cidrs {
		p, err := parsePodCIDR(s, out.PodCIDRs)
		if err != nil {
			return Node{}, fmt.Errorf("Node %s: podCIDR %q: %w", n.Name, s, err)
		}
		out.PodCIDRs = append(out.PodCIDRs, p)
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		if err != nil {
			return Node{}, fmt.Errorf("Node %s: status.addresses InternalIP %q is not an IP address", n.Name, a.Address)
		}
		out.Addresses = append(out.Addresses, ip.Unmap())
	}
	var err error
	if out.TunnelAddresses, err = tunnelAddresses(n); len(out.TunnelAddresses) == 0 {
		out.TunnelAddresses = out.Addresses
	}
	return out, err
}

// NoAgent is why no agent of Fairlead runs on a Node's machine, or there is no machine; empty: one may. The label type
// and the taint are those of virtual-kubelet.
func NoAgent(n *corev1.Node) string {
	virtual := func(t corev1.Taint) bool { return t.Key == "virtual-kubelet.io/provider" }
	switch os := n.Labels[corev1.LabelOSStable]; {
	case os != "" && os != string(corev1.Linux):
		return "it runs " + os + " (label kubernetes.io/os)"
	case n.Labels["type"] == "virtual-kubelet" || slices.ContainsFunc(n.Spec.Taints, virtual):
		return "it is a virtual one (virtual-kubelet)"
	}
	return ""
}

// transportAddresses is Antrea's annotation for nodes whose tunnel endpoint is not the InternalIP: a comma-separated
// list of addresses.
const transportAddresses = "node.antrea.io/transport-addresses"

func tunnelAddresses(n *corev1.Node) ([]netip.Addr, error) {
	var out []netip.Addr
	for s := range strings.SplitSeq(n.Annotations[transportAddresses], ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("Node %s: annotation %s: %q is not an IP address", n.Name, transportAddresses, s)
		}
		out = append(out, ip.Unmap())
	}
	return out, nil
}

func parsePodCIDR(s string, before []netip.Prefix) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, errors.New("not a CIDR such as 10.0.1.0/24")
	}
	if p.Addr().Is4In6() {
		return p, errors.New("an IPv4-mapped IPv6 address: write it as IPv4")
	}
	if p != p.Masked() {
		return p, fmt.Errorf("has host bits set: did you mean %s?", p.Masked())
	}
	for _, b := range before {
		if b.Addr().Is4() == p.Addr().Is4() {
			return p, fmt.Errorf("a second podCIDR of the same family as %s", b)
		}
	}
	return p, nil
}

// mirrorOf is kubelet's annotation on the mirror Pod of a static pod. Its value is the static pod's uid, which the
// runtime uses.
const mirrorOf = "kubernetes.io/config.mirror"

func podFrom(m metav1.ObjectMeta, node string) (Pod, error) {
	if m.Name == "" {
		return Pod{}, errors.New("a Pod without metadata.name")
	}
	return Pod{Namespace: orDefault(m.Namespace), Name: m.Name, UID: cmp.Or(m.Annotations[mirrorOf], string(m.UID)),
		NodeName: node, Annotations: ours(m.Annotations), Controller: controllerOf(m),
		Index: m.Labels[appsv1.PodIndexLabel]}, nil
}

func namespaceFrom(m metav1.ObjectMeta) (Namespace, error) {
	if m.Name == "" {
		return Namespace{}, errors.New("a Namespace without metadata.name")
	}
	return Namespace{Name: m.Name, Annotations: ours(m.Annotations)}, nil
}

func policyFrom(t metav1.TypeMeta, m metav1.ObjectMeta) (NetworkPolicy, error) {
	if m.Name == "" {
		return NetworkPolicy{}, fmt.Errorf("a %s without metadata.name", t.Kind)
	}
	return NetworkPolicy{APIVersion: t.APIVersion, Kind: t.Kind, Namespace: orDefault(m.Namespace), Name: m.Name,
		UID: string(m.UID)}, nil
}

func orDefault(namespace string) string {
	if namespace == "" {
		return metav1.NamespaceDefault
	}
	return namespace
}

// ours keeps the annotations that Fairlead reads; the others would only consume memory.
func ours(all map[string]string) map[string]string {
	var out map[string]string
	for k, v := range all {
		if strings.HasPrefix(k, "ipam.antrea.io/") || strings.HasPrefix(k, "ipam.fairlead.dev/") {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}

// Nodes converts Nodes that the caller has listed. Problems are messages about invalid ones.
func Nodes(list []corev1.Node) (nodes map[string]Node, problems []string) {
	nodes = map[string]Node{}
	for i := range list {
		n, err := nodeFrom(&list[i])
		if err != nil {
			problems = append(problems, fmt.Sprintf("Node %s: %v", list[i].Name, err))
			continue
		}
		nodes[n.Name] = n
	}
	return nodes, problems
}
