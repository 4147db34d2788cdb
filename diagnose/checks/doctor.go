// Package checks examines a cluster and the node that it runs on, for those who
// ask, with the kubeconfig that they have. It changes nothing. Each finding names
// its cause, what it was seen by, and what mends it.
package checks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/kube"
)

// Severity is how bad a finding is.
type Severity int

// The severities, from good to bad. Warning: pods are served, but something is
// wrong or will be. Failing: some pods or a node are not served, or not as they
// should be.
const (
	Healthy Severity = iota
	Warning
	Failing
)

func (s Severity) String() string { return [...]string{"healthy", "warning", "failing"}[s] }

// MarshalJSON writes the name.
func (s Severity) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Check is what is examined, by the name that the command has.
type Check string

// The checks. The first four ask the Kubernetes API, the others look at this node.
const (
	CheckPodCIDR  Check = "pod-cidr"
	CheckPools    Check = "pools"
	CheckLeaks    Check = "leaks"
	CheckPolicies Check = "policies"

	CheckAgent  Check = "agent"
	CheckOVS    Check = "ovs"
	CheckUplink Check = "uplink"
	CheckFlows  Check = "flows"
	CheckMTU    Check = "mtu"
)

// Checks are all, in the order in which they are told.
func Checks() []Check { return append(ofCluster(), OfNode()...) }

func ofCluster() []Check { return []Check{CheckPodCIDR, CheckPools, CheckLeaks, CheckPolicies} }

// OfNode are the checks that look at this node.
func OfNode() []Check { return []Check{CheckAgent, CheckOVS, CheckUplink, CheckFlows, CheckMTU} }

// Finding is one thing that is wrong.
type Finding struct {
	Check Check `json:"check"`
	// Kind is one word for programs.
	Kind     string   `json:"kind"`
	Severity Severity `json:"severity"`
	// About are the names of nodes, pools, addresses.
	About []string `json:"about,omitempty"`
	// Cause is one sentence or more.
	Cause string `json:"cause"`
	// Evidence says what was seen, and where.
	Evidence []string `json:"evidence,omitempty"`
	// Remedies each mend it, best first.
	Remedies []Remedy `json:"remedies,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}

// Remedy is one way out: a sentence in the imperative, shell commands or comments,
// and what it costs.
type Remedy struct {
	Text     string   `json:"text"`
	Commands []string `json:"commands,omitempty"`
	Beware   []string `json:"beware,omitempty"`
}

// key tells findings apart over two looks.
func (f Finding) key() string { return fmt.Sprint(f.Check, f.Kind, f.About) }

// Gap is a check that was not made, and why.
type Gap struct {
	Check Check  `json:"check"`
	Why   string `json:"why"`
	// Failed: it should have been possible here.
	Failed bool `json:"failed,omitempty"`
}

// Result is what all checks found.
type Result struct {
	Severity Severity `json:"severity"`
	// Examined are the checks that were made. NotKnown are sentences about what these could not see.
	Examined    []Check   `json:"examined"`
	NotExamined []Gap     `json:"notExamined,omitempty"`
	NotKnown    []string  `json:"notKnown,omitempty"`
	Findings    []Finding `json:"findings"`
}

// Options is what the checks work with.
type Options struct {
	// Checks are those to make; nil: all.
	Checks []Check
	// Client is the way to the Kubernetes API; nil: there is none, because of NoClient.
	Client   *kube.Client
	NoClient error
	// Node looks at the node that this runs on; nil: none is, because of NoNode.
	Node   *NodeProbe
	NoNode string
	// SecondLook is how long after the first look at what changes all the time a second one is taken. Only what both
	// see is told.
	SecondLook time.Duration
}

// Examine makes the checks.
func Examine(ctx context.Context, o Options) Result {
	r := Result{Examined: []Check{}, Findings: []Finding{}}
	for _, c := range Checks() {
		if o.Checks != nil && !slices.Contains(o.Checks, c) {
			continue
		}
		found, notKnown, gap := o.examine(ctx, c)
		if gap != nil {
			r.NotExamined = append(r.NotExamined, *gap)
			continue
		}
		r.Examined = append(r.Examined, c)
		r.NotKnown = append(r.NotKnown, notKnown...)
		r.Findings = append(r.Findings, found...)
	}
	for _, f := range r.Findings {
		r.Severity = max(r.Severity, f.Severity)
	}
	return r
}

// Failed are the checks that should have been possible and were not.
func (r Result) Failed() []Gap {
	return slices.DeleteFunc(slices.Clone(r.NotExamined), func(g Gap) bool { return !g.Failed })
}

func (o Options) examine(ctx context.Context, c Check) (found []Finding, notKnown []string, gap *Gap) {
	ofNode := slices.Contains(OfNode(), c)
	switch {
	case ofNode && o.Node == nil:
		return nil, nil, &Gap{Check: c, Why: o.NoNode}
	case !ofNode && o.Client == nil && o.NoClient == nil:
		return nil, nil, &Gap{Check: c, Why: "only this node is examined (--node-local)"}
	case !ofNode && o.Client == nil:
		return nil, nil, &Gap{Check: c, Why: o.NoClient.Error(), Failed: true}
	}
	var err error
	switch c {
	case CheckPodCIDR:
		found, notKnown, err = o.podCIDRs(ctx)
	case CheckPools:
		found, err = o.pools(ctx)
	case CheckLeaks:
		found, err = o.leaks(ctx)
	case CheckPolicies:
		found, err = o.policies(ctx)
	default:
		found, notKnown, err = o.Node.examine(ctx, c, o.SecondLook)
	}
	if err != nil {
		return nil, nil, &Gap{Check: c, Why: err.Error(), Failed: true}
	}
	return found, notKnown, nil
}

// twice looks, and where something is found looks again: what only one look saw
// was on its way.
func twice(ctx context.Context, wait time.Duration, look func(context.Context) ([]Finding, error)) ([]Finding, error) {
	first, err := look(ctx)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return first, nil
	case <-time.After(wait):
	}
	second, err := look(ctx)
	return slices.DeleteFunc(second, func(f Finding) bool {
		return !slices.ContainsFunc(first, func(g Finding) bool { return f.key() == g.key() })
	}), err
}

func (o Options) podCIDRs(ctx context.Context) (found []Finding, notKnown []string, err error) {
	report, err := PodCIDRs(ctx, o.Client)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range report.Problems {
		found = append(found, finding(d))
	}
	return found, report.Unread, nil
}
