package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// This file is about a cluster whose podCIDRs come from fairlead-controller (nodeIPAM.enableNodeIPAM). What a remedy
// would do is tried on the allocator itself: package nodecidr is what the controller runs.

// NodeIPAM is what fairlead-controller says of the podCIDRs that it gives.
type NodeIPAM struct {
	// Stopped is why it gives none: somebody else gives podCIDRs, too. Empty: it gives some.
	Stopped string
}

// controllerName is who gives podCIDRs here, in messages.
const controllerName = "fairlead-controller"

// configuredRanges names the ranges in messages.
const configuredRanges = "nodeIPAM.clusterCIDRs"

// causeNodeIPAM says why nodes wait for fairlead-controller.
func (c *cluster) causeNodeIPAM(d *Diagnosis) {
	d.Evidence = []string{c.source()}
	switch {
	case c.Runs == No:
		d.Kind = NotRunning
		d.Cause += controllerName + ", which assigns them (nodeIPAM.enableNodeIPAM), is not running: " + c.RunsNot
		d.NoHelp = append(d.NoHelp, "Start it; the reason why it stopped is in its log. Leave the allocator of kube-controller-manager disabled")
	case c.NodeIPAM.Stopped != "":
		d.Kind = TwoAllocators
		d.Cause += c.NodeIPAM.Stopped
		d.Remedies = append(d.Remedies, c.oneAllocator())
	default:
		c.causeInConfigured(d)
	}
}

// causeInConfigured does the arithmetic of the configured ranges.
func (c *cluster) causeInConfigured(d *Diagnosis) {
	full := c.fullFamilies()
	if len(full) == 0 {
		d.Cause += fmt.Sprintf("%d of %d nodes have one, and there is room for all. %s has not assigned it", len(c.having), len(c.nodes),
			controllerName)
		d.NoHelp = append(d.NoHelp, "It takes a second or two. If it takes longer, the log of "+controllerName+" has the reason, and kubectl get podcidrranges shows the ranges")
		return
	}
	d.Kind = Exhausted
	var sums []string
	for _, ranges := range full {
		sums = append(sums, fmt.Sprintf("%s %s hold %s, and %d exist (%s, %s)", configuredRanges, joinRanges(ranges),
			count(int(blocksOf(ranges)), "1 node", "%d nodes"), len(c.nodes), c.haveOne(),
			count(len(c.waiting), "1 waits", "%d wait")))
	}
	d.Cause += strings.Join(sums, ", and ")
	if added, err := c.addRanges(c.nodes); err != nil {
		d.NoHelp = append(d.NoHelp, "No suitable CIDR to add was found: "+err.Error())
	} else {
		d.Remedies = append(d.Remedies, c.configure("", added))
	}
	c.remedyConfiguredMask(d)
	d.NoHelp = append(d.NoHelp, "The Node of a machine that will not come back keeps its podCIDR until it is deleted (kubectl delete node)")
}

func joinRanges(ranges []Range) string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, " and ")
}

func blocksOf(ranges []Range) (n uint64) {
	for _, r := range ranges {
		n += r.Blocks()
	}
	return n
}

// plan is what fairlead-controller would do with these ranges and Nodes.
func (c *cluster) plan(ranges []Range, nodes []inputs.Node) (nodecidr.Plan, error) {
	f := nodecidr.Facts{Ranges: ranges, Services: c.Services}
	for _, n := range nodes {
		f.Nodes = append(f.Nodes, nodecidr.Node{Name: n.Name, UID: n.Name, PodCIDRs: n.PodCIDRs, Addresses: n.Addresses,
			Created: n.Created})
	}
	return nodecidr.Make(f)
}

// given tries ranges: every Node gets a podCIDR of each family that touches nothing.
func (c *cluster) given(ranges []Range, nodes []inputs.Node) error {
	p, err := c.plan(ranges, nodes)
	if err != nil {
		return err
	}
	if len(p.Waiting) > 0 {
		return fmt.Errorf("%s would still wait", count(len(p.Waiting), "1 node", "%d nodes"))
	}
	for _, g := range p.Assignments {
		for _, block := range g.PodCIDRs {
			if what := c.clash(block); what != "" {
				return fmt.Errorf("the podCIDR %s holds or overlaps %s", block, what)
			}
		}
	}
	return nil
}

// byFamily are the ranges of each family, in the order in which they appear.
func byFamily(ranges []Range) [][]Range {
	var out [][]Range
	for _, r := range ranges {
		i := slices.IndexFunc(out, func(f []Range) bool { return f[0].Cluster.Addr().Is4() == r.Cluster.Addr().Is4() })
		if i < 0 {
			out = append(out, []Range{r})
		} else {
			out[i] = append(out[i], r)
		}
	}
	return out
}

