package doctor

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/fairlead-cni/fairlead/agent/podcidr"
)

// width is where sentences are broken into lines, in columns.
const width = 110

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{w: w}
	p.head(r)
	p.nodes(r)
	for i, d := range r.Problems {
		p.problem(i+1, d)
	}
	if len(r.Problems) == 0 {
		p.line("Nothing is wrong: every node has a podCIDR of its own.")
	}
	return p.err
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// text writes a paragraph behind a label, broken into lines.
func (p *printer) text(label, text string) {
	indent := strings.Repeat(" ", len(label))
	line := label
	for _, word := range strings.Fields(text) {
		if len(line) > len(label) && len(line)+len(word) > width {
			p.line("%s", strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	p.line("%s", strings.TrimRight(line, " "))
}

func (p *printer) head(r *Report) {
	t := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	if len(r.Ranges) == 0 {
		fmt.Fprintf(t, "cluster CIDR\tunknown\t\n")
	}
	for _, g := range r.Ranges {
		fmt.Fprintf(t, "cluster CIDR\t%s\tfrom %s\n", g, r.RangesFrom)
	}
	for _, s := range r.Services {
		fmt.Fprintf(t, "Service CIDR\t%s\tfrom %s\n", s, r.ServicesFrom)
	}
	fmt.Fprintf(t, "allocator\t%s\t\n", r.Allocator)
	p.flush(t)
	for _, u := range r.Unread {
		p.text("not known: ", u)
	}
	p.line("")
}

func (p *printer) flush(t *tabwriter.Writer) {
	if err := t.Flush(); err != nil && p.err == nil {
		p.err = err
	}
}

func (p *printer) nodes(r *Report) {
	t := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tPODCIDR\tADDRESS\tSTATE")
	for _, n := range r.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", n.Name, list(n.PodCIDRs), list(n.Addresses), state(r, n))
	}
	p.flush(t)
	p.line("")
}

func state(r *Report, n Node) string {
	if len(n.Problems) == 0 {
		return "ok"
	}
	var out []string
	for _, i := range n.Problems {
		out = append(out, fmt.Sprintf("%s (problem %d)", r.Problems[i-1].Kind, i))
	}
	return strings.Join(out, ", ")
}

func list[T fmt.Stringer](values []T) string {
	if len(values) == 0 {
		return "-"
	}
	var out []string
	for _, v := range values {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}

func (p *printer) problem(number int, d podcidr.Diagnosis) {
	what := "Problem"
	if d.Warning {
		what = "Warning"
	}
	p.line("%s %d: %s", what, number, d.Kind)
	p.text("  ", d.Cause)
	for _, e := range append(d.Evidence, d.Seen...) {
		p.text("  evidence: ", e)
	}
	for i, r := range d.Remedies {
		p.remedy(i, r)
	}
	for _, n := range d.NoHelp {
		p.text("  note: ", n)
	}
	p.line("")
}

func (p *printer) remedy(i int, r podcidr.Remedy) {
	label := "  remedy: "
	if i > 0 {
		label = "  or:     "
	}
	p.text(label, r.Text)
	for _, c := range r.Commands {
		p.line("      %s", c) // not broken: it is to be copied
	}
	for _, b := range r.Beware {
		p.text("    beware: ", b)
	}
}

// WritePlan writes a plan for people.
func WritePlan(w io.Writer, plan podcidr.Plan) error {
	p := &printer{w: w}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CLUSTER CIDR\tNODE MASK\tPODCIDRS\tFOR SERVICES\tNODES\tPODS ON A NODE\tFIRST\tLAST")
	for _, r := range plan.Ranges {
		pods := "more than it runs"
		if r.Pods > 0 {
			pods = fmt.Sprint(r.Pods)
		}
		fmt.Fprintf(t, "%s\t/%d\t%d\t%d\t%d\t%s\t%s\t%s\n", r.Cluster, r.Mask, r.Blocks, r.ForServices,
			r.Blocks-r.ForServices, pods, r.First, r.Last)
	}
	p.flush(t)
	p.line("")
	for _, problem := range plan.Problems {
		p.text("problem: ", problem)
	}
	for _, r := range plan.Remedies {
		p.text("remedy:  ", r)
	}
	if len(plan.Problems) == 0 {
		p.line("It holds %d nodes. With kubeadm:", plan.Holds)
		p.line("  kubeadm init %s", strings.Join(plan.KubeadmFlags, " "))
		if len(plan.ExtraArgs) > 0 {
			p.line("and in its config file, under controllerManager.extraArgs, as kubeadm init has no flag for it:")
			p.line("  %s", strings.Join(plan.ExtraArgs, " "))
		}
		p.line("Else, for kube-controller-manager:")
		p.line("  %s", strings.Join(plan.KCMFlags, " "))
	}
	return p.err
}
