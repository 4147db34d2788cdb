package apply

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// Every added or deleted flow is counted, whatever causes it: a round that verifies and repairs, a round with changed
// Services or policies, and single changes of policies.
func TestFlowChangesAreCounted(t *testing.T) {
	n := newNode(t, api.AgentConfig{Services: api.ServicesOVS, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12"),
		NetworkPolicies: api.PoliciesEnforce})
	n.has(serviceManifests(53, ""))
	n.pod("a", 5)
	n.apply(n.round())
	count := func() (all map[string]float64) {
		all = map[string]float64{}
		for _, change := range []string{"added", "modified", "deleted"} {
			all[change] = testutil.ToFloat64(n.flows.metrics.FlowChanges.WithLabelValues(change))
		}
		return all
	}
	flows := func() int { return strings.Count(flowtest.Flows(n.OVS), "cookie=") }
	verify := func() {
		r := n.round()
		r.Verify, r.Settled = true, true
		n.apply(r)
	}
	const policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: none, namespace: ns}\n" +
		"spec: {podSelector: {}, policyTypes: [Ingress]}\n"
	changes := []struct {
		what string
		do   func() (missing int)
	}{
		{"flows that an external change deletes", func() int {
			had := flows()
			n.Ofctl("del-flows", "br-int", "table=0")
			missing := had - flows()
			verify()
			return missing
		}},
		{"a Service, found by a round that verifies", func() int {
			n.has(serviceManifests(53, oneEndpoint))
			verify()
			return 0
		}},
		{"a policy", func() int {
			n.has(serviceManifests(53, oneEndpoint) + policy)
			if done, err := n.flows.SyncPolicies(n.soon()); !done || err != nil {
				t.Fatal(done, err)
			}
			return 0
		}},
		{"no policy, found by a round that verifies", func() int {
			n.has(serviceManifests(53, oneEndpoint))
			verify()
			return 0
		}},
	}
	for _, c := range changes {
		before, had := count(), flows()
		missing := c.do()
		now, has := count(), flows()
		added, deleted := int(now["added"]-before["added"]), int(now["deleted"]-before["deleted"])
		if added+deleted == 0 || added-deleted != has-had+missing {
			t.Errorf("%s: there are %d flows, %d before, of which %d were missing; counted are %d that came and %d that went",
				c.what, has, had, missing, added, deleted)
		}
	}
}