// fullFamilies are the families in which not all who wait can be served.
func (c *cluster) fullFamilies() [][]Range {
	var out [][]Range
	for _, ranges := range byFamily(c.Ranges) {
		if p, err := c.plan(ranges, c.nodes); err == nil && len(p.Waiting) > 0 {
			out = append(out, ranges)
		}
	}
	return out
}

// addRanges are the ranges with one more in each family that needs it, so that all of the Nodes are served.
func (c *cluster) addRanges(nodes []inputs.Node) ([]Range, error) {
	out := slices.Clone(c.Ranges)
	for _, family := range byFamily(c.Ranges) {
		if c.given(family, nodes) == nil {
			continue
		}
		added := false
		for _, more := range c.additions(family) {
			if c.given(append(slices.Clone(family), more), nodes) == nil {
				out, added = append(out, more), true
				break
			}
		}
		if !added {
			return nil, fmt.Errorf("none near %s is private, large enough and free of other networks", joinRanges(family))
		}
	}
	return out, c.given(out, nodes)
}

// additions are CIDRs that may be added to a family, the nearest and smallest first: the other half of what is twice
// as wide as its first range, four times, and so on, then the beginnings of private space.
func (c *cluster) additions(family []Range) []Range {
	first := family[0]
	var out []Range
	add := func(p netip.Prefix) {
		r := Range{Cluster: p, Mask: first.Mask}
		taken := slices.ContainsFunc(c.Ranges, func(q Range) bool { return q.Cluster.Overlaps(p) }) ||
			slices.ContainsFunc(c.claims(), func(q claim) bool { return q.Overlaps(p) })
		if r.Check() == nil && r.Mask-p.Bits() <= MaxMaskDiff && private(p) && c.clash(p) == "" && !taken {
			out = append(out, r)
		}
	}
	for bits := first.Cluster.Bits(); bits > 8; bits-- {
		add(otherHalf(netip.PrefixFrom(first.Cluster.Addr(), bits).Masked()))
	}
	for _, s := range []string{"10.244.0.0/16", "10.128.0.0/14", "172.20.0.0/16", "192.168.0.0/16", "fd00:10:244::/48"} {
		if p := netip.MustParsePrefix(s); p.Addr().Is4() == first.Cluster.Addr().Is4() {
			add(p)
		}
	}
	return out
}

