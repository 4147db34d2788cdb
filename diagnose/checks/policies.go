package checks

import (
	"context"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

func (o Options) policies(ctx context.Context) ([]report.Finding, error) {
	v := cluster.Read(ctx, o.Client, cluster.Policies)
	if err := v.Missing(cluster.Policies); err != nil {
		return nil, err
	}
	found := unenforced(v.Policies, o.NetworkPolicies)
	if o.NetworkPolicies == api.PoliciesReport || !slices.ContainsFunc(v.Policies, inputs.NetworkPolicy.Enforceable) {
		return found, nil
	}
	more, err := checkTwice(ctx, o.SecondLook, o.enforceable)
	return append(found, more...), err
}

// unenforced finds the policies that agents with that setting of networkPolicies do not enforce; if it is not known,
// with the default.
func unenforced(all []inputs.NetworkPolicy, setting string) []report.Finding {
	var names []string
	for _, p := range all {
		if setting == api.PoliciesReport || !p.Enforceable() {
			names = append(names, p.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	const enforce = "Set networkPolicies: enforce in the agents' config, which enforces NetworkPolicies and ClusterNetworkPolicies"
	count, elsewhere := report.Count(len(names), "is 1", "are %d"), report.Remedy{
		Text: "Block the traffic elsewhere (the underlay's firewall, the application itself), or delete policies that are not needed"}
	f := report.Finding{Check: CheckPolicies, Kind: "policies-not-enforced", Severity: report.Warning, About: names,
		Evidence: []string{report.Some(names)}, Remedies: []report.Remedy{{Text: enforce}, elsewhere}}
	switch setting {
	case api.PoliciesEnforce:
		f.Cause = fmt.Sprintf("Fairlead enforces no network policies of these kinds, and there %s: traffic that they should block "+
			"passes", count)
		f.Remedies = []report.Remedy{elsewhere}
	case "":
		f.Cause = fmt.Sprintf("Fairlead enforces no network policies of these kinds, and there %s: traffic that they should block "+
			"passes. Where the agents' config says networkPolicies: report, no policy blocks traffic", count)
		f.Remedies = []report.Remedy{elsewhere}
	default:
		f.Cause = fmt.Sprintf("The agent's config says networkPolicies: %s, and there %s: traffic that network policies should "+
			"block passes", setting, count)
	}
	return []report.Finding{f}
}
