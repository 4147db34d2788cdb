package checks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// sampledPairs is how many connections Open vSwitch is asked to simulate: each takes a few milliseconds.
const sampledPairs = 20

// idle finds policies that have no effect.
func idle(all []compile.Idle) []report.Finding {
	var nothing, ports, evidence []string
	for _, i := range all {
		if len(i.Ports) == 0 {
			nothing = append(nothing, i.Policy.String())
			continue
		}
		ports = append(ports, i.Policy.String())
		for _, p := range i.Ports {
			evidence = append(evidence, fmt.Sprintf("%s: %s", i.Policy, p))
		}
	}
	finding := func(kind string, about, evidence []string, cause, remedy string) report.Finding {
		return report.Finding{Check: CheckPolicies, Kind: kind, Severity: report.Warning, About: about, Cause: cause,
			Evidence: []string{report.Some(evidence)}, Remedies: []report.Remedy{{Text: remedy}}}
	}
	var out []report.Finding
	if len(nothing) > 0 {
		out = append(out, finding("policies-select-nothing", nothing, nothing,
			report.Count(len(nothing), "1 policy selects", "%d policies select")+" no pod: traffic that they should block passes, unless "+
				"their pods have yet to be created", "Compare the labels in podSelector or subject with those of pods: kubectl get pods -A --show-labels"))
	}
	if len(ports) > 0 {
		out = append(out, finding("policies-name-unknown-ports", ports, evidence,
			report.Count(len(ports), "1 policy names", "%d policies name")+" a port that no pod in the rule's scope has: "+
				"the rule accepts or denies nothing by it", "Give the port that name in the pods' containers, or give the port's number in the policy"))
	}
	return out
}

// enforced compares what this node's Open vSwitch does with what policies mean, for some connections from pods on this
// node to others, and from outside to them.
func (o Options) enforced(ctx context.Context, c *verdict.Cluster, sw *verdict.Switch) ([]report.Finding, error) {
	var differ, evidence []string
	for _, pair := range sample(c, sw.Pods(), sampledPairs) {
		a, err := sw.Evaluate(ctx, c, pair)
		if err != nil {
			return nil, err
		}
		if a.Differs != "" {
			about := fmt.Sprintf("%s to %s:%d/%s", pair.From, pair.To, pair.Port, pair.Protocol)
			differ, evidence = append(differ, about), append(evidence, about+": "+a.Differs)
		}
	}
	if len(differ) == 0 {
		return nil, nil
	}
	return []report.Finding{{Check: CheckPolicies, Kind: "policies-enforced-otherwise", Severity: report.Failing, About: differ,
		Cause: "Open vSwitch on this node does not do with connections what the policies say: the agent does not run, or has " +
			"not applied a change yet, or this is a bug in Fairlead",
		Evidence: evidence, Remedies: []report.Remedy{{Text: "Check the agent: fairleadctl doctor agent. If it is well, " +
			"report this, with the output of: fairleadctl policy trace FROM TO:PORT/PROTOCOL"}}}}, nil
}

// outside are addresses that no pod or node should have (RFC 5737, RFC 3849).
var outside = []netip.Addr{netip.MustParseAddr("203.0.113.99"), netip.MustParseAddr("2001:db8::99")}

// sample returns up to n random connections that involve pods on this node.
func sample(c *verdict.Cluster, local []policy.PodKey, n int) (out []verdict.Connection) {
	var all []policy.Pod
	for _, p := range c.Pods {
		if !p.HostNetwork && len(p.Addrs) > 0 {
			all = append(all, p)
		}
	}
	for range 4 * n { // some have no addresses, or none of the same family
		if len(out) == n || len(local) == 0 || len(all) == 0 {
			break
		}
		own, known := c.Pods[local[rand.IntN(len(local))]]
		if !known || own.HostNetwork || len(own.Addrs) == 0 {
			continue
		}
		pair := verdict.Connection{Protocol: []policy.Protocol{policy.TCP, policy.UDP}[rand.IntN(2)], Port: somePort(c)}
		from, to := own, all[rand.IntN(len(all))]
		if pair.FromPod, pair.From, pair.ToPod = from.PodKey, from.Addrs[0], to.PodKey; rand.IntN(4) == 0 {
			to, pair.ToPod, pair.FromPod, pair.From = own, own.PodKey, policy.PodKey{}, outside[rand.IntN(2)]
		}
		for _, a := range to.Addrs {
			if a.Is4() == pair.From.Is4() && a != pair.From {
				pair.To = a
				out = append(out, pair)
				break
			}
		}
	}
	return out
}

// somePort is a port that a policy names, or any.
func somePort(c *verdict.Cluster) uint16 {
	var ports []uint16
	for _, p := range c.Policies {
		for _, rules := range p.Rules {
			for _, r := range rules {
				for _, port := range r.Ports {
					ports = append(ports, max(port.First, 1))
				}
			}
		}
	}
	if len(ports) == 0 || rand.IntN(3) == 0 {
		return uint16(1 + rand.IntN(65535))
	}
	return ports[rand.IntN(len(ports))]
}

// enforceable are the findings about policies that agents can enforce, if they do.
func (o Options) enforceable(ctx context.Context) ([]report.Finding, error) {
	var sw *verdict.Switch
	local := func(policy.PodKey) bool { return false }
	if o.Node != nil && o.NetworkPolicies == api.PoliciesEnforce && os.Geteuid() == 0 {
		var err error
		if sw, err = verdict.Open(ctx, o.Node.Config); err != nil {
			return nil, fmt.Errorf("reading what Open vSwitch enforces: %w", err)
		}
		local = sw.Has
	}
	c, err := verdict.Read(ctx, o.Client, local)
	if err != nil {
		return nil, err
	}
	found := idle(c.Compiler.Idle())
	if sw == nil {
		return found, nil
	}
	differ, err := o.enforced(ctx, c, sw)
	return append(found, differ...), err
}
