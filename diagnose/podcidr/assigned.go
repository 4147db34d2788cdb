package podcidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// claim is one podCIDR and the node that has it.
type claim struct {
	netip.Prefix
	node inputs.Node
}

// claims are all podCIDRs: of overlapping ones the wider first, of equal ones the older Node's first.
func (c *cluster) claims() []claim {
	var out []claim
	for _, n := range c.having {
		for _, p := range n.PodCIDRs {
			out = append(out, claim{p.Masked(), n})
		}
	}
	slices.SortStableFunc(out, func(a, b claim) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()), older(a.node, b.node))
	})
	return out
}

func older(a, b inputs.Node) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// shared finds podCIDRs that more than one node has, in whole or in part. In the order of claims, a podCIDR overlaps
// the last one that is not part of a wider one, or nothing.
func (c *cluster) shared() []report.Finding {
	var out []report.Finding
	all := c.claims()
	for i := 0; i < len(all); {
		end := i + 1
		for end < len(all) && all[i].Overlaps(all[end].Prefix) {
			end++
		}
		if nodes := nodesOf(all[i:end]); len(nodes) > 1 {
			out = append(out, c.sharing(all[i:end], nodes))
		}
		i = end
	}
	return out
}

func nodesOf(claims []claim) []inputs.Node {
	var out []inputs.Node
	for _, g := range claims {
		if !slices.ContainsFunc(out, func(n inputs.Node) bool { return n.Name == g.node.Name }) {
			out = append(out, g.node)
		}
	}
	return out
}

// sharing is the finding about claims that are all within the first.
func (c *cluster) sharing(group []claim, nodes []inputs.Node) report.Finding {
	var others []string
	equal := true
	for _, g := range group[1:] {
		equal = equal && g.Prefix == group[0].Prefix
		others = append(others, fmt.Sprintf("%s of node %s", g.Prefix, g.node.Name))
	}
	d := finding(Duplicate, report.Failing, nodes)
	if equal {
		d.Cause = fmt.Sprintf("nodes %s have the same podCIDR %s", report.Some(d.About), group[0].Prefix)
	} else {
		d.Kind = Overlap
		d.Cause = fmt.Sprintf("podCIDR %s of node %s overlaps %s", group[0].Prefix, group[0].node.Name, report.Some(others))
	}
	d.Cause += ": pods of different nodes get the same addresses"
	c.remedyRecreate(&d, nodesOf(redundant(group)))
	return d
}

// redundant are the claims without which none overlap: narrow podCIDRs and those of older Nodes are kept.
func redundant(group []claim) []claim {
	var keep, out []claim
	for _, g := range slices.SortedStableFunc(slices.Values(group), func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.Bits(), a.Bits()), older(a.node, b.node))
	}) {
		if slices.ContainsFunc(keep, func(k claim) bool { return k.Overlaps(g.Prefix) && k.node.Name != g.node.Name }) {
			out = append(out, g)
		} else {
			keep = append(keep, g)
		}
	}
	return out
}

// withOthers finds podCIDRs that overlap a Service CIDR or a node's address.
func (c *cluster) withOthers() []report.Finding {
	var out []report.Finding
	for _, n := range c.having {
		for _, p := range n.PodCIDRs {
			what := c.firstOverlap(p)
			if what == "" {
				continue
			}
			d := finding(Overlap, report.Failing, []inputs.Node{n})
			d.Cause = fmt.Sprintf("podCIDR %s of node %s overlaps %s, which its pods could no longer reach", p, n.Name, what)
			c.remedyRecreate(&d, []inputs.Node{n})
			out = append(out, d)
		}
	}
	return out
}

// rangeOverlaps finds free podCIDRs that overlap something: the next new node may get one.
func (c *cluster) rangeOverlaps() []report.Finding {
	if c.Guessed || c.Allocates == No {
		return nil
	}
	var out []report.Finding
	for _, r := range c.freeOverlaps() {
		d := finding(Overlap, report.Warning, nil)
		d.Evidence = []string{c.source()}
		d.Cause = fmt.Sprintf("cluster CIDR %s overlaps %s: a node with a podCIDR from there could not serve pods", r.Prefix, r.what)
		if r, ok := c.excludeServices(c.nodes); ok {
			d.Remedies = []report.Remedy{r}
		} else {
			d.Notes = append(d.Notes, "kube-controller-manager cannot exclude it from its range")
		}
		out = append(out, d)
	}
	return out
}

