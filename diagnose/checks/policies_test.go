package checks

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Policies that the agents enforce are no finding. Those of other kinds are one with every setting.
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
	}{"": {4, "unless its config says"}, api.PoliciesReport: {4, "says networkPolicies: report"}, api.PoliciesEnforce: {2, "of these kinds"}} {
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
