package inputs

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/policy"
)

func TestParseManifest(t *testing.T) {
	parsed, err := parseManifest([]byte(`
# a comment alone is no document
---
apiVersion: v1
kind: Node
metadata:
  name: a
  annotations: {node.antrea.io/transport-addresses: " 198.51.100.1,"}
spec: {podCIDR: 10.0.1.0/24, podCIDRs: [10.0.1.0/24, "fd00:1::/64"]}
status:
  addresses:
  - {type: Hostname, address: a}
  - {type: InternalIP, address: 192.0.2.1}
  - {type: InternalIP, address: "2001:db8::1"}
  nodeInfo: {containerRuntimeVersion: "containerd://1.6.20~ds1"}
---
apiVersion: v1
kind: Pod
metadata:
  name: p
  uid: u
  annotations: {ipam.antrea.io/ippools: pool1, other: x}
spec: {nodeName: a, containers: []}
---
apiVersion: v1
kind: Namespace
metadata: {name: ns}
---
apiVersion: crd.antrea.io/v1alpha2
kind: IPPool
metadata:
  name: pool1
  annotations: {ipam.fairlead.dev/network: lab, other: x}
spec:
  ipVersion: 4
  ipRanges: [{start: 10.2.0.12, end: 10.2.0.20, gateway: 10.2.0.1, prefixLength: 24, vlan: 2}]
---
apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: pool2}
spec:
  ipRanges: [{cidr: 10.3.0.0/24}]
  subnetInfo: {gateway: 10.3.0.1, prefixLength: 24, vlan: 3}
status: {usage: {used: 1, total: 2}, freeMap: [10.3.0.7-10.3.0.9]}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Snapshot{
		Nodes: map[string]Node{"a": {Name: "a",
			PodCIDRs:        []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
			Addresses:       []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
			TunnelAddresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}, Runtime: "containerd://1.6.20~ds1"}},
		Pods: map[string]Pod{"default/p": {Namespace: "default", Name: "p", UID: "u", NodeName: "a",
			Annotations: map[string]string{"ipam.antrea.io/ippools": "pool1"}}},
		Namespaces: map[string]Namespace{"ns": {Name: "ns"}},
		IPPools: map[string]api.IPPool{
			"pool1": {TypeMeta: metav1.TypeMeta{APIVersion: "crd.antrea.io/v1alpha2", Kind: "IPPool"}, ObjectMeta: metav1.ObjectMeta{
				Name: "pool1", Annotations: map[string]string{"ipam.fairlead.dev/network": "lab"}},
				Spec: api.IPPoolSpec{IPVersion: 4, IPRanges: []api.IPRange{{Start: "10.2.0.12", End: "10.2.0.20",
					SubnetInfo: api.SubnetInfo{Gateway: "10.2.0.1", PrefixLength: 24, VLAN: 2}}}}},
			"pool2": {TypeMeta: metav1.TypeMeta{APIVersion: "crd.antrea.io/v1beta1", Kind: "IPPool"},
				ObjectMeta: metav1.ObjectMeta{Name: "pool2"},
				Spec: api.IPPoolSpec{IPRanges: []api.IPRange{{CIDR: "10.3.0.0/24"}},
					SubnetInfo: &api.SubnetInfo{Gateway: "10.3.0.1", PrefixLength: 24, VLAN: 3}},
				Status: api.IPPoolStatus{FreeMap: []string{"10.3.0.7-10.3.0.9"}, Usage: &api.PoolUsage{Used: 1, Total: 2}}},
		},
		NetworkPolicies: map[string]NetworkPolicy{},
		services:        map[string]*Service{}, endpointSlices: map[string]*EndpointSlice{},
	}
	got, problems := merge(map[string]objects{"file": parsed})
	if judged := got.judged(); len(judged) != 3 {
		t.Errorf("policies see %v, want Node, Namespace and Pod", judged)
	}
	for name, n := range got.Nodes {
		n.policy = policy.Node{}
		got.Nodes[name] = n
	}
	for name, p := range got.Pods {
		p.policy = nil
		got.Pods[name] = p
	}
	for name, n := range got.Namespaces {
		n.policy = policy.Namespace{}
		got.Namespaces[name] = n
	}
	if !reflect.DeepEqual(got, want) || problems != nil {
		t.Errorf("got  %+v\nwant %+v; problems %q", got, want, problems)
	}
}

// Windows nodes and virtual nodes have no agent, whichever way their Nodes indicate it.
func TestNoAgent(t *testing.T) {
	for node, want := range map[string]string{
		`{}`: "",
		`{metadata: {labels: {kubernetes.io/os: linux, type: gpu}}}`:                               "",
		`{metadata: {labels: {kubernetes.io/os: windows}}}`:                                        "it runs windows (label kubernetes.io/os)",
		`{metadata: {labels: {type: virtual-kubelet}}}`:                                            "virtual-kubelet",
		`{spec: {taints: [{key: virtual-kubelet.io/provider, value: azure, effect: NoSchedule}]}}`: "virtual-kubelet",
		`{spec: {taints: [{key: other, effect: NoSchedule}]}}`:                                     "",
	} {
		var n corev1.Node
		if err := yaml.Unmarshal([]byte(node), &n); err != nil {
			t.Fatal(err)
		}
		n.Name = "a"
		got, err := nodeFrom(&n)
		if err != nil || !strings.Contains(got.NoAgent, want) || (got.NoAgent == "") != (want == "") {
			t.Errorf("%s: %q, %v, want %q", node, got.NoAgent, err, want)
		}
	}
}

// A Node whose kubelet has stopped reporting (Unknown) is not ready either. One whose kubelet has never reported does
// not count as not ready.
func TestNotReady(t *testing.T) {
	for conditions, want := range map[string]bool{
		`[]`:                                      false,
		`[{type: Ready, status: "True"}]`:         false,
		`[{type: Ready, status: "False"}]`:        true,
		`[{type: Ready, status: Unknown}]`:        true,
		`[{type: DiskPressure, status: "False"}]`: false,
	} {
		var n corev1.Node
		if err := yaml.Unmarshal([]byte("{metadata: {name: a}, status: {conditions: "+conditions+"}}"), &n); err != nil {
			t.Fatal(err)
		}
		if got, err := nodeFrom(&n); err != nil || got.NotReady != want {
			t.Errorf("%s: not ready %t, %v, want %t", conditions, got.NotReady, err, want)
		}
	}
}

// The output of "kubectl get nodes -o yaml" and "-o json".
func TestParseManifestList(t *testing.T) {
	for _, in := range []string{
		"apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: a}\n" +
			"- apiVersion: v1\n  kind: Node\n  metadata: {name: b}\nkind: List\nmetadata: {resourceVersion: \"\"}\n",
		`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}},
			{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}]}`,
	} {
		got, err := parseManifest([]byte(in))
		if err != nil || len(got) != 2 || got[0].name != "Node a" || got[1].name != "Node b" {
			t.Errorf("got %+v, %v; want the Nodes a and b", got, err)
		}
	}
	if got, err := parseManifest([]byte("apiVersion: v1\nkind: List\nitems: []")); err != nil || len(got) != 0 {
		t.Errorf("an empty list: %+v, %v", got, err)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n"
	for _, c := range []struct{ name, in, want string }{
		{"not YAML", "a: [", "not YAML"},
		{"no kind", "metadata: {name: a}", "apiVersion or kind is missing"},
		{"list of nothing", "apiVersion: v1\nkind: List", "items of a List is not a list"},
		{"bad item", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\n" +
			"- {apiVersion: v1, kind: Node, metadata: {name: b}, sepc: {}}", "item 2: "},
		{"other kind", "apiVersion: v1\nkind: Secret", "v1 Secret is not read from manifests"},
		{"no name", "apiVersion: v1\nkind: Node", "without metadata.name"},
		{"misspelt key", node + "spec: {podCIRD: 10.0.0.0/24}", "podCIRD"},
		{"wrong case", node + "spec: {podCidr: 10.0.0.0/24}", "podCidr"},
		{"key twice", node + "spec: {podCIDR: 10.0.0.0/24, podCIDR: 10.0.1.0/24}", "podCIDR"},
		{"not a CIDR", node + "spec: {podCIDR: 10.0.0.0}", `podCIDR "10.0.0.0": not a CIDR`},
		{"host bits", node + "spec: {podCIDR: 10.0.0.7/24}", "did you mean 10.0.0.0/24"},
		{"mapped", node + `spec: {podCIDR: "::ffff:10.0.0.0/120"}`, "IPv4-mapped"},
		{"two of a family", node + "spec: {podCIDRs: [10.0.0.0/24, 10.0.1.0/24]}", "second podCIDR of the same family"},
		{"podCIDR not first", node + "spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.1.0/24]}", "is not the first"},
		{"bad address", node + "status: {addresses: [{type: InternalIP, address: x}]}", `InternalIP "x"`},
		{"bad transport address", "apiVersion: v1\nkind: Node\nmetadata: {name: a, annotations: " +
			"{node.antrea.io/transport-addresses: x}}", `transport-addresses: "x"`},
		{"pool without a name", "apiVersion: crd.antrea.io/v1beta1\nkind: IPPool", "an IPPool without metadata.name"},
		{"pool of another version", "apiVersion: crd.antrea.io/v1\nkind: IPPool", "is not read from manifests"},
		{"misspelt in a pool", "apiVersion: crd.antrea.io/v1beta1\nkind: IPPool\nmetadata: {name: p}\n" +
			"spec: {ipRanges: [{cidr: 10.0.0.0/24, vlanID: 3}]}", "vlanID"},
		{"VLAN no number", "apiVersion: crd.antrea.io/v1beta1\nkind: IPPool\nmetadata: {name: p}\n" +
			"spec: {ipRanges: [{cidr: 10.0.0.0/24, vlan: ten}]}", "vlan"},
		{"second document", node + "---\nkind: Node", "document 2"},
	} {
		got, err := parseManifest([]byte(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q in it", c.name, err, c.want)
		}
		if len(got) != 0 {
			t.Errorf("%s: refused, but returned %+v", c.name, got)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDR: 10.0.0.0/24}"))
	f.Add([]byte("---\n---\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objs, err := parseManifest(data)
		if err != nil && len(objs) != 0 {
			t.Errorf("refused, but returned %+v", objs)
		}
	})
}