// otherHalf is the prefix that makes one twice as wide together with p.
func otherHalf(p netip.Prefix) netip.Prefix {
	b, last := p.Addr().AsSlice(), p.Bits()-1
	b[last/8] ^= 1 << (7 - last%8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

// configure is a remedy by other ranges in the controller's config; then is what follows.
func (c *cluster) configure(then string, ranges []Range) Remedy {
	var added []string
	for _, r := range ranges {
		if !slices.Contains(c.Ranges, r) {
			added = append(added, fmt.Sprintf("%s (%s)", r.Cluster, capacity([]Range{r})))
		}
	}
	r := Remedy{Text: fmt.Sprintf("Add %s to %s of %s and restart it%s", strings.Join(added, " and "), configuredRanges,
		controllerName, then), Ranges: ranges, Commands: configCommands(ranges)}
	r.Beware = append(r.Beware, "kube-proxy's clusterCIDR and other configuration with the cluster CIDR, such as firewalls, must be changed as well")
	if len(c.Services) == 0 {
		r.Beware = append(r.Beware, "The Service CIDR could not be read: make sure that no range overlaps it")
	}
	if len(c.Underlay) == 0 {
		r.Beware = append(r.Beware, "No range may overlap the nodes' own network: their addresses were checked, but their subnets are unknown")
	}
	return r
}

// configCommands are the way to change the keys of the controller's config file.
func configCommands(ranges []Range) []string {
	out := []string{"# in the config file of " + controllerName + ", which must then be restarted:"}
	for _, line := range configLines(ranges) {
		out = append(out, "#   "+line)
	}
	return out
}

func configLines(ranges []Range) []string {
	out := []string{"nodeIPAM:", "  enableNodeIPAM: true",
		"  clusterCIDRs: [" + strings.ReplaceAll(clusterCIDRs(ranges), ",", ", ") + "]"}
	for _, family := range byFamily(ranges) {
		if r := family[0]; r.Mask != defaultMask(r.Cluster) {
			out = append(out, fmt.Sprintf("  %s: %d", maskKey(r), r.Mask))
		}
	}
	return out
}

func maskKey(r Range) string {
	if r.Cluster.Addr().Is4() {
		return "nodeCIDRMaskSizeIPv4"
	}
	return "nodeCIDRMaskSizeIPv6"
}

// remedyConfiguredMask looks for the shortest longer mask of each family that serves all who wait, and says so when
// there is none: it is what many try first.
func (c *cluster) remedyConfiguredMask(d *Diagnosis) {
	masks := slices.Clone(c.Ranges)
	var keys []string
	for _, family := range c.fullFamilies() {
		mask, most := family[0].Mask, mostMask(family[0])
		longer := func() []Range {
			out := slices.Clone(family)
			for i := range out {
				out[i].Mask = mask
			}
			return out
		}
		for mask <= most && c.given(longer(), c.nodes) != nil {
			mask++
		}
		if mask > most {
			d.NoHelp = append(d.NoHelp, "A longer node mask does not help: the Nodes' podCIDRs fill the range")
			return
		}
		for i := range masks {
			if slices.Contains(family, masks[i]) {
				masks[i].Mask = mask
			}
		}
		keys = append(keys, fmt.Sprintf("nodeIPAM.%s to %d", maskKey(family[0]), mask))
	}
	if c.given(masks, c.nodes) != nil {
		return
	}
	d.Remedies = append(d.Remedies, Remedy{Text: fmt.Sprintf("Lengthen the node mask for new nodes, %s (%s), and restart %s",
		strings.Join(keys, " and "), roomFor(masks), controllerName), Ranges: masks, Commands: configCommands(masks),
		Beware: []string{"Existing nodes keep their podCIDR"}})
}

// oneAllocator leaves fairlead-controller the only one.
func (c *cluster) oneAllocator() Remedy {
	return Remedy{Text: "Run kube-controller-manager with --allocate-node-cidrs=false, then restart " + controllerName,
		Commands: append(c.setFlags("--allocate-node-cidrs=false"), "# then restart "+controllerName)}
}

// recreateConfigured tells how fairlead-controller gives nodes other podCIDRs.
func (c *cluster) recreateConfigured(d *Diagnosis, nodes []inputs.Node) {
	nodes = widestFirst(nodes)
	after := slices.Clone(c.nodes)
	for i := range after {
		if slices.ContainsFunc(nodes, func(n inputs.Node) bool { return n.Name == after[i].Name }) {
			after[i].PodCIDRs = nil
		}
	}
	r := Remedy{}
	if c.given(c.Ranges, after) != nil {
		added, err := c.addRanges(after)
		if err != nil {
			d.NoHelp = append(d.NoHelp, "There is no free podCIDR for "+nodeList(nodes)+": "+err.Error())
			return
		}
		r = c.configure(", then ", added)
	}
	if !slices.Contains(d.Evidence, c.source()) {
		d.Evidence = append(d.Evidence, c.source())
	}
	for _, n := range nodes {
		r.Recreate = append(r.Recreate, Recreation{Node: n.Name})
	}
	what := "delete " + nodeList(nodes) + " and create it again: " + controllerName + " gives it another podCIDR"
	r.Text += what
	r.Text = strings.ToUpper(r.Text[:1]) + r.Text[1:]
	r.Commands = append(r.Commands, r.recreate()...)
	r.Beware = append(r.Beware, bewareOfRecreation()...)
	d.Remedies = append(d.Remedies, r)
}

// outsideConfigured finds podCIDRs that fairlead-controller has not cut.
func (c *cluster) outsideConfigured() []Diagnosis {
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
	d := Diagnosis{Kind: OutOfRange, Nodes: namesOf(outside), Warning: true, Evidence: []string{c.source()}}
	d.Cause = fmt.Sprintf("%s podCIDRs that are in no CIDR of %s (%s). The Nodes keep them", c.subject(d.Nodes), configuredRanges,
		clusterCIDRs(c.Ranges))
	d.NoHelp = append(d.NoHelp, "No action is needed, unless their range was removed by mistake: then add it to "+configuredRanges)
	return []Diagnosis{d}
}

// twoAllocators tells of a second allocator while nobody waits.
func (c *cluster) twoAllocators() []Diagnosis {
	if c.NodeIPAM.Stopped == "" || len(c.waiting) > 0 {
		return nil
	}
	return []Diagnosis{{Kind: TwoAllocators, Warning: true,
		Cause:    "the next node would get no podCIDR: " + c.NodeIPAM.Stopped,
		Remedies: []Remedy{c.oneAllocator()}}}
}
