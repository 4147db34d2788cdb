package apply

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/policy"
)

// The verdict of Open vSwitch on a connection is compared with that of the policies, and a difference is reported.
func TestSwitchIsComparedWithPolicies(t *testing.T) {
	n := newPolicyNode(t) // pods of ns are isolated for ingress
	n.pod("b", 6)
	n.apply(n.round())
	// The path of a node's control socket of ovs-vswitchd.
	control := filepath.Join(n.Dir, fmt.Sprintf("ovs-vswitchd.%d.ctl", n.Vswitchd.PID()))
	if err := os.Symlink("ovs-vswitchd.ctl", control); err != nil {
		t.Fatal(err)
	}
	sw, err := verdict.Open(n.soon(), n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, ip string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{PodIP: ip}}
	}
	policyOf := func(types string) policy.Policy {
		p, err := policy.ParseNetworkPolicy([]byte(`{"metadata": {"namespace": "ns", "name": "none"}, "spec": {"podSelector": {},
			"policyTypes": [` + types + `]}}`))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := policy.PodKey{Namespace: "ns", Name: "a"}, policy.PodKey{Namespace: "ns", Name: "b"}
	addrA, addrB := netip.MustParseAddr("10.77.1.5"), netip.MustParseAddr("10.77.1.6")
	outside := netip.MustParseAddr("203.0.113.9")
	toB := verdict.Connection{FromPod: a, From: addrA, ToPod: b, To: addrB, Protocol: policy.TCP, Port: 80}
	for _, c := range []struct {
		name, types string // of the policy in the cluster
		is          verdict.Connection
		deniedIn    string
		differs     string
	}{
		{"between pods", `"Ingress"`, toB, "IngressNetworkPolicy", ""},
		{"from outside", `"Ingress"`, verdict.Connection{From: outside, ToPod: b, To: addrB, Protocol: policy.UDP, Port: 53},
			"IngressNetworkPolicy", ""},
		{"SCTP", `"Ingress"`, verdict.Connection{FromPod: a, From: addrA, ToPod: b, To: addrB, Protocol: policy.SCTP, Port: 80},
			"IngressNetworkPolicy", ""},
		{"a ping", `"Ingress"`, verdict.Connection{FromPod: a, From: addrA, ToPod: b, To: addrB}, "IngressNetworkPolicy", ""},
		{"to outside", `"Ingress"`, verdict.Connection{FromPod: a, From: addrA, To: outside, Protocol: policy.TCP, Port: 80}, "", ""},
		{"the switch denies more", `"Egress"`, verdict.Connection{From: outside, ToPod: b, To: addrB, Protocol: policy.TCP, Port: 80},
			"IngressNetworkPolicy", "no rule does"},
		{"the switch denies less", `"Egress"`, verdict.Connection{FromPod: a, From: addrA, To: outside, Protocol: policy.TCP, Port: 80},
			"", "the rules of ns/a deny it as egress"},
	} {
		cluster := verdict.New([]corev1.Pod{pod("a", "10.77.1.5"), pod("b", "10.77.1.6")}, sw.Has)
		cluster.Compiler.SetNamespace(policy.Namespace{Name: "ns"})
		cluster.SetPolicy(policyOf(c.types))
		got, err := sw.Evaluate(n.soon(), cluster, c.is)
		if err != nil || got.DeniedIn != c.deniedIn || c.differs == "" != (got.Differs == "") ||
			!strings.Contains(got.Differs, c.differs) {
			t.Errorf("%s: denied in %q, differs: %q, %v\n%s", c.name, got.DeniedIn, got.Differs, err, strings.Join(got.Steps, "\n"))
		}
	}
}
