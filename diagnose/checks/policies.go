package checks

import (
	"context"
	"fmt"

	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

func (o Options) policies(ctx context.Context) ([]report.Finding, error) {
	v := cluster.Read(ctx, o.Client, cluster.Policies)
	if err := v.Missing(cluster.Policies); err != nil || len(v.Policies) == 0 {
		return nil, err
	}
	return []report.Finding{{Check: CheckPolicies, Kind: "policies-not-enforced", Severity: report.Warning, About: v.Policies,
		Cause: fmt.Sprintf("Fairlead enforces no network policies unless its config says networkPolicies: enforce, and there %s: otherwise traffic "+
			"that they should block passes",
			report.Count(len(v.Policies), "is 1", "are %d")),
		Evidence: []string{report.Some(v.Policies)},
		Remedies: []report.Remedy{{Text: "Block the traffic elsewhere (the underlay's firewall, the application itself), or delete policies that are not needed"}}}}, nil
}
