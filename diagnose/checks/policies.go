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
		Cause: fmt.Sprintf("Fairlead enforces no network policies, but there %s: traffic that they should block passes",
			number(len(v.Policies), "is 1", "are %d")),
		Evidence: []string{some(v.Policies)},
		Remedies: []report.Remedy{{Text: "Block the traffic elsewhere (the underlay's firewall, the application itself), or delete policies that are not needed"}}}}, nil
}

// number says how many in words: one has its own.
func number(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(many, n)
}

// some keeps a list in a sentence short.
func some(list []string) string {
	const most = 10
	out := ""
	for i, s := range list {
		switch {
		case i == most:
			return fmt.Sprintf("%s and %d more", out, len(list)-most)
		case i > 0:
			out += ", "
		}
		out += s
	}
	return out
}
