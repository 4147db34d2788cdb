package policy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/policy"
)

// text is the form that tests compare: subject, isolation, rules and problems, one line each.
func text(p policy.Policy) string {
	lines := []string{fmt.Sprintf("%s, %s: %s", p.Ref, p.Tier, p.Subject)}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if p.Isolates[d] {
			lines = append(lines, fmt.Sprintf("isolates %s", d))
		}
		for _, r := range p.Rules[d] {
			lines = append(lines, fmt.Sprintf("%s %d: %s any=%v %v %v %v ports any=%v %v %v", d, r.Index, r.Verdict, r.AnyPeer,
				r.Pods, r.Networks, r.Nodes, r.AnyPort, r.Ports, r.NamedPorts))
		}
	}
	return strings.Join(append(lines, p.Problems...), "\n")
}

func TestNetworkPolicies(t *testing.T) {
	for _, test := range []struct{ name, spec, want string }{
		{"default deny", `{"podSelector": {}, "policyTypes": ["Ingress"]}`, "isolates ingress"},
		{"no policyTypes", `{"podSelector": {}}`, "isolates ingress"},
		{"no policyTypes, egress", `{"podSelector": {}, "egress": [{}]}`,
			"isolates ingress\nisolates egress\negress 0: Accept any=true [] [] [] ports any=true [] []"},
		{"a direction that is not isolated", `{"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]}`,
			"isolates ingress\nspec.egress[0] has no effect: policyTypes does not name this direction"},
		{"selectors", `{"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"b": "1", "a": "2"}}},
			{"namespaceSelector": {"matchExpressions": [{"key": "c", "operator": "In", "values": ["y", "x"]}]}}]}]}`,
			"isolates ingress\ningress 0: Accept any=false [pods {a=2,b=1} of namespace ns pods {} of namespaces {c in (x,y)}]" +
				" [] [] ports any=true [] []"},
		{"ports", `{"podSelector": {}, "ingress": [{"ports": [{"port": 80}, {"protocol": "UDP"}, {"port": "web", "protocol":
			"SCTP"}, {"port": 5, "endPort": 9}]}]}`,
			"isolates ingress\ningress 0: Accept any=true [] [] [] ports any=false [80/TCP UDP 5-9/TCP] [web/SCTP]"},
		{"excepts of excepts, and elsewhere", `{"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.1.2.3/8", "except":
			["10.9.0.0/16", "10.1.1.0/24", "10.1.0.0/16", "11.0.0.0/8", "fd00::/8"]}}]}]}`,
			"isolates ingress\ningress 0: Accept any=false [] [10.0.0.0/8 -10.1.0.0/16 -10.9.0.0/16] [] ports any=true [] []"},
		{"nothing is left", `{"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.0.0.0/8"]}}]}]}`,
			"isolates ingress\ningress 0: Accept any=false [] [] [] ports any=true [] []"},
		{"an unknown field of a peer", `{"podSelector": {}, "ingress": [{"from": [{"podSelector": {}, "services": {}}]}, {}]}`,
			"isolates ingress\ningress 1: Accept any=true [] [] [] ports any=true [] []\n" +
				"spec.ingress[0] accepts nothing: the field spec.ingress[0].from[0].services is unknown"},
		{"an unknown field of a rule", `{"podSelector": {}, "ingress": [{"when": "weekday"}]}`,
			"isolates ingress\nspec.ingress[0] accepts nothing: the field spec.ingress[0].when is unknown"},
		{"an unknown peer", `{"podSelector": {}, "ingress": [{"from": [{}, {"podSelector": {}}]}]}`,
			"isolates ingress\nspec.ingress[0] accepts nothing: peer 0: it has no field that this version supports"},
		{"an unknown operator", `{"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchExpressions": [{"key": "a",
			"operator": "Like"}]}}]}]}`,
			"isolates ingress\nspec.ingress[0] accepts nothing: peer 0: the selector " +
				`{"matchExpressions":[{"key":"a","operator":"Like"}]}: "Like" is not a valid label selector operator`},
		{"an unknown protocol", `{"podSelector": {}, "ingress": [{"ports": [{"protocol": "QUIC"}, {"port": 80}]}]}`,
			"isolates ingress\nspec.ingress[0] accepts nothing: port 0: the protocol QUIC is unknown"},
		{"endPort of a name", `{"podSelector": {}, "ingress": [{"ports": [{"port": "web", "endPort": 80}]}]}`,
			"isolates ingress\nspec.ingress[0] accepts nothing: port 0: endPort with the named port web"},
		{"a range backwards", `{"podSelector": {}, "ingress": [{"ports": [{"port": 80, "endPort": 79}]}]}`,
			"isolates ingress\nspec.ingress[0] accepts nothing: port 0: the ports 80 to 79 are not a range from 1 to 65535"},
		{"a CIDR that is none", `{"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.1"}}]}]}`,
			`isolates ingress
spec.ingress[0] accepts nothing: peer 0: netip.ParsePrefix("10.0.0.1"): no '/'`},
		{"an unknown subject", `{"podSelector": {"matchLabels": {"a": "b"}, "names": ["c"]}, "policyTypes": ["Egress"], "egress": [{}]}`,
			"isolates ingress\nisolates egress\nthe field spec.podSelector.names is unknown: all pods of namespace ns are " +
				"isolated, and the policy accepts nothing"},
	} {
		p, err := policy.ParseNetworkPolicy([]byte(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
			"metadata": {"namespace": "ns", "name": "np", "unknown": 1}, "spec": ` + test.spec + `}`))
		want := "NetworkPolicy ns/np, NetworkPolicy: pods {} of namespace ns\n" + test.want
		if got := text(p); err != nil || got != want {
			t.Errorf("%s: %v,\n%s\nwant\n%s", test.name, err, got, want)
		}
	}
}

// If a policy has more unknown fields than the decoder lists, none of its rules accepts.
func TestManyUnknownFields(t *testing.T) {
	rules := strings.TrimSuffix(strings.Repeat(`{"from": [{"podSelector": {}, "services": {}}]},`, 120), ",")
	p, err := policy.ParseNetworkPolicy([]byte(`{"metadata": {"name": "np", "namespace": "ns"}, "spec": {"podSelector": {}, ` +
		`"ingress": [` + rules + `]}}`))
	if got := text(p); err != nil || strings.Contains(got, "Accept") || !strings.Contains(got, "isolates ingress") {
		t.Errorf("%v,\n%s", err, got)
	}
	deny := strings.TrimSuffix(strings.Repeat(`{"action": "Deny", "from": [{"namespaces": {}, "services": {}}]},`, 120), ",")
	p, err = policy.ParseClusterNetworkPolicy([]byte(`{"metadata": {"name": "cnp"}, "spec": {"tier": "Admin", "priority": 3, ` +
		`"subject": {"namespaces": {}}, "ingress": [` + deny + `, {"action": "Accept", "from": [{"namespaces": {}}]}]}}`))
	if got := text(p); err != nil || strings.Contains(got, "Accept") || !strings.Contains(got, "ingress 119: Deny any=true") {
		t.Errorf("%v,\n%s", err, got)
	}
}

func TestClusterNetworkPolicies(t *testing.T) {
	const subject = `"tier": "Admin", "priority": 3, "subject": {"namespaces": {}}, `
	const pods = "ClusterNetworkPolicy cnp, Admin: pods {} of namespaces {}\n"
	for _, test := range []struct{ name, spec, want string }{
		{"all peers", subject + `"egress": [{"action": "Pass", "to": [{"nodes": {}}, {"networks": ["10.0.0.0/8", "fd00::/8"]},
			{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}}],
			"protocols": [{"tcp": {"destinationPort": {"number": 80}}}, {"sctp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}]}]`,
			pods + "egress 0: Pass any=false [pods {a=b} of namespaces {}] [10.0.0.0/8 fd00::/8] [{}] ports any=false [80/TCP 1-9/SCTP] []"},
		{"a named port", subject + `"ingress": [{"action": "Deny", "from": [{"namespaces": {}}], "protocols": [{"destinationNamedPort": "web"}]}]`,
			pods + "ingress 0: Deny any=false [pods {} of namespaces {}] [] [] ports any=false [] [web]"},
		{"an unknown peer to accept", subject + `"ingress": [{"action": "Accept", "from": [{"namespaces": {}}, {"services": {}}]}]`,
			pods + "spec.ingress[0] accepts nothing: the field spec.ingress[0].from[1].services is unknown"},
		{"an unknown peer to deny", subject + `"ingress": [{"action": "Deny", "from": [{}]}]`,
			pods + "ingress 0: Deny any=true [] [] [] ports any=true [] []\n" +
				"spec.ingress[0] denies everything: it has no field that this version supports"},
		{"an unknown protocol to pass", subject + `"ingress": [{"action": "Pass", "from": [{"namespaces": {}}], "protocols": [{}]}]`,
			pods + "ingress 0: Deny any=true [] [] [] ports any=true [] []\n" +
				"spec.ingress[0] denies everything: the protocol {} does not have exactly one field that this version supports"},
		{"an unknown action", subject + `"ingress": [{"action": "Reject", "from": [{"namespaces": {}}]}]`,
			pods + "ingress 0: Deny any=true [] [] [] ports any=true [] []\n" +
				`spec.ingress[0] denies everything: the action "Reject" is unknown`},
		{"domain names", subject + `"egress": [{"action": "Accept", "to": [{"domainNames": ["example.org"]}]}]`,
			pods + "spec.egress[0] accepts nothing: domainNames are not supported"},
		{"a named port of a network", subject + `"egress": [{"action": "Accept", "to": [{"networks": ["10.0.0.0/8"]}],
			"protocols": [{"destinationNamedPort": "web"}]}]`,
			pods + "spec.egress[0] accepts nothing: a named port with networks or nodes, which have none"},
		{"an unknown field of the spec", subject + `"schedule": "daily", "ingress": [{"action": "Accept", "from": [{"namespaces": {}}]}]`,
			pods + "spec.ingress[0] accepts nothing: the field spec.schedule is unknown"},
		{"an unknown subject", `"tier": "Admin", "priority": 3, "subject": {"users": {}}, "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]`,
			"ClusterNetworkPolicy cnp, Admin: pods nothing of namespaces nothing\n" +
				"subject: the field spec.subject.users is unknown: the policy applies to no pod"},
		{"rules of another type", subject + `"ingress": [{"action": "Deny", "name": "no", "from": [{"namespaces": {}}], "protocols":
			[{"tcp": {"destinationPort": {"number": "ssh"}}}]}, {"action": "Accept", "from": {}}, {"action": "Pass", "from": [1]}, 5,
			{"action": "Accept", "from": [{"namespaces": {}}]}, {"action": "Accept", "from": [{"namespaces": {}, "services": {}}]}]`,
			pods + `ingress 0: Deny any=true [] [] [] ports any=true [] []
ingress 2: Deny any=true [] [] [] ports any=true [] []
ingress 3: Deny any=true [] [] [] ports any=true [] []
ingress 4: Accept any=false [pods {} of namespaces {}] [] [] ports any=true [] []
spec.ingress[0] denies everything: json: cannot unmarshal string into Go struct field ` +
				`Port.protocols.tcp.destinationPort.number of type int32
spec.ingress[1] accepts nothing: json: cannot unmarshal object into Go struct field ` +
				`ClusterNetworkPolicyIngressRule.from of type []v1alpha2.ClusterNetworkPolicyIngressPeer
spec.ingress[2] denies everything: json: cannot unmarshal number into Go struct field ` +
				`ClusterNetworkPolicyIngressRule.from of type v1alpha2.ClusterNetworkPolicyIngressPeer
spec.ingress[3] denies everything: json: cannot unmarshal number into Go value of type ` +
				`v1alpha2.ClusterNetworkPolicyIngressRule
spec.ingress[5] accepts nothing: the field spec.ingress[5].from[0].services is unknown`},
		{"an unknown tier", `"tier": "Late", "subject": {"namespaces": {}}`,
			"ClusterNetworkPolicy cnp, Baseline: pods nothing of namespaces nothing\n" +
				`the tier "Late" is unknown: the policy applies to no pod`},
	} {
		p, err := policy.ParseClusterNetworkPolicy([]byte(`{"apiVersion": "policy.networking.k8s.io/v1alpha2",
			"kind": "ClusterNetworkPolicy", "metadata": {"name": "cnp"}, "spec": {` + test.spec + `}}`))
		if got := text(p); err != nil || got != test.want {
			t.Errorf("%s: %v,\n%s\nwant\n%s", test.name, err, got, test.want)
		}
	}
}

func TestWhatIsNoPolicy(t *testing.T) {
	for doc, want := range map[string]string{
		`{"apiVersion": "policy.networking.k8s.io/v1alpha3", "kind": "ClusterNetworkPolicy"}`: "only policy.networking.k8s.io/v1alpha2",
		`{"apiVersion": "crd.antrea.io/v1beta1", "kind": "ClusterNetworkPolicy"}`:             "only policy.networking.k8s.io/v1alpha2",
		`{"spec": {"ingress": 1}}`: "cannot unmarshal",
	} {
		if _, err := policy.ParseClusterNetworkPolicy([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", doc, err, want)
		}
	}
	if _, err := policy.ParseNetworkPolicy([]byte(`{"kind": "Pod"}`)); err == nil {
		t.Error("a Pod was accepted as a NetworkPolicy")
	}
}

func TestObjects(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	port := func(name string, number int32) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, ContainerPort: number}}
	}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	o.Spec.NodeName = "node1"
	o.Spec.InitContainers = []corev1.Container{{Ports: port("once", 1)}, {Ports: port("sidecar", 2), RestartPolicy: &always}}
	o.Spec.Containers = []corev1.Container{{Ports: port("web", 80)}, {Ports: port("web", 80)}, {Ports: port("", 81)}}
	o.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	p, ok := policy.FromPod(o, "node1")
	if got, want := fmt.Sprint(p.PodKey, p.Addrs, p.Ports, p.Local, ok), "ns/a [10.0.0.1 fd00::1] [web/TCP=80 sidecar/TCP=2] true true"; got != want {
		t.Errorf("a pod is %s, want %s", got, want)
	}
	o.Status.Phase = corev1.PodFailed
	if _, ok := policy.FromPod(o, "node1"); ok {
		t.Error("a pod that has ended is no peer: its address may be another's")
	}
	for value, want := range map[string]bool{"true": true, "false": false, "yes": false} {
		n := policy.FromNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns",
			Annotations: map[string]string{"policy.fairlead.dev/log-denied": value}}})
		if n.LogDenied != want {
			t.Errorf("with the annotation %q, denied packets are logged: %t", value, n.LogDenied)
		}
	}
	if n := policy.FromNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}); n.Labels["kubernetes.io/metadata.name"] != "ns" {
		t.Errorf("a namespace has the labels %v", n.Labels)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	node.Spec.PodCIDRs = []string{"10.1.0.0/24", "fd01::/64"}
	node.Status.Addresses = []corev1.NodeAddress{{Address: "192.0.2.1"}, {Address: "node1"}}
	if got := fmt.Sprint(policy.FromNode(node).Addrs); got != "[10.1.0.1 192.0.2.1 fd01::1]" {
		t.Errorf("a node has the addresses %s", got)
	}
}

