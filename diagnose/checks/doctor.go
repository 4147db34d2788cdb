// Package checks examines a cluster and the node that it runs on, with the user's kubeconfig. It changes nothing. Each
// finding names its cause, the evidence, and the remedy.
package checks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
)

// The checks. The first six read the Kubernetes API, the others examine this node.
const (
	CheckPodCIDR  = podcidr.Check
	CheckPools    = "pools"
	CheckLeaks    = "leaks"
	CheckPolicies = "policies"
	CheckServices = "services"
	CheckVersions = "versions"

	CheckAgent    = "agent"
	CheckOVS      = "ovs"
	CheckUplink   = "uplink"
	CheckFlows    = "flows"
	CheckFirewall = "firewall"
	CheckMTU      = "mtu"
	CheckReach    = "reach"
	CheckVLANs    = "vlans"
)

// Checks are all, in the order in which they are reported.
func Checks() []string { return append(ofCluster(), OfNode()...) }

func ofCluster() []string {
	return []string{CheckPodCIDR, CheckPools, CheckLeaks, CheckPolicies, CheckServices, CheckVersions}
}

// OfNode are the checks that examine this node.
func OfNode() []string {
	return []string{CheckAgent, CheckOVS, CheckUplink, CheckFlows, CheckFirewall, CheckMTU, CheckReach, CheckVLANs}
}

// key identifies a finding in two passes.
func key(f report.Finding) string { return fmt.Sprint(f.Check, f.Kind, f.About) }

// Gap is a check that was not run, and why.
type Gap struct {
	Check string `json:"check"`
	Why   string `json:"why"`
	// Failed: it should have been possible here.
	Failed bool `json:"failed,omitempty"`
}

// Result is what all checks found.
type Result struct {
	Severity report.Severity `json:"severity"`
	// Examined are the checks that ran. NotKnown are messages about what these could not read.
	Examined    []string         `json:"examined"`
	NotExamined []Gap            `json:"notExamined,omitempty"`
	NotKnown    []string         `json:"notKnown,omitempty"`
	Findings    []report.Finding `json:"findings"`
}

// Options is the input of the checks.
type Options struct {
	// Checks are those to run; nil: all.
	Checks []string
	// Client is the client of the Kubernetes API; nil: there is none, because of NoClient.
	Client   *kube.Client
	NoClient error
	// Node examines the node that this runs on; nil: no node, because of NoNode.
	Node   *NodeProbe
	NoNode string
	// Here: an agent is configured on this machine.
	Here bool
	// Reaches queries the agents of all nodes for CheckReach: each side has all its paths. nil: only this node's agent is.
	Reaches func(context.Context) (sides []reach.Side, notKnown []string, err error)
	// NetworkPolicies is the agent's setting of that name; empty if it is not known.
	NetworkPolicies string
	// SecondLook is the time between two checks of state that changes all the time. Only what both find is reported.
	SecondLook time.Duration
}

// Examine runs the checks. Those of the node do not wait for those of the cluster: an API server that does not answer
// would leave them no time, and they would find everything dead.
func Examine(ctx context.Context, o Options) Result {
	r := Result{Examined: []string{}, Findings: []report.Finding{}}
	var results [2]Result
	var running sync.WaitGroup
	for i, group := range [][]string{ofCluster(), OfNode()} {
		running.Go(func() { results[i] = o.examineAll(ctx, group) })
	}
	running.Wait()
	for _, g := range results {
		r.Examined = append(r.Examined, g.Examined...)
		r.NotExamined = append(r.NotExamined, g.NotExamined...)
		r.NotKnown = append(r.NotKnown, g.NotKnown...)
		r.Findings = append(r.Findings, g.Findings...)
	}
	for _, f := range r.Findings {
		r.Severity = max(r.Severity, f.Severity)
	}
	return r
}

// examineAll runs those of the checks that were chosen, one after the other.
func (o Options) examineAll(ctx context.Context, checks []string) (r Result) {
	for _, c := range checks {
		if o.Checks != nil && !slices.Contains(o.Checks, c) {
			continue
		}
		found, notKnown, gap := o.examine(ctx, c)
		r.NotKnown = append(r.NotKnown, notKnown...)
		if gap != nil {
			r.NotExamined = append(r.NotExamined, *gap)
			continue
		}
		r.Examined = append(r.Examined, c)
		r.Findings = append(r.Findings, found...)
	}
	return r
}

// Failed are the checks that should have been possible and were not.
func (r Result) Failed() []Gap {
	return slices.DeleteFunc(slices.Clone(r.NotExamined), func(g Gap) bool { return !g.Failed })
}

func (o Options) examine(ctx context.Context, c string) (found []report.Finding, notKnown []string, gap *Gap) {
	if c == CheckReach && o.Reaches != nil {
		return o.reaches(ctx)
	}
	return o.examineOne(ctx, c)
}

// reaches queries all agents, or only this node's if that fails.
func (o Options) reaches(ctx context.Context) (found []report.Finding, notKnown []string, gap *Gap) {
	querying, cancel := context.WithTimeout(ctx, reachesShare(ctx))
	defer cancel()
	sides, notKnown, err := o.Reaches(querying)
	off := errors.Is(err, ErrNotProbed)
	switch {
	case err == nil:
		return Reaches(sides), notKnown, nil
	case o.Node == nil || !o.Here:
		return nil, nil, &Gap{Check: CheckReach, Why: err.Error(), Failed: !off}
	}
	found, notKnown, gap = o.examineOne(ctx, CheckReach)
	if !off {
		notKnown = append(notKnown, "reach, of other nodes: "+err.Error())
	}
	return found, notKnown, gap
}

// examineOne runs a check of the cluster or of this node.
func (o Options) examineOne(ctx context.Context, c string) (found []report.Finding, notKnown []string, gap *Gap) {
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
	if ofNode {
		found, notKnown, err = o.Node.examine(ctx, c, o.SecondLook)
	} else {
		found, notKnown, err = o.examineCluster(ctx, c)
	}
	if err != nil {
		return nil, nil, &Gap{Check: c, Why: err.Error(), Failed: !errors.Is(err, ErrNotProbed)}
	}
	return found, notKnown, nil
}

func (o Options) examineCluster(ctx context.Context, c string) (found []report.Finding, notKnown []string, err error) {
	switch c {
	case CheckPodCIDR:
		var r *Report
		if r, err = PodCIDRs(ctx, o.Client); err == nil {
			found, notKnown = r.Problems, r.Unread
		}
	case CheckPools:
		found, err = o.pools(ctx)
	case CheckLeaks:
		return o.leaks(ctx)
	case CheckPolicies:
		found, err = o.policies(ctx)
	case CheckServices:
		found, err = o.services(ctx)
	case CheckVersions:
		found, err = o.versions(ctx)
	}
	return found, notKnown, err
}

// reachesShare is how long querying all agents may take: it leaves time to query this node's if the API server does not
// answer.
func reachesShare(ctx context.Context) time.Duration {
	if end, bounded := ctx.Deadline(); bounded {
		return time.Until(end) * 2 / 3
	}
	return time.Minute
}

// checkTwice runs a check, and again if it finds something: what only one run found was transient.
func checkTwice(ctx context.Context, wait time.Duration, check func(context.Context) ([]report.Finding, error)) (
	[]report.Finding, error) {
	first, err := check(ctx)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return first, nil
	case <-time.After(wait):
	}
	second, err := check(ctx)
	return slices.DeleteFunc(second, func(f report.Finding) bool {
		return !slices.ContainsFunc(first, func(g report.Finding) bool { return key(f) == key(g) })
	}), err
}
