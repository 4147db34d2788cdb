package checks

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

func (o Options) pools(ctx context.Context) ([]report.Finding, error) {
	v := cluster.Read(ctx, o.Client, cluster.Pools, cluster.Leader, cluster.Ranges)
	if err := v.Missing(cluster.Pools, cluster.Ranges); err != nil {
		return nil, err
	}
	return poolFindings(v), nil
}

// poolFindings are the problems that the pools' conditions report, and a missing controller, which would update them.
func poolFindings(v *cluster.View) []report.Finding {
	var out []report.Finding
	if missing := v.Unread[cluster.Leader] == nil && !v.Controller.Works; missing && len(v.Pools)+len(v.Ranges) > 0 {
		out = append(out, report.Finding{Check: CheckPools, Kind: "controller-away", Severity: report.Warning,
			Cause:    "fairlead-controller is not working: the status of pools and ranges may be outdated, NodeIPAM assigns no podCIDRs, and addresses of lost nodes are not reclaimed",
			Evidence: []string{v.Controller.String()},
			Remedies: []report.Remedy{{Text: "Start fairlead-controller; if it runs, its log has the reason",
				Commands: []string{"kubectl -n kube-system get lease fairlead-controller -o yaml"}}}})
	}
	for _, p := range v.Pools {
		out = append(out, poolFinding(p)...)
	}
	return out
}

func poolFinding(p api.IPPool) []report.Finding {
	f := report.Finding{Check: CheckPools, Severity: report.Failing, About: []string{p.Name},
		Evidence: []string{"kubectl describe ippool " + p.Name}}
	if _, err := pool.Read(p); err != nil {
		f.Kind, f.Cause = "pool-invalid", fmt.Sprintf("%v. It does not allocate addresses", err)
		f.Remedies = []report.Remedy{{Text: "Correct the field that the message names", Commands: []string{"kubectl edit ippool " + p.Name}}}
		return []report.Finding{f}
	}
	var out []report.Finding
	for _, c := range p.Status.Conditions {
		if c.Type == api.PoolReady || c.Type == api.PoolInvalid || c.Status != metav1.ConditionTrue {
			continue
		}
		f := f
		f.Kind, f.Cause = "pool-"+strings.ToLower(c.Type), fmt.Sprintf("IPPool %s: %s", p.Name, c.Message)
		switch c.Type {
		case api.PoolExhausted:
			f.Evidence = append(f.Evidence, fmt.Sprintf("fairleadctl ipam show --pool %s lists the owners of its addresses, fairleadctl ipam check the orphaned ones", p.Name))
			f.Remedies = []report.Remedy{{Text: "Add a range to the pool, or check for orphaned addresses",
				Commands: []string{"fairleadctl ipam check", "kubectl edit ippool " + p.Name}}}
		case api.PoolOverlapping:
			f.Remedies = []report.Remedy{{Text: "Change the younger of the two pools", Commands: []string{"kubectl edit ippool " + p.Name}}}
			if meta.IsStatusConditionTrue(p.Status.Conditions, api.PoolReady) {
				f.Severity = report.Warning
			}
		default:
			f.Severity = report.Warning
		}
		out = append(out, f)
	}
	return out
}
