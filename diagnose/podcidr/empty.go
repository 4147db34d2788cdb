package podcidr

import (
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/blocks"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// empty finds why nodes have no podCIDR: one finding for all that wait, another for those that are too new to judge.
func (c *cluster) empty() []report.Finding {
	var fresh, waiting []inputs.Node
	for _, n := range c.waiting {
		_, refused := c.Refused[n.Name]
		if c.now.Sub(n.Created) < assignTimeout && !refused {
			fresh = append(fresh, n)
		} else {
			waiting = append(waiting, n)
		}
	}
	if len(c.waiting) == 0 {
		return nil
	}
	d := c.cause(append(waiting, fresh...))
	if d.Kind != NotGiven && d.Kind != BlocksLost || len(fresh) == 0 {
		return []report.Finding{d} // equally certain for the new ones
	}
	pending := finding(JustCreated, report.Warning, fresh)
	pending.Cause = c.subject(pending.About) + " no podCIDR yet: created less than " + assignTimeout.String() + " ago; assignment is pending"
	pending.Evidence = []string{c.source()}
	if len(waiting) == 0 {
		return []report.Finding{pending}
	}
	return []report.Finding{pending, c.cause(waiting)}
}

// cause finds why the nodes wait, the most certain cause first.
func (c *cluster) cause(nodes []inputs.Node) report.Finding {
	d := finding(NotGiven, report.Failing, nodes)
	d.Cause = c.subject(d.About) + " no podCIDR: "
	d.Seen = c.seen(d.About)
	switch {
	case c.NodeIPAM != nil:
		c.causeNodeIPAM(&d)
	case c.Runs == No:
		d.Kind = NotRunning
		d.Cause += "kube-controller-manager, which assigns them, is not running: " + c.RunsNot
		c.remedyStart(&d)
	case c.Kubeadm && c.PodSubnet == "" && len(c.Ranges) == 0 && c.Allocates != Yes,
		c.Kubeadm && c.PodSubnet == "" && c.Allocates == No:
		d.Kind = NoPodNetworkCIDR
		d.Cause += "kubeadm init was run without --pod-network-cidr (networking.podSubnet in ConfigMap " +
			"kube-system/kubeadm-config is empty), so kube-controller-manager assigns none" + because(c.AllocatesNot)
		c.remedyAllocate(&d)
	case c.Allocates == No:
		d.Kind = AllocatorOff
		d.Cause += "kube-controller-manager does not assign them" + because(c.AllocatesNot)
		c.remedyAllocate(&d)
	case len(c.Ranges) > 0:
		c.causeInRange(&d)
	default:
		c.causeUnknown(&d)
	}
	return d
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// causeInRange does the arithmetic.
func (c *cluster) causeInRange(d *report.Finding) {
	d.Evidence = []string{c.source()}
	grids, err := start(c.Ranges, c.LeftOut, c.nodes)
	if err != nil {
		d.Kind = NotRunning
		d.Cause += fmt.Sprintf("kube-controller-manager cannot start with --cluster-cidr=%s and these Nodes: %v",
			clusterCIDRs(c.Ranges), err)
		c.remedyRange(d)
		return
	}
	var full []string
	for _, g := range grids {
		if g.Free() < uint64(len(c.waiting)) && (!c.Guessed || len(c.Refused) > 0 && g.Free() == 0) {
			full = append(full, c.sum(g))
		}
	}
	switch {
	case len(full) > 0:
		d.Kind = Exhausted
		d.Cause += strings.Join(full, ", and ")
		c.remedyRange(d)
		c.remedyMask(d)
	case len(c.Refused) > 0 && !c.Guessed:
		d.Kind = BlocksLost
		d.Cause += fmt.Sprintf("kube-controller-manager reports that none is left (CIDRNotAvailable), but according to the Nodes "+
			"%d of %d podCIDRs in %s are free: its allocator is out of sync, and a restart fixes that",
			grids[0].Free(), grids[0].Blocks(), grids[0].Cluster)
		d.Remedies = append(d.Remedies, c.restart())
	default:
		c.causeUnknown(d)
	}
}

// sum is the arithmetic of one range.
func (c *cluster) sum(g *blocks.Grid) string {
	text := fmt.Sprintf("cluster CIDR %s cut into /%d holds %s, and %s", g.Cluster, g.Mask,
		report.Count(int(g.Blocks()), "1 node", "%d nodes"), c.nodeCount())
	byService := &blocks.Grid{Range: g.Range}
	for _, s := range c.LeftOut {
		if s.Overlaps(g.Cluster) {
			if err := byService.MarkUsed(s); err == nil {
				text += fmt.Sprintf("; the Service CIDR %s takes %s of its blocks", s,
					ofAll(byService.Blocks()-byService.Free(), g.Blocks()))
			}
		}
	}
	used := g.Blocks() - g.Free() - (byService.Blocks() - byService.Free())
	if used > uint64(len(c.having)) {
		text += fmt.Sprintf("; podCIDRs that are shorter than /%d take several blocks each, %d in all", g.Mask, used)
	}
	return text
}

// nodeCount is the number of nodes in words.
func (c *cluster) nodeCount() string {
	have := "none has one"
	if len(c.having) > 0 {
		have = report.Count(len(c.having), "1 has one", "%d have one")
	}
	return fmt.Sprintf("%d exist (%s, %s)", len(c.nodes), have, report.Count(len(c.waiting), "1 waits", "%d wait"))
}

func ofAll(n, all uint64) string {
	if n == all {
		return "all"
	}
	return fmt.Sprint(n)
}

// seen are the CIDRNotAvailable Events of the nodes.
func (c *cluster) seen(nodes []string) []string {
	var out []string
	for _, n := range nodes {
		if r, ok := c.Refused[n]; ok {
			out = append(out, fmt.Sprintf("Node %s: Event CIDRNotAvailable, %s, last at %s UTC", n,
				report.Count(r.Count, "once", "%d times"), r.Last.UTC().Format(time.DateTime)))
		}
	}
	return out
}

func (c *cluster) causeUnknown(d *report.Finding) {
	d.Evidence = []string{c.source()}
	if len(c.having) == 0 {
		d.Cause += "no node has one"
	} else {
		d.Cause += fmt.Sprintf("%d of %d nodes have one", len(c.having), len(c.nodes))
	}
	if len(c.Refused) > 0 {
		d.Cause += ", and kube-controller-manager reports that none is left (CIDRNotAvailable)"
	}
	d.Notes = append(d.Notes, "Check that kube-controller-manager runs, with --allocate-node-cidrs=true and a --cluster-cidr that is "+
		"large enough; its log has details. A podCIDR set manually (kubectl patch node) must be one that no other node has, never "+
		"the whole cluster CIDR")
}
