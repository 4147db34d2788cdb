package podcidr

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// maxPodsMask is the longest IPv4 node mask that is proposed: 13 pods.
const maxPodsMask = 28

// serves tries ranges: the allocator starts with them and the nodes, waiting nodes get podCIDRs, and these overlap
// nothing.
func (c *cluster) serves(ranges []Range, nodes []inputs.Node) error {
	assign := c.assign
	if c.NodeIPAM != nil {
		assign = c.assignConfigured
	}
	assigned, err := assign(ranges, nodes)
	if err != nil {
		return err
	}
	for _, p := range assigned {
		if what := c.firstOverlap(p); what != "" {
			return fmt.Errorf("the podCIDR %s contains or overlaps %s", p, what)
		}
	}
	return nil
}

// assign returns the podCIDRs that kube-controller-manager assigns to waiting nodes after its start.
func (c *cluster) assign(ranges []Range, nodes []inputs.Node) ([]netip.Prefix, error) {
	grids, err := start(ranges, c.LeftOut, nodes)
	if err != nil {
		return nil, err
	}
	need := 0
	for _, n := range nodes {
		if len(n.PodCIDRs) == 0 {
			need++
		}
	}
	var out []netip.Prefix
	for _, g := range grids {
		if g.Free() < uint64(need) {
			return nil, fmt.Errorf("%s cut into /%d leaves %d free", g.Cluster, g.Mask, g.Free())
		}
		out = append(out, g.Next(need)...)
	}
	return out, nil
}

// assignConfigured returns the podCIDRs that fairlead-controller assigns to waiting nodes: it runs the same code.
func (c *cluster) assignConfigured(ranges []Range, nodes []inputs.Node) ([]netip.Prefix, error) {
	f := nodecidr.Facts{Ranges: ranges, Services: c.Services}
	for _, n := range nodes {
		f.Nodes = append(f.Nodes, nodecidr.Node{Name: n.Name, UID: n.Name, PodCIDRs: n.PodCIDRs, Addresses: n.Addresses,
			Created: n.Created})
	}
	p, err := nodecidr.Make(f)
	if err != nil {
		return nil, err
	}
	if len(p.Waiting) > 0 {
		return nil, fmt.Errorf("%s would still wait", report.Count(len(p.Waiting), "1 node", "%d nodes"))
	}
	var out []netip.Prefix
	for _, a := range p.Assignments {
		out = append(out, a.PodCIDRs...)
	}
	return out, nil
}

// reserved is an address or network that no podCIDR may overlap.
type reserved struct {
	netip.Prefix
	what string
}

// reservations are the Service CIDRs and the nodes' addresses.
func (c *cluster) reservations() []reserved {
	var out []reserved
	for _, s := range c.Services {
		out = append(out, reserved{s, "the Service CIDR " + s.String()})
	}
	for _, n := range c.nodes {
		for _, a := range n.Addresses {
			out = append(out, reserved{netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf("%s, the address of node %s", a, n.Name)})
		}
	}
	return out
}

// firstOverlap names the first reservation that p overlaps; empty: no known one.
func (c *cluster) firstOverlap(p netip.Prefix) string {
	for _, r := range c.reserved {
		if p.Overlaps(r.Prefix) {
			return r.what
		}
	}
	return ""
}

// widen shortens each cluster CIDR as far as needed to serve all nodes. The error says what prevents that.
func (c *cluster) widen(ranges []Range, nodes []inputs.Node) ([]Range, error) {
	out := slices.Clone(ranges)
	for i := range out {
		family := ofFamily(nodes, out[i])
		for {
			err := c.serves(out[i:i+1], family)
			if err == nil {
				break
			}
			if out[i], err = c.wider(out[i], err); err != nil {
				return nil, err
			}
		}
	}
	return out, c.serves(out, nodes)
}

// wider is r with a cluster CIDR twice as wide. why is what r lacks.
func (c *cluster) wider(r Range, why error) (Range, error) {
	w := Range{Cluster: netip.PrefixFrom(r.Cluster.Addr(), r.Cluster.Bits()-1).Masked(), Mask: r.Mask}
	switch what := c.firstOverlap(w.Cluster); {
	case !w.Cluster.IsValid() || w.Cluster.Bits() == 0:
		return r, why
	case w.Mask-w.Cluster.Bits() > MaxMaskDiff:
		return r, fmt.Errorf("%w, and a /%d cannot be cut from a cluster CIDR wider than %s (at most %d bits)",
			why, w.Mask, r.Cluster, MaxMaskDiff)
	case what != "":
		return r, fmt.Errorf("%w, and %s overlaps %s", why, w.Cluster, what)
	case !private(w.Cluster):
		return r, fmt.Errorf("%w, and %s is not private address space (RFC 1918, 4193, 6598)", why, w.Cluster)
	}
	return w, nil
}

// private reports whether all of p is for private use: RFC 1918, RFC 6598 (shared by carriers) and RFC 4193.
func private(p netip.Prefix) bool {
	for _, s := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"} {
		if all := netip.MustParsePrefix(s); all.Bits() <= p.Bits() && all.Overlaps(p) {
			return true
		}
	}
	return false
}

