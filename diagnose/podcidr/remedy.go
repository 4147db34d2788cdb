package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// procedure is the documentation of how a Node is recreated.
const procedure = "docs/node-ipam.md#recreate-a-node"

// enlarge is the remedy with the smallest larger ranges that serve all nodes.
func (c *cluster) enlarge(nodes []inputs.Node) (report.Remedy, error) {
	if c.NodeIPAM == nil {
		ranges, err := c.widen(c.Ranges, nodes)
		if err != nil {
			return report.Remedy{}, fmt.Errorf("no wider --cluster-cidr is possible: %w", err)
		}
		return c.settings(fmt.Sprintf("Widen --cluster-cidr to %s (%s)", clusterCIDRs(ranges), capacity(ranges)), ranges), nil
	}
	added, err := c.addRanges(nodes)
	if err != nil {
		return report.Remedy{}, fmt.Errorf("no suitable CIDR to add was found: %w", err)
	}
	var list []string
	for _, r := range added {
		list = append(list, fmt.Sprintf("%s (%s)", r.Cluster, capacity([]Range{r})))
	}
	return c.settings(fmt.Sprintf("Add %s to %s of %s and restart it", strings.Join(list, " and "), configuredRanges,
		controllerName), slices.Concat(c.Ranges, added)), nil
}

// excludeServices makes kube-controller-manager exclude all Service CIDRs; ok if that serves all nodes, and later ones.
func (c *cluster) excludeServices(nodes []inputs.Node) (r report.Remedy, ok bool) {
	changed := *c
	changed.LeftOut = c.Services
	flag := "--service-cluster-ip-range=" + report.Join(c.Services, ",")
	return report.Remedy{Text: "Start kube-controller-manager with " + flag + ", so that it excludes the Services' addresses",
			Commands: c.setFlags(flag)}, c.NodeIPAM == nil && len(c.Services) > len(c.LeftOut) &&
			changed.serves(c.Ranges, nodes) == nil && len(changed.freeOverlaps()) == 0
}

// remedyRange looks for larger ranges for all waiting nodes.
func (c *cluster) remedyRange(d *report.Finding) {
	r, err := c.enlarge(c.nodes)
	if err != nil {
		d.Notes = append(d.Notes, upperFirst(err.Error()))
		return
	}
	d.Remedies = append(d.Remedies, r)
}

// remedyMask looks for longer node masks for all waiting nodes, and says so if none help: many try them first.
func (c *cluster) remedyMask(d *report.Finding) {
	masks, full := c.longerMasks(c.nodes)
	if full != nil {
		d.Notes = append(d.Notes, "A longer node mask does not help: "+c.fills(full))
		return
	}
	if c.serves(masks, c.nodes) != nil {
		return
	}
	flags := strings.Join(maskFlags(masks), " ")
	if c.NodeIPAM != nil {
		flags = strings.Join(maskKeys(masks), ", ")
	}
	r := c.settings(fmt.Sprintf("Lengthen the node mask for new nodes, %s (%s)", flags, roomFor(masks)), masks)
	r.Beware = append(r.Beware, "Existing nodes keep their podCIDR")
	d.Remedies = append(d.Remedies, r)
}

