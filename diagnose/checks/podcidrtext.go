package checks

import (
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// Write writes the report as text.
func (r *Report) Write(p *report.Printer) {
	r.head(p)
	rows := [][]string{{"NODE", "PODCIDR", "ADDRESS", "STATE"}}
	for _, n := range r.Nodes {
		rows = append(rows, []string{n.Name, report.Join(n.PodCIDRs, ","), report.Join(n.Addresses, ","), r.state(p, n)})
	}
	p.Table(rows...)
	p.Line("")
	for i, d := range r.Problems {
		d.Write(p, i+1, "")
	}
	if len(r.Problems) == 0 {
		p.Line("%s", p.Paint(report.Good, "No problems: every node has its own podCIDR."))
	}
}

func (r *Report) head(p *report.Printer) {
	var rows [][]string
	if len(r.Ranges) == 0 {
		rows = append(rows, []string{"cluster CIDR", "unknown"})
	}
	for _, g := range r.Ranges {
		rows = append(rows, []string{"cluster CIDR", g.String(), "from " + r.RangesFrom})
	}
	for _, s := range r.Services {
		rows = append(rows, []string{"Service CIDR", s.String(), "from " + r.ServicesFrom})
	}
	p.Table(append(rows, []string{"allocator", r.Allocator})...)
	for _, u := range r.Unread {
		p.Text("unknown: ", u)
	}
	p.Line("")
}

func (r *Report) state(p *report.Printer, n Node) string {
	if len(n.Problems) == 0 {
		return p.Paint(report.Good, "ok")
	}
	var out []string
	for _, i := range n.Problems {
		d := r.Problems[i-1]
		out = append(out, p.Paint(d.Severity.Colour(), fmt.Sprintf("%s (problem %d)", d.Kind, i)))
	}
	return strings.Join(out, ", ")
}

// WritePlan writes a plan as text.
func WritePlan(p *report.Printer, plan podcidr.Plan) {
	rows := [][]string{{"CLUSTER CIDR", "NODE MASK", "PODCIDRS", "FOR SERVICES", "NODES", "PODS ON A NODE", "FIRST", "LAST"}}
	for _, r := range plan.Ranges {
		pods := "more than the limit"
		if r.Pods > 0 {
			pods = fmt.Sprint(r.Pods)
		}
		rows = append(rows, []string{r.Cluster.String(), fmt.Sprintf("/%d", r.Mask), fmt.Sprint(r.Blocks),
			fmt.Sprint(r.ForServices), fmt.Sprint(r.Blocks - r.ForServices), pods, r.First.String(), r.Last.String()})
	}
	p.Table(rows...)
	p.Line("")
	for _, problem := range plan.Problems {
		p.Text(p.Paint(report.Bad, "problem: "), problem)
	}
	for _, r := range plan.Remedies {
		p.Text("remedy:  ", r)
	}
	if len(plan.Problems) > 0 {
		return
	}
	p.Line("It holds %d nodes. With kubeadm:", plan.Holds)
	p.Line("  kubeadm init %s", strings.Join(plan.KubeadmFlags, " "))
	if len(plan.ExtraArgs) > 0 {
		p.Line("and in its config file, under controllerManager.extraArgs, because kubeadm init has no flag for it:")
		p.Line("  %s", strings.Join(plan.ExtraArgs, " "))
	}
	p.Line("Otherwise, for kube-controller-manager:")
	p.Line("  %s", strings.Join(plan.KCMFlags, " "))
	p.Line("Or, for fairlead-controller, with kube-controller-manager's --allocate-node-cidrs=false:")
	for _, line := range plan.NodeIPAM {
		p.Line("  %s", line)
	}
}
