package checks

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Policies that the agents enforce are not a finding. Those of other kinds are, with every setting.
func TestPoliciesThatAreNotEnforced(t *testing.T) {
	all := []inputs.NetworkPolicy{
		{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: "shop", Name: "a"},
		{APIVersion: "policy.networking.k8s.io/v1alpha2", Kind: "ClusterNetworkPolicy", Name: "b"},
		{APIVersion: "crd.antrea.io/v1beta1", Kind: "NetworkPolicy", Namespace: "shop", Name: "c"},
		{APIVersion: "policy.networking.k8s.io/v1alpha1", Kind: "AdminNetworkPolicy", Name: "d"},
	}
	for setting, want := range map[string]struct {
		about int
		cause string
	}{"": {2, "Where the agents' config says networkPolicies: report"}, api.PoliciesReport: {4, "says networkPolicies: report"}, api.PoliciesEnforce: {2, "of these kinds"}} {
		got := unenforced(all, setting)
		if len(got) != 1 || len(got[0].About) != want.about || !strings.Contains(got[0].Cause, want.cause) {
			t.Errorf("networkPolicies: %q: %+v, want %+v", setting, got, want)
		}
	}
	if got := unenforced(all[:2], api.PoliciesEnforce); len(got) != 0 {
		t.Errorf("what is enforced is a finding: %+v", got)
	}
	if got := unenforced(nil, api.PoliciesReport); len(got) != 0 {
		t.Errorf("without policies: %+v", got)
	}
}

// Policies that select nothing, and named ports that no pod has, are one finding each, with the policies' names.
func TestPoliciesThatAreIdle(t *testing.T) {
	ref := func(name string) policy.Ref { return policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: name} }
	got := idle([]compile.Idle{{Policy: ref("a")}, {Policy: ref("b")},
		{Policy: ref("c"), Ports: []policy.NamedPort{{Protocol: policy.TCP, Name: "http"}}}})
	if len(got) != 2 || len(got[0].About) != 2 || !strings.HasPrefix(got[0].Cause, "2 policies select no pod") ||
		!strings.HasPrefix(got[1].Cause, "1 policy names a port") || !strings.Contains(got[1].Evidence[0], "shop/c: http/TCP") {
		t.Errorf("%+v", got)
	}
	if got := idle(nil); len(got) != 0 {
		t.Errorf("without idle policies: %+v", got)
	}
}

// The sampled connections have a pod on this node at one end, and addresses of the same family.
func TestSampledConnections(t *testing.T) {
	own, other := policy.PodKey{Namespace: "shop", Name: "own"}, policy.PodKey{Namespace: "shop", Name: "other"}
	c := &verdict.Cluster{Pods: map[policy.PodKey]policy.Pod{}}
	for i, key := range []policy.PodKey{own, other, {Namespace: "shop", Name: "host"}} {
		c.Pods[key] = policy.Pod{PodKey: key, HostNetwork: i == 2,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.MustParseAddr("fd00::1")}}
	}
	got := sample(c, []policy.PodKey{own}, 20)
	if len(got) != 20 {
		t.Errorf("%d connections", len(got))
	}
	for _, pair := range got {
		if pair.FromPod != own && pair.ToPod != own || pair.From.Is4() != pair.To.Is4() || pair.From == pair.To ||
			pair.Port == 0 {
			t.Errorf("%+v", pair)
		}
	}
	if got := sample(c, nil, 20); len(got) != 0 {
		t.Errorf("a node without pods: %+v", got)
	}
}