// longerMasks lengthens the node mask of each family as far as needed to serve all nodes. full are the ranges of a
// family for which no mask suffices.
func (c *cluster) longerMasks(nodes []inputs.Node) (out, full []Range) {
	for _, family := range byFamily(c.Ranges) {
		longer := slices.Clone(family)
		for c.serves(longer, ofFamily(nodes, family[0])) != nil {
			if longer[0].Mask >= maxMask(family[0]) {
				return nil, family
			}
			for i := range longer {
				longer[i].Mask++
			}
		}
		out = append(out, longer...)
	}
	return out, nil
}

// maxMask is the longest node mask that is proposed for a range.
func maxMask(r Range) int {
	if r.Cluster.Addr().Is4() {
		return min(r.Cluster.Bits()+MaxMaskDiff, maxPodsMask)
	}
	return min(r.Cluster.Bits()+MaxMaskDiff, 112)
}

// byFamily are the ranges of each family, in the order in which they appear.
func byFamily(ranges []Range) [][]Range {
	var out [][]Range
	for _, r := range ranges {
		i := slices.IndexFunc(out, func(f []Range) bool { return sameFamily(f[0].Cluster, r.Cluster) })
		if i < 0 {
			out = append(out, []Range{r})
		} else {
			out[i] = append(out[i], r)
		}
	}
	return out
}

// ofFamily are the nodes with only their podCIDRs of the family of r. Those without any are omitted.
func ofFamily(nodes []inputs.Node, r Range) []inputs.Node {
	var out []inputs.Node
	for _, n := range nodes {
		all := n.PodCIDRs
		n.PodCIDRs = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !sameFamily(p, r.Cluster) })
		if len(all) == 0 || len(n.PodCIDRs) > 0 {
			out = append(out, n)
		}
	}
	return out
}

func sameFamily(a, b netip.Prefix) bool { return a.Addr().Is4() == b.Addr().Is4() }

// candidates are ranges to start kube-controller-manager's allocator with, best first: the configured ones, else one
// around the existing podCIDRs, else some private ones (RFC 1918, RFC 4193), in the families of the Services.
func (c *cluster) candidates() [][]Range {
	if len(c.Ranges) > 0 {
		out := [][]Range{c.Ranges}
		if wider, err := c.widen(c.Ranges, c.nodes); err == nil {
			out = append(out, wider)
		}
		return out
	}
	if g := inferRanges(c.having); g != nil { // with room to double
		if wider, err := c.widen(g, append(make([]inputs.Node, len(c.nodes)), c.nodes...)); err == nil {
			return [][]Range{wider}
		}
	}
	six := Range{Cluster: netip.MustParsePrefix("fd00:10:244::/48"), Mask: 64}
	v4 := slices.IndexFunc(c.Services, func(p netip.Prefix) bool { return p.Addr().Is4() })
	v6 := slices.IndexFunc(c.Services, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if v6 >= 0 && v4 < 0 {
		return [][]Range{{six}}
	}
	var out [][]Range
	for _, p := range []string{"10.244.0.0/16", "10.128.0.0/14", "172.20.0.0/16", "192.168.0.0/16"} {
		ranges := []Range{{Cluster: netip.MustParsePrefix(p), Mask: 24}}
		if v6 >= 0 {
			ranges = append(ranges, six)
		}
		if v6 >= 0 && v6 < v4 {
			slices.Reverse(ranges)
		}
		out = append(out, ranges)
	}
	return out
}

// addRanges returns additional ranges for nodeIPAM.clusterCIDRs, one for each family that needs it, such that all nodes
// are served.
func (c *cluster) addRanges(nodes []inputs.Node) ([]Range, error) {
	var added []Range
	for _, family := range byFamily(c.Ranges) {
		if c.serves(family, nodes) == nil {
			continue
		}
		candidates := c.additions(family[0])
		i := slices.IndexFunc(candidates, func(r Range) bool {
			return c.serves(append(slices.Clone(family), r), nodes) == nil
		})
		if i < 0 {
			return nil, fmt.Errorf("none near %s is private, large enough and free of other networks", report.Join(family, " and "))
		}
		added = append(added, candidates[i])
	}
	return added, c.serves(slices.Concat(c.Ranges, added), nodes)
}

// additions are CIDRs that may be added to the family of first, the nearest and smallest first: the other half of the
// CIDR that is twice as wide as first, four times, and so on, then ranges of private address space.
func (c *cluster) additions(first Range) []Range {
	var out []Range
	add := func(p netip.Prefix) {
		r := Range{Cluster: p, Mask: first.Mask}
		taken := slices.ContainsFunc(c.Ranges, func(q Range) bool { return q.Cluster.Overlaps(p) }) ||
			slices.ContainsFunc(c.claims(), func(q claim) bool { return q.Overlaps(p) })
		if r.Check() == nil && r.Mask-p.Bits() <= MaxMaskDiff && private(p) && c.firstOverlap(p) == "" && !taken {
			out = append(out, r)
		}
	}
	for bits := first.Cluster.Bits(); bits > 8; bits-- {
		add(otherHalf(netip.PrefixFrom(first.Cluster.Addr(), bits).Masked()))
	}
	for _, s := range []string{"10.244.0.0/16", "10.128.0.0/14", "172.20.0.0/16", "192.168.0.0/16", "fd00:10:244::/48"} {
		if p := netip.MustParsePrefix(s); sameFamily(p, first.Cluster) {
			add(p)
		}
	}
	return out
}

// otherHalf is the prefix that with p forms one twice as wide.
func otherHalf(p netip.Prefix) netip.Prefix {
	b, last := p.Addr().AsSlice(), p.Bits()-1
	b[last/8] ^= 1 << (7 - last%8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}
