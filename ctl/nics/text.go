package nics

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// same are nodes with the same text. text is the first node's; the others' may have other names and numbers in it.
type same struct {
	text   string
	nodes  []Node
	differ bool
}

// group groups what texts returns for each node, in the order of the nodes.
func group(nodes []Node, texts func(Node) []string) (out []same) {
	for _, n := range nodes {
		for _, text := range texts(n) {
			i := slices.IndexFunc(out, func(s same) bool { return pattern(s.text, s.nodes[0]) == pattern(text, n) })
			if i < 0 {
				out = append(out, same{text: text, nodes: []Node{n}})
				continue
			}
			if out[i].nodes = append(out[i].nodes, n); text != out[i].text {
				out[i].differ = true
			}
		}
	}
	return out
}

// pattern is a text without what is specific to a node: the NIC's name, and words with digits, such as addresses and
// other interfaces.
func pattern(text string, n Node) string {
	words := strings.Fields(text)
	for i, w := range words {
		if strings.ContainsAny(w, "0123456789") || n.Report != nil && strings.Contains(w, n.Report.NIC) {
			words[i] = "*"
		}
	}
	return strings.Join(words, " ")
}

// names are those of the nodes.
func (s same) names() (names []string) {
	for _, n := range s.nodes {
		if !slices.Contains(names, n.Node) {
			names = append(names, n.Node)
		}
	}
	return names
}

// finding is the group as a finding; cause has one verb for the nodes' names and one for the text.
func (s same) finding(kind string, severity report.Severity, cause string) report.Finding {
	f := report.Finding{Check: "uplink", Kind: kind, Severity: severity, About: s.names(),
		Cause: fmt.Sprintf(cause, report.Some(s.names()), s.text)}
	if s.differ {
		f.Notes = []string{"names and numbers are those of " + s.nodes[0].Node + "; -o json has each node's"}
	}
	return f
}

func findings(nodes []Node) []report.Finding {
	out := []report.Finding{}
	for _, s := range group(nodes, Node.refused) {
		out = append(out, s.finding("nic-refused", report.Failing, "the NIC of %s cannot be attached: %s"))
	}
	for _, s := range group(nodes, Node.unknown) {
		out = append(out, s.finding("nic-not-known", report.Warning, "for the NIC of %s it is not known %s"))
	}
	for _, s := range group(nodes, Node.notQueried) {
		out = append(out, s.finding("not-queried", report.Warning, "%s could not be queried: %s"))
	}
	return out
}

func (n Node) refused() []string {
	if n.Report == nil {
		return nil
	}
	return n.Report.Refused
}

func (n Node) unknown() []string {
	if n.Report == nil {
		return nil
	}
	return n.Report.Unknown
}

func (n Node) notQueried() []string {
	if n.Report != nil {
		return nil
	}
	return []string{n.Why}
}

// notes is further information, such as why the mode is not steer.
func (n Node) notes() []string {
	switch {
	case n.Report == nil:
		return nil
	case n.Report.NotSteer != "":
		return append([]string{"not mode steer, because " + n.Report.NotSteer}, n.Report.Notes...)
	}
	return n.Report.Notes
}

// Write writes it as text.
func (a All) Write(p *report.Printer) {
	rows := [][]string{{"NODE", "NIC", "MODE", "RESULT"}}
	for _, n := range a.Nodes {
		row := []string{n.Node, "", "", p.Paint(n.Result.Severity().Colour(), string(n.Result))}
		if n.Report != nil {
			row[1], row[2] = n.Report.NIC, n.Report.Mode
		}
		rows = append(rows, row)
	}
	p.Table(rows...)
	p.Line("")
	for i, f := range a.Findings {
		f.Write(p, i+1, "")
	}
	for _, s := range group(a.Nodes, Node.notes) {
		p.Text("note: ", report.Some(s.names())+": "+s.text)
	}
}
