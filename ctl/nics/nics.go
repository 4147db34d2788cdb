// Package nics checks on all nodes whether the NIC can be attached, by "fairleadctl uplink preflight" in the agents'
// Pods.
package nics

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
)

// limit is how long one node may take: it waits up to 4 s for addresses, and longer for an ovs-vswitchd that hangs.
const limit = 20 * time.Second

// Result says whether the NIC of a node can be attached.
type Result string

// The results. Partly: what is known does not prevent it, but something is unknown.
const (
	Can        Result = "ok"
	Cannot     Result = "cannot"
	Partly     Result = "not all known"
	NotQueried Result = "not queried"
)

// Node is a node's answer.
type Node struct {
	Node   string `json:"node"`
	Result Result `json:"result"`
	// Report is the node's own; nil: it was not queried, or has not answered, and Why says why.
	Report *preflight.Report `json:"report,omitempty"`
	Why    string            `json:"why,omitempty"`
}

// All is the output of "fairleadctl uplink preflight --all-nodes".
type All struct {
	Nodes []Node `json:"nodes"`
	// Findings are the problems, each with all nodes that have it.
	Findings []report.Finding `json:"findings"`
}

// Query runs the checks on all nodes on which an agent may run. nic is the name of the NIC or a pattern, or empty for
// the one that each agent uses. An error means that the Nodes or the Pods could not be read.
func Query(ctx context.Context, client *kube.Client, nic string) (All, error) {
	v := cluster.Read(ctx, client, cluster.Nodes)
	if err := v.Missing(cluster.Nodes); err != nil {
		return All{}, err
	}
	command := agents.Command{Name: "uplink preflight", More: func(string, time.Duration) []string {
		args := []string{"-o", "json"}
		if nic != "" {
			args = append(args, "--nic="+nic)
		}
		return args
	}}
	results, err := agents.InPods(ctx, client, limit, running(v.Nodes), command)
	if err != nil {
		return All{}, cluster.Explain("the Pods of agents", err)
	}
	return all(v.Nodes, results), nil
}

// running are the nodes whose kubelet runs: a query to others would only time out. One that is not ready may lack
// nothing but its network.
func running(nodes []cluster.Node) (names []string) {
	for _, n := range nodes {
		if n.NoAgent == "" && (n.Ready == "True" || n.Ready == "False") {
			names = append(names, n.Name)
		}
	}
	return names
}

// all joins the answers with the nodes that were not queried. Nodes on which no agent may run are left out.
func all(nodes []cluster.Node, results []agents.CommandResult) All {
	known := map[string]agents.CommandResult{}
	for _, s := range results {
		known[s.Node] = s
	}
	a := All{Nodes: []Node{}}
	for _, n := range nodes {
		if n.NoAgent != "" {
			continue
		}
		if s, queried := known[n.Name]; queried {
			a.Nodes = append(a.Nodes, answer(s))
			continue
		}
		a.Nodes = append(a.Nodes, Node{Node: n.Name, Result: NotQueried, Why: "its kubelet does not report: the Node is not ready"})
	}
	a.Findings = findings(a.Nodes)
	return a
}

// answer is the result of a node: its output counts if it is a report, whatever the exit code.
func answer(s agents.CommandResult) Node {
	r := preflight.Report{}
	if json.Unmarshal(s.Output, &r) != nil || r.NIC == "" {
		return Node{Node: s.Node, Result: NotQueried, Why: strings.TrimPrefix(s.Why, "fairleadctl: ")}
	}
	return Node{Node: s.Node, Result: Of(r), Report: &r}
}

// Of is the result of a node's report.
func Of(r preflight.Report) Result {
	switch {
	case len(r.Refused) > 0:
		return Cannot
	case len(r.Unknown) > 0:
		return Partly
	}
	return Can
}

// Severity is how bad the result is.
func (r Result) Severity() report.Severity {
	switch r {
	case Can:
		return report.Healthy
	case Cannot:
		return report.Failing
	}
	return report.Warning
}

// Severity is that of the worst result.
func (a All) Severity() (worst report.Severity) {
	for _, n := range a.Nodes {
		worst = max(worst, n.Result.Severity())
	}
	return worst
}

// Unanswered is an error if no node has answered.
func (a All) Unanswered() error {
	if slices.ContainsFunc(a.Nodes, func(n Node) bool { return n.Report != nil }) {
		return nil
	}
	return errors.New("no agent has answered")
}
