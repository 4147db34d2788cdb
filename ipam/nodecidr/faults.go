package nodecidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// faults are sorted by their texts.
func faults(f Facts) []Fault {
	var out []Fault
	for _, n := range f.Nodes {
		for _, p := range n.PodCIDRs {
			out = append(out, misplaced(f, n, p)...)
		}
		if len(n.PodCIDRs) > 0 {
			out = append(out, incomplete(f, n)...)
		}
	}
	out = append(out, shared(f.Nodes)...)
	slices.SortFunc(out, func(a, b Fault) int { return strings.Compare(a.Text, b.Text) })
	return out
}

// misplaced checks one podCIDR against ranges and Service CIDRs.
func misplaced(f Facts, n Node, p netip.Prefix) (out []Fault) {
	inside := false
	for _, r := range f.Ranges {
		inside = inside || r.Cluster.Overlaps(p) && r.Cluster.Bits() <= p.Bits()
	}
	if !inside {
		out = append(out, Fault{Outside, n.Name, "", fmt.Sprintf("node %s has podCIDR %s, which is in no CIDR of nodeIPAM.clusterCIDRs. The Node keeps it", n.Name, p)})
	}
	for _, s := range f.Services {
		if s.Overlaps(p) {
			out = append(out, Fault{Service, n.Name, "", fmt.Sprintf("node %s has podCIDR %s, which overlaps the Service "+
				"CIDR %s: delete the Node and let it register again", n.Name, p, s)})
		}
	}
	return out
}

// incomplete finds families that a Node has no podCIDR of.
func incomplete(f Facts, n Node) (out []Fault) {
	for _, want := range families(f.Ranges) {
		if !slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return netaddr.Family(p.Addr()) == want }) {
			out = append(out, Fault{Incomplete, n.Name, "", fmt.Sprintf("node %s has no IPv%d podCIDR, and podCIDRs of a Node cannot be changed: delete the Node and let it register again", n.Name, want)})
		}
	}
	return out
}

// shared finds podCIDRs of different Nodes that overlap. Prefixes overlap only if one contains the other, so those that
// contain the present one are a stack.
func shared(nodes []Node) (out []Fault) {
	type held struct {
		podCIDR netip.Prefix
		node    string
	}
	var all []held
	for _, n := range nodes {
		for _, p := range n.PodCIDRs {
			all = append(all, held{p.Masked(), n.Name})
		}
	}
	slices.SortFunc(all, func(a, b held) int {
		return cmp.Or(a.podCIDR.Addr().Compare(b.podCIDR.Addr()), a.podCIDR.Bits()-b.podCIDR.Bits(),
			strings.Compare(a.node, b.node))
	})
	var stack []held
	for _, h := range all {
		for len(stack) > 0 && !stack[len(stack)-1].podCIDR.Overlaps(h.podCIDR) {
			stack = stack[:len(stack)-1]
		}
		if n := len(stack); n > 0 && stack[n-1].node != h.node {
			other := stack[n-1]
			out = append(out, Fault{Shared, other.node, h.node, sharedText(other.node, other.podCIDR, h.node, h.podCIDR)})
		}
		stack = append(stack, h)
	}
	return out
}

func sharedText(a string, p netip.Prefix, b string, q netip.Prefix) string {
	what := fmt.Sprintf("nodes %s and %s have the same podCIDR %s", a, b, p)
	if p != q {
		what = fmt.Sprintf("the podCIDRs of nodes %s (%s) and %s (%s) overlap", a, p, b, q)
	}
	return what + ": pods of both nodes would get the same addresses. Delete one of the Nodes and let it register again"
}
