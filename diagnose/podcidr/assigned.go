package podcidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// claim is one podCIDR and the node that has it.
type claim struct {
	netip.Prefix
	node inputs.Node
}

// claims are all podCIDRs, the wider first among those that overlap, the older
// Node first among equals.
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

// shared finds podCIDRs that more than one node has, whole or in part. Sorted as
// they are, a podCIDR overlaps the last that is no wider one's part, or nothing.
func (c *cluster) shared() []Diagnosis {
	var out []Diagnosis
	all := c.claims()
	for i := 0; i < len(all); {
		end := i + 1
		for end < len(all) && all[i].Overlaps(all[end].Prefix) {
			end++
		}
		if d, found := c.sharing(all[i:end]); found {
			out = append(out, d)
		}
		i = end
	}
	return out
}

// sharing tells of claims that all lie in the first.
func (c *cluster) sharing(group []claim) (Diagnosis, bool) {
	var nodes []inputs.Node
	equal := true
	for _, g := range group {
		equal = equal && g.Prefix == group[0].Prefix
		if !slices.ContainsFunc(nodes, func(n inputs.Node) bool { return n.Name == g.node.Name }) {
			nodes = append(nodes, g.node)
		}
	}
	if len(nodes) < 2 {
		return Diagnosis{}, false
	}
	d := Diagnosis{Kind: Duplicate, Nodes: namesOf(nodes)}
	if equal {
		d.Cause = fmt.Sprintf("nodes %s have the same podCIDR %s", some(d.Nodes), group[0].Prefix)
	} else {
		d.Kind = Overlap
		var others []string
		for _, g := range group[1:] {
			others = append(others, fmt.Sprintf("%s of node %s", g.Prefix, g.node.Name))
		}
		d.Cause = fmt.Sprintf("podCIDR %s of node %s overlaps %s", group[0].Prefix, group[0].node.Name, some(others))
	}
	d.Cause += ": pods of different nodes get the same addresses"
	c.remedyShared(&d, nodes, equal)
	return d, true
}

// remedyShared keeps the oldest of nodes with the same podCIDR; where one is
// wider than the others, it is the one that goes.
func (c *cluster) remedyShared(d *Diagnosis, nodes []inputs.Node, equal bool) {
	nodes = slices.Clone(nodes)
	if !equal {
		wide := nodes[0]
		if rest := without(nodes, wide.Name); !overlapping(rest) {
			c.remedyRecreate(d, []inputs.Node{wide})
			return
		}
	}
	slices.SortStableFunc(nodes, older)
	var keep, again []inputs.Node
	for _, n := range nodes {
		if overlapping(append(slices.Clone(keep), n)) {
			again = append(again, n)
		} else {
			keep = append(keep, n)
		}
	}
	c.remedyRecreate(d, again)
}

func without(nodes []inputs.Node, name string) []inputs.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n inputs.Node) bool { return n.Name == name })
}

// overlapping reports whether two of the nodes share addresses.
func overlapping(nodes []inputs.Node) bool {
	c := cluster{having: nodes}
	all := c.claims()
	for i := 1; i < len(all); i++ {
		if all[i-1].Overlaps(all[i].Prefix) && all[i-1].node.Name != all[i].node.Name {
			return true
		}
	}
	return false
}

// withOthers finds podCIDRs that overlap a Service CIDR, an address of a node or
// the network of one.
func (c *cluster) withOthers() []Diagnosis {
	var out []Diagnosis
	for _, n := range c.having {
		for _, p := range n.PodCIDRs {
			what := c.clash(p)
			if what == "" {
				continue
			}
			d := Diagnosis{Kind: Overlap, Nodes: []string{n.Name},
				Cause: fmt.Sprintf("podCIDR %s of node %s overlaps %s, which its pods could no longer reach", p, n.Name, what)}
			c.remedyRecreate(&d, []inputs.Node{n})
			out = append(out, d)
		}
	}
	return out
}