// fills says what uses up the ranges of a family.
func (c *cluster) fills(family []Range) string {
	var inside []netip.Prefix
	for _, n := range c.having {
		for _, p := range n.PodCIDRs {
			if slices.ContainsFunc(family, func(r Range) bool { return r.Cluster.Overlaps(p) }) {
				inside = append(inside, p)
			}
		}
	}
	alike := !slices.ContainsFunc(inside, func(p netip.Prefix) bool { return p.Bits() != inside[0].Bits() })
	switch n := len(inside); {
	case n == 0:
		return "no podCIDR of " + clusterCIDRs(family) + " is free"
	case n == 1:
		return fmt.Sprintf("one /%d fills the range", inside[0].Bits())
	case alike && n <= 10:
		words := []string{"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
		return fmt.Sprintf("the %s /%d fill the range", words[n-2], inside[0].Bits())
	case alike:
		return fmt.Sprintf("the %d /%d fill the range", n, inside[0].Bits())
	default:
		return fmt.Sprintf("the podCIDRs of %d nodes fill the range", n)
	}
}

// settings is the remedy that gives the allocator other ranges.
func (c *cluster) settings(text string, ranges []Range) report.Remedy {
	r := report.Remedy{Text: text, Beware: []string{
		"kube-proxy's cluster CIDR (clusterCIDR in ConfigMap kube-system/kube-proxy) and other configuration with the cluster " +
			"CIDR, such as firewalls, must be changed as well",
		"The cluster CIDR must not overlap the nodes' own network: their addresses were checked, but their subnets are unknown"}}
	if len(c.Services) == 0 {
		r.Beware = append(r.Beware, "The Service CIDR could not be read: make sure that the cluster CIDR does not overlap it")
	}
	if c.NodeIPAM != nil {
		r.Commands = append(r.Commands, "# in the config file of "+controllerName+", which must then be restarted:")
		for _, line := range configLines(ranges) {
			r.Commands = append(r.Commands, "#   "+line)
		}
		return r
	}
	r.Commands = c.setFlags(kcmFlags(ranges)...)
	if c.Kubeadm {
		r.Commands = append(r.Commands, "kubectl -n kube-system edit configmap kubeadm-config   # networking.podSubnet: "+
			clusterCIDRs(ranges)+", or the next kubeadm upgrade reverts it")
	}
	return r
}

// setFlags says where and how flags of kube-controller-manager are set.
func (c *cluster) setFlags(flags ...string) []string {
	where := "# set these flags of kube-controller-manager, wherever it is started, and restart it:"
	if c.Manifest != "" {
		where = "# in " + c.Manifest + " on each control-plane node (kubelet restarts it by itself):"
	}
	return []string{where, "#   " + strings.Join(flags, " ")}
}

func (c *cluster) restart() report.Remedy {
	how := "# restart kube-controller-manager, wherever it is started"
	if c.Manifest != "" {
		how = "# on each control-plane node: move " + c.Manifest + " away, wait 20 seconds, move it back"
	}
	return report.Remedy{Text: "Restart kube-controller-manager", Commands: []string{how}}
}

// remedyStart is for a kube-controller-manager that does not run.
func (c *cluster) remedyStart(d *report.Finding) {
	if len(c.Ranges) > 0 {
		d.Evidence = append(d.Evidence, c.source())
		if _, err := start(c.Ranges, c.LeftOut, c.nodes); err != nil {
			d.Cause += fmt.Sprintf("; it cannot start with --cluster-cidr=%s and these Nodes: %v", clusterCIDRs(c.Ranges), err)
			c.remedyRange(d)
			return
		}
	}
	d.Notes = append(d.Notes, "Start it; the reason why it stopped is in its log (kubectl -n kube-system logs --previous, or crictl "+
		"on the control-plane node)")
}

// remedyAllocate enables the allocator, with the ranges that are set, or else free ones.
func (c *cluster) remedyAllocate(d *report.Finding) {
	d.Evidence = append(d.Evidence, c.source())
	candidates := c.candidates()
	i := slices.IndexFunc(candidates, func(ranges []Range) bool { return c.serves(ranges, c.nodes) == nil })
	if i < 0 {
		d.Notes = append(d.Notes, "No cluster CIDR was found that contains the podCIDRs of the Nodes, serves the waiting ones and "+
			"overlaps nothing: resolve the conflicts of podCIDRs, Service CIDR and node addresses first (fairleadctl plan)")
		return
	}
	ranges := candidates[i]
	r := c.settings("Start kube-controller-manager with --allocate-node-cidrs=true --cluster-cidr="+clusterCIDRs(ranges)+
		" ("+capacity(ranges)+")", ranges)
	if d.Kind == NoPodNetworkCIDR {
		r.Beware = append(r.Beware, "An empty cluster can also be recreated: kubeadm reset, then kubeadm init "+
			"--pod-network-cidr="+clusterCIDRs(ranges))
	}
	d.Remedies = append(d.Remedies, r)
}

// oneAllocator is the remedy that leaves fairlead-controller as the only one.
func (c *cluster) oneAllocator() report.Remedy {
	return report.Remedy{Text: "Run kube-controller-manager with --allocate-node-cidrs=false, then restart " + controllerName,
		Commands: append(c.setFlags("--allocate-node-cidrs=false"), "# then restart "+controllerName)}
}

// remedyRecreate is to delete and recreate Nodes: a podCIDR cannot be changed in place.
func (c *cluster) remedyRecreate(d *report.Finding, nodes []inputs.Node) {
	what := "Node " + nodes[0].Name + " and create it again"
	if len(nodes) > 1 {
		what = "the Nodes " + report.Some(namesOf(nodes)) + " and create them again"
	}
	if len(c.Ranges) == 0 {
		d.Notes = append(d.Notes, "The remedy is to delete "+what+" with a free podCIDR; which are free is unknown, because the "+
			"cluster CIDR is unknown")
		return
	}
	if !slices.Contains(d.Evidence, c.source()) {
		d.Evidence = append(d.Evidence, c.source())
	}
	recreate := c.recreate
	if c.Allocates == No {
		recreate = c.recreateManually
	}
	r, err := recreate(what, nodes)
	if err != nil {
		d.Notes = append(d.Notes, "The remedy is to delete "+what+", but there is no free podCIDR: "+err.Error())
		return
	}
	r.Text = upperFirst(r.Text)
	r.Beware = append(r.Beware, "All pods of the node are terminated. Its agent must be restarted if it has exited")
	d.Remedies = append(d.Remedies, r)
}

// recreate makes the allocator assign other podCIDRs. kube-controller-manager is stopped while the Nodes are deleted:
// it would release their podCIDRs although other nodes have them. What it assigns after its start is known.
func (c *cluster) recreate(what string, nodes []inputs.Node) (r report.Remedy, err error) {
	after := slices.Clone(c.nodes)
	for i := range after {
		if slices.ContainsFunc(nodes, func(n inputs.Node) bool { return n.Name == after[i].Name }) {
			after[i].PodCIDRs = nil
		}
	}
	if c.serves(c.Ranges, after) != nil {
		var ok bool
		if r, ok = c.excludeServices(after); !ok {
			if r, err = c.enlarge(after); err != nil {
				return r, err
			}
		}
		r.Text += ", then "
	}
	r.Text += "delete " + what + ": " + c.allocator() + " assigns another podCIDR"
	first := "# drain first, and stop kube-controller-manager meanwhile: " + procedure
	if c.NodeIPAM != nil {
		first = "# drain first: " + procedure
	}
	r.Commands = append(r.Commands, first, deleteNodes(nodes))
	return r, nil
}

// recreateManually chooses podCIDRs that are free before any Node is deleted, for a cluster without an allocator.
func (c *cluster) recreateManually(what string, nodes []inputs.Node) (report.Remedy, error) {
	r := report.Remedy{Commands: []string{"# drain first: " + procedure, deleteNodes(nodes)}}
	grids, err := start(c.Ranges, nil, nil)
	if err != nil {
		return r, err
	}
	var taken []netip.Prefix
	for _, p := range c.claims() {
		taken = append(taken, p.Prefix)
	}
	for _, p := range c.reserved {
		taken = append(taken, p.Prefix)
	}
	chosen := make([][]netip.Prefix, len(nodes))
	for _, g := range grids {
		for _, p := range taken {
			_ = g.MarkUsed(p) // fails only for prefixes outside of the range
		}
		free := g.Next(len(nodes))
		if len(free) < len(nodes) {
			return r, fmt.Errorf("%s cut into /%d leaves %d free", g.Cluster, g.Mask, len(free))
		}
		for i := range chosen {
			chosen[i] = append(chosen[i], free[i])
		}
	}
	var all []string
	for i, n := range nodes {
		list := report.Join(chosen[i], ",")
		all = append(all, list)
		r.Commands = append(r.Commands, fmt.Sprintf(`kubectl patch node %s -p '{"spec":{"podCIDR":"%s","podCIDRs":["%s"]}}'`, n.Name,
			chosen[i][0], strings.ReplaceAll(list, ",", `","`)))
	}
	r.Text = "delete " + what + " with podCIDR " + report.Some(all)
	return r, nil
}

func deleteNodes(nodes []inputs.Node) string {
	return "kubectl delete node " + strings.Join(namesOf(nodes), " ")
}

func namesOf(nodes []inputs.Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