// freeOverlaps are, for each cluster CIDR, the first reservation that overlaps one of its free podCIDRs.
func (c *cluster) freeOverlaps() []reserved {
	grids, err := start(c.Ranges, c.LeftOut, c.having)
	if err != nil {
		return nil // outOfRange reports it
	}
	var out []reserved
	for _, g := range grids {
		i := slices.IndexFunc(c.reserved, func(r reserved) bool {
			rest := g.Clone()
			return r.Overlaps(g.Cluster) && rest.MarkUsed(r.Prefix) == nil && rest.Free() < g.Free()
		})
		if i >= 0 {
			out = append(out, reserved{g.Cluster, c.reserved[i].what})
		}
	}
	return out
}

// outOfRange finds Nodes with which the allocator would not start.
func (c *cluster) outOfRange() []report.Finding {
	if c.Guessed || len(c.Ranges) == 0 {
		return nil
	}
	var outside []inputs.Node
	var first error
	for _, n := range c.having {
		if _, err := start(c.Ranges, nil, []inputs.Node{n}); err != nil {
			outside = append(outside, n)
			first = cmp.Or(first, err)
		}
	}
	if len(outside) == 0 {
		return nil
	}
	d := finding(OutOfRange, report.Warning, outside)
	d.Evidence = []string{c.source()}
	d.Cause = fmt.Sprintf("%s podCIDRs that do not come from the cluster CIDR %s (%v): kube-controller-manager will exit at its "+
		"next start, because its allocator does not accept such a Node", c.subject(d.About), clusterCIDRs(c.Ranges), first)
	if len(c.waiting) == 0 { // otherwise it is part of the remedy for the waiting nodes
		c.remedyRange(&d)
	}
	c.remedyRecreate(&d, outside)
	return []report.Finding{d}
}

// wrongFamilies finds nodes whose pods have no family of the Services, and those that lack one of two.
func (c *cluster) wrongFamilies() []report.Finding {
	if len(c.Services) == 0 {
		return nil
	}
	var none, part []inputs.Node
	for _, n := range c.having {
		switch missing := missingFamilies(c.Services, n.PodCIDRs); {
		case missing == len(c.Services):
			none = append(none, n)
		case missing > 0:
			part = append(part, n)
		}
	}
	var out []report.Finding
	for _, found := range []struct {
		nodes []inputs.Node
		text  string
	}{{none, "podCIDRs of a different family than the Services (%s): pods there cannot reach any Service, not even DNS"},
		{part, "podCIDRs of one family only, but Services have two (%s): pods there cannot reach the Services of the other"}} {
		if len(found.nodes) == 0 {
			continue
		}
		d := finding(WrongFamily, report.Warning, found.nodes)
		d.Evidence = []string{"Service CIDR: from " + c.ServicesFrom}
		d.Cause = c.subject(d.About) + " " + fmt.Sprintf(found.text, report.Join(c.Services, ","))
		c.remedyFamily(&d, found.nodes)
		out = append(out, d)
	}
	return out
}

// missingFamilies is how many of the prefixes have a family that others lack.
func missingFamilies(prefixes, others []netip.Prefix) (n int) {
	for _, p := range prefixes {
		if !slices.ContainsFunc(others, func(q netip.Prefix) bool { return sameFamily(p, q) }) {
			n++
		}
	}
	return n
}

func (c *cluster) remedyFamily(d *report.Finding, nodes []inputs.Node) {
	var clusters []netip.Prefix
	for _, r := range c.Ranges {
		clusters = append(clusters, r.Cluster)
	}
	if missingFamilies(c.Services, clusters) == 0 {
		c.remedyRecreate(d, nodes)
		return
	}
	first := "kube-controller-manager a --cluster-cidr with one CIDR of each family"
	if c.NodeIPAM != nil {
		first = configuredRanges + " of " + controllerName + " a CIDR of each family"
	}
	d.Notes = append(d.Notes, "The cluster CIDR "+cmp.Or(clusterCIDRs(c.Ranges), "none")+" lacks the family as well: give "+first+" first")
}