// rangeOverlaps finds free podCIDRs that overlap something: the next new node may
// get one.
func (c *cluster) rangeOverlaps() []Diagnosis {
	if c.Guessed || c.Allocates == No {
		return nil
	}
	var out []Diagnosis
	grids, err := start(c.Ranges, c.LeftOut, c.having)
	if err != nil {
		return nil // told by outOfRange
	}
	for _, g := range grids {
		p, what := c.unclean(g)
		if what == "" {
			continue
		}
		d := Diagnosis{Kind: Overlap, Warning: true, Evidence: []string{c.source()},
			Cause: fmt.Sprintf("cluster CIDR %s overlaps %s: a node with podCIDR %s could not serve pods", g.Cluster, what, p)}
		changed, better := c.leaveOutServices()
		if better && changed.servesInAnyOrder(c.Ranges, c.nodes, len(c.waiting)) == nil {
			d.Remedies = append(d.Remedies, changed.tellServices())
		} else {
			d.NoHelp = append(d.NoHelp, "kube-controller-manager cannot exclude it from its range")
		}
		out = append(out, d)
	}
	return out
}

// outOfRange finds Nodes that the allocator would not start with.
func (c *cluster) outOfRange() []Diagnosis {
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
	d := Diagnosis{Kind: OutOfRange, Nodes: namesOf(outside), Warning: true, Evidence: []string{c.source()}}
	d.Cause = fmt.Sprintf("%s podCIDRs that do not come from the cluster CIDR %s (%v): kube-controller-manager will exit at its next start, because its allocator does not accept such a Node", c.subject(d.Nodes),
		clusterCIDRs(c.Ranges), first)
	if len(c.waiting) == 0 { // else it is part of what those who wait need
		c.remedyRange(&d)
	}
	c.remedyRecreate(&d, outside)
	return []Diagnosis{d}
}

// families finds nodes whose pods have no family that the Services have, and
// those that lack one of two.
func (c *cluster) families() []Diagnosis {
	if len(c.Services) == 0 {
		return nil
	}
	var none, part []inputs.Node
	for _, n := range c.having {
		missing := 0
		for _, s := range c.Services {
			if !slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == s.Addr().Is4() }) {
				missing++
			}
		}
		switch {
		case missing == len(c.Services):
			none = append(none, n)
		case missing > 0:
			part = append(part, n)
		}
	}
	var out []Diagnosis
	for _, found := range []struct {
		nodes []inputs.Node
		text  string
	}{{none, "podCIDRs of another family than the Services (%s): pods there cannot reach any Service, not even DNS"},
		{part, "podCIDRs of one family only, but Services have two (%s): pods there cannot reach the Services of the other"}} {
		if len(found.nodes) == 0 {
			continue
		}
		d := Diagnosis{Kind: WrongFamily, Nodes: namesOf(found.nodes), Warning: true,
			Evidence: []string{"Service CIDR: from " + c.ServicesFrom}}
		d.Cause = c.subject(d.Nodes) + " " + fmt.Sprintf(found.text, join(c.Services))
		if c.rangesServe() {
			c.remedyRecreate(&d, found.nodes)
		} else {
			d.NoHelp = append(d.NoHelp, "The cluster CIDR "+orNone(clusterCIDRs(c.Ranges))+" lacks the family as well: give "+
				c.wantsFamilies()+" first")
		}
		out = append(out, d)
	}
	return out
}

// rangesServe reports whether the cluster CIDRs have every family of the Services.
func (c *cluster) rangesServe() bool {
	return !slices.ContainsFunc(c.Services, func(s netip.Prefix) bool {
		return !slices.ContainsFunc(c.Ranges, func(r Range) bool { return r.Cluster.Addr().Is4() == s.Addr().Is4() })
	})
}

// wantsFamilies is who is to be given a range of each family.
func (c *cluster) wantsFamilies() string {
	if c.NodeIPAM != nil {
		return configuredRanges + " of " + controllerName + " a CIDR of each family"
	}
	return "kube-controller-manager a --cluster-cidr with one CIDR of each family"
}