// A pod counts as another one of its name only if both UIDs are known and differ. The kubelet's UID of a static pod is
// the hash of its manifest.
func TestIs(t *testing.T) {
	static := policy.Pod{UID: "mirror", ConfigHash: "hash"}
	for _, c := range []struct {
		pod  policy.Pod
		uid  string
		want bool
	}{
		{policy.Pod{UID: "a"}, "a", true}, {policy.Pod{UID: "a"}, "b", false}, {policy.Pod{UID: "a"}, "", true},
		{policy.Pod{}, "a", true}, {static, "hash", true}, {static, "mirror", true}, {static, "other", false},
	} {
		if got := c.pod.Is(c.uid); got != c.want {
			t.Errorf("a pod of UID %q, hash %q, is %q: %t", c.pod.UID, c.pod.ConfigHash, c.uid, got)
		}
	}
}

// A selector selects the same pods after it was written as JSON and read.
func TestSelectorsAreReadAsWritten(t *testing.T) {
	one, err := policy.ParseNetworkPolicy([]byte(`{"metadata": {"namespace": "shop", "name": "p"}, "spec": {"podSelector":
		{"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a", "b"]}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for want, s := range map[string]policy.Selector{"nothing": {}, "{}": policy.AllPods().Pods,
		"{app=web,tier notin (a,b)}": one.Subject.Pods} {
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var got policy.Selector
		if err := json.Unmarshal(data, &got); err != nil || s.String() != want || got.String() != want {
			t.Errorf("%s was written as %s and read as %s, %v, want %s", s, data, got, err, want)
		}
		for _, labels := range []map[string]string{nil, {"app": "web"}, {"app": "web", "tier": "a"}} {
			if got.Matches(labels) != s.Matches(labels) {
				t.Errorf("%s: read again it matches %v: %t", want, labels, got.Matches(labels))
			}
		}
	}
}
