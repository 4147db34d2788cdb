package podcidr

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// assignTimeout is how long an allocator may take for a new Node. kube-controller-manager takes a second.
const assignTimeout = 30 * time.Second

// Diagnose returns the worst finding about the named node's podCIDR, or nil. now distinguishes new Nodes from old ones.
func Diagnose(name string, nodes map[string]inputs.Node, f Facts, now time.Time) *report.Finding {
	c := newCluster(nodes, f, now)
	c.onlyNode = name
	var found *report.Finding
	for _, d := range c.findAll() {
		if slices.Contains(d.About, name) && (found == nil || found.Severity < d.Severity) {
			found = &d
		}
	}
	return found
}

// FindAll returns all findings about a cluster's podCIDRs.
func FindAll(nodes map[string]inputs.Node, f Facts, now time.Time) []report.Finding {
	return newCluster(nodes, f, now).findAll()
}

func (c *cluster) findAll() []report.Finding {
	out := slices.Concat(c.empty(), c.shared(), c.withOthers())
	if c.NodeIPAM != nil {
		out = slices.Concat(out, c.twoAllocators(), c.outsideConfigured())
	} else {
		out = slices.Concat(out, c.rangeOverlaps(), c.outOfRange())
	}
	out = append(out, c.wrongFamilies()...)
	for i := range out {
		out[i].Evidence = append(out[i].Evidence, c.Unread...)
	}
	return out
}

// cluster is the input of the checks.
type cluster struct {
	Facts
	nodes    []inputs.Node // by name
	having   []inputs.Node
	waiting  []inputs.Node
	now      time.Time
	reserved []reserved
	// onlyNode is the node that the messages are about; empty: all nodes.
	onlyNode string
}

func newCluster(nodes map[string]inputs.Node, f Facts, now time.Time) *cluster {
	c := &cluster{Facts: f, nodes: sorted(nodes), now: now}
	for _, n := range c.nodes {
		if len(n.PodCIDRs) > 0 {
			c.having = append(c.having, n)
		} else {
			c.waiting = append(c.waiting, n)
		}
	}
	c.reserved = c.reservations()
	if len(f.Ranges) == 0 && f.Allocates != No {
		if c.Ranges = inferRanges(c.having); c.Ranges != nil {
			c.Guessed = true
			c.RangesFrom = "the shape of the Nodes' podCIDRs, so they may be wider"
		}
	}
	return c
}

// inferRanges returns the smallest ranges that contain all podCIDRs, with the most common mask; nil if the nodes do not
// have the same families in the same order.
func inferRanges(having []inputs.Node) []Range {
	if len(having) == 0 {
		return nil
	}
	out := make([]Range, len(having[0].PodCIDRs))
	for i := range out {
		masks := map[int]int{}
		for _, n := range having {
			if len(n.PodCIDRs) != len(out) || n.PodCIDRs[i].Addr().Is4() != having[0].PodCIDRs[i].Addr().Is4() {
				return nil
			}
			p := n.PodCIDRs[i]
			masks[p.Bits()]++
			out[i].Cluster = cover(out[i].Cluster, p)
		}
		for _, bits := range slices.Sorted(maps.Keys(masks)) {
			if masks[bits] > masks[out[i].Mask] {
				out[i].Mask = bits
			}
		}
		if _, err := newGrid(out[i]); err != nil {
			return nil
		}
	}
	return out
}

// cover is the smallest prefix that contains both; a may be invalid.
func cover(a, b netip.Prefix) netip.Prefix {
	if !a.IsValid() {
		return b.Masked()
	}
	bits := min(a.Bits(), b.Bits())
	for netip.PrefixFrom(a.Addr(), bits).Masked() != netip.PrefixFrom(b.Addr(), bits).Masked() {
		bits--
	}
	return netip.PrefixFrom(a.Addr(), bits).Masked()
}

// finding is a new finding about nodes.
func finding(kind string, severity report.Severity, nodes []inputs.Node) report.Finding {
	return report.Finding{Check: Check, Kind: kind, Severity: severity, About: namesOf(nodes)}
}

// source is the evidence for where cluster CIDR and mask come from.
func (c *cluster) source() string {
	if len(c.Ranges) == 0 {
		return "cluster CIDR and mask: unknown"
	}
	return "cluster CIDR and mask: from " + c.RangesFrom
}

// allocator is what assigns podCIDRs here.
func (c *cluster) allocator() string {
	if c.NodeIPAM != nil {
		return controllerName
	}
	return "kube-controller-manager"
}

func sorted(nodes map[string]inputs.Node) []inputs.Node {
	return slices.SortedFunc(maps.Values(nodes), func(a, b inputs.Node) int { return strings.Compare(a.Name, b.Name) })
}

// subject begins a message about nodes: "node a has", "3 nodes (a, b, c) have". onlyNode is named alone.
func (c *cluster) subject(list []string) string {
	if slices.Contains(list, c.onlyNode) {
		return "node " + c.onlyNode + " has"
	}
	return report.Count(len(list), "node "+list[0]+" has", "%d nodes ("+report.Some(list)+") have")
}
