package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// This file is about a cluster whose podCIDRs come from fairlead-controller (nodeIPAM.enableNodeIPAM).

// controllerName is the allocator here, in messages.
const controllerName = "fairlead-controller"

// configuredRanges names the ranges in messages.
const configuredRanges = "nodeIPAM.clusterCIDRs"

// causeNodeIPAM finds why nodes wait for fairlead-controller.
func (c *cluster) causeNodeIPAM(d *report.Finding) {
	d.Evidence = []string{c.source()}
	switch {
	case c.Runs == No:
		d.Kind = NotRunning
		d.Cause += controllerName + ", which assigns them (nodeIPAM.enableNodeIPAM), is not running: " + c.RunsNot
		d.Notes = append(d.Notes, "Start it; the reason why it stopped is in its log. Leave the allocator of kube-controller-manager disabled")
	case c.NodeIPAM.Stopped != "":
		d.Kind = TwoAllocators
		d.Cause += c.NodeIPAM.Stopped
		d.Remedies = append(d.Remedies, c.oneAllocator())
	default:
		c.causeInConfigured(d)
	}
}

// causeInConfigured does the arithmetic of the configured ranges.
func (c *cluster) causeInConfigured(d *report.Finding) {
	var full []string
	for _, ranges := range byFamily(c.Ranges) {
		if c.serves(ranges, c.nodes) == nil {
			continue
		}
		var blocks uint64
		for _, r := range ranges {
			blocks += r.Blocks()
		}
		full = append(full, fmt.Sprintf("%s %s hold %s, and %s", configuredRanges, report.Join(ranges, " and "),
			report.Count(int(blocks), "1 node", "%d nodes"), c.nodeCount()))
	}
	if len(full) == 0 {
		d.Cause += fmt.Sprintf("%d of %d nodes have one, and there is room for all. %s has not assigned it", len(c.having), len(c.nodes),
			controllerName)
		d.Notes = append(d.Notes, "It takes a second or two. If it takes longer, the log of "+controllerName+
			" has the reason, and kubectl get podcidrranges shows the ranges")
		return
	}
	d.Kind = Exhausted
	d.Cause += strings.Join(full, ", and ")
	c.remedyRange(d)
	c.remedyMask(d)
	d.Notes = append(d.Notes, "The Node of a machine that will not come back keeps its podCIDR until it is deleted (kubectl delete node)")
}

// outsideConfigured finds podCIDRs that fairlead-controller has not assigned.
func (c *cluster) outsideConfigured() []report.Finding {
	var outside []inputs.Node
	for _, n := range c.having {
		if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool {
			return !slices.ContainsFunc(c.Ranges, func(r Range) bool {
				return r.Cluster.Overlaps(p) && r.Cluster.Bits() <= p.Bits()
			})
		}) {
			outside = append(outside, n)
		}
	}
	if len(outside) == 0 {
		return nil
	}
	d := finding(OutOfRange, report.Warning, outside)
	d.Evidence = []string{c.source()}
	d.Cause = fmt.Sprintf("%s podCIDRs that are in no CIDR of %s (%s). The Nodes keep them", c.subject(d.About), configuredRanges,
		clusterCIDRs(c.Ranges))
	d.Notes = append(d.Notes, "No action is needed, unless their range was removed by mistake: then add it to "+configuredRanges)
	return []report.Finding{d}
}

// twoAllocators finds another allocator while no node waits.
func (c *cluster) twoAllocators() []report.Finding {
	if c.NodeIPAM.Stopped == "" || len(c.waiting) > 0 {
		return nil
	}
	d := finding(TwoAllocators, report.Warning, nil)
	d.Cause = "the next node would get no podCIDR: " + c.NodeIPAM.Stopped
	d.Remedies = []report.Remedy{c.oneAllocator()}
	return []report.Finding{d}
}
