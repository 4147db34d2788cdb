package podcidr

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam/blocks"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Recreation is a Node to delete and create again: spec.podCIDR can't be changed
// in place.
type Recreation struct {
	Node string `json:"node"`
	// PodCIDRs are to be written into the new Node; nil: the allocator gives them.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// Keep are nodes that share the old podCIDR. With the Node the allocator
	// frees it, theirs too: each must be touched, which marks it again.
	Keep []string `json:"keep,omitempty"`
}

// remedyRecreate tells how to give nodes other podCIDRs, if there are any.
func (c *cluster) remedyRecreate(d *Diagnosis, nodes []inputs.Node) {
	if c.NodeIPAM != nil {
		c.recreateConfigured(d, nodes)
		return
	}
	if len(c.Ranges) == 0 {
		d.NoHelp = append(d.NoHelp, "The remedy is to delete "+nodeList(nodes)+" and to create it again with a free podCIDR; which are free is unknown, because the cluster CIDR is unknown")
		return
	}
	nodes = widestFirst(nodes)
	again, err := c.room(nodes)
	if err != nil {
		d.NoHelp = append(d.NoHelp, "There is no free podCIDR for "+nodeList(nodes)+": "+err.Error())
		return
	}
	if !slices.Contains(d.Evidence, c.source()) {
		d.Evidence = append(d.Evidence, c.source())
	}
	ranges := c.Ranges
	if again.Ranges != nil {
		ranges = again.Ranges
	}
	for i := range again.Recreate {
		keepers := c.having
		if again.Together {
			keepers = c.others(nodes)
		}
		again.Recreate[i].Keep = sharers(ranges, nodes[i], keepers)
	}
	again.Commands = append(again.Commands, again.recreate()...)
	if again.Together {
		again.Text += "delete all of the Nodes " + some(namesOf(nodes)) + ", then create them again"
	} else {
		again.Text += "delete " + nodeList(nodes) + " and create " + themAgain(again.Recreate)
	}
	again.Text = strings.ToUpper(again.Text[:1]) + again.Text[1:]
	if again.Restart {
		again.Text += ", then restart kube-controller-manager: deleting the Node releases addresses of Services"
		again.Commands = append(again.Commands, c.restart().Commands...)
	}
	again.Beware = append(again.Beware, bewareOfRecreation()...)
	d.Remedies = append(d.Remedies, again)
}

func bewareOfRecreation() []string {
	return []string{"All pods of the node are terminated. Where its agent does not serve pods they cannot terminate yet, and drain times out: continue, they terminate when the agent serves again", "Restart the agent of the node if it has exited"}
}

// widestFirst is the order to delete nodes in: each makes room for the next.
func widestFirst(nodes []inputs.Node) []inputs.Node {
	return slices.SortedStableFunc(slices.Values(nodes), func(a, b inputs.Node) int {
		return slices.CompareFunc(a.PodCIDRs, b.PodCIDRs,
			func(p, q netip.Prefix) int { return cmp.Compare(p.Bits(), q.Bits()) })
	})
}

// sharers are other nodes with a part of a block that n has a part of. The
// allocator frees it with the Node of n.
func sharers(ranges []Range, n inputs.Node, nodes []inputs.Node) []string {
	var out []string
	for _, other := range without(nodes, n.Name) {
		for i, r := range ranges {
			if i < len(n.PodCIDRs) && i < len(other.PodCIDRs) && r.Share(n.PodCIDRs[i], other.PodCIDRs[i]) {
				out = append(out, other.Name)
				break
			}
		}
	}
	return out
}

// room looks for podCIDRs for nodes, beside the others and those that wait: from
// the allocator, which knows best what is on its way to other nodes; by hand,
// where it is off or would give some that overlap; and else from a wider range.
func (c *cluster) room(nodes []inputs.Node) (Remedy, error) {
	r := Remedy{Restart: c.freesServices(nodes)}
	for _, n := range nodes {
		r.Recreate = append(r.Recreate, Recreation{Node: n.Name})
	}
	// With two families a node that waits for one leaks a block of the other at
	// each try: a running allocator that could not serve has lost count.
	sure := len(c.Ranges) == 1 || len(c.waiting) == 0
	if c.Allocates == Yes && !r.Restart && sure {
		if c.servesInTurn(c.Ranges, nodes) == nil {
			return r, nil
		}
		changed, better := c.leaveOutServices()
		if better && !changed.freesServices(nodes) && changed.servesInTurn(c.Ranges, nodes) == nil {
			tell := changed.tellServices()
			tell.Text = lower(tell.Text) + ", then "
			tell.Recreate = r.Recreate
			return tell, nil
		}
	}
	if (c.Allocates == No || len(c.waiting) == 0) && c.byHand(r.Recreate) {
		return r, nil
	}
	together := c.servesInAnyOrder(c.Ranges, c.others(nodes), len(nodes)+len(c.waiting)) == nil
	if c.Allocates == Yes && !r.Restart && sure && together {
		r.Together = true
		return r, nil
	}
	if r.Restart {
		return r, errors.New("a running kube-controller-manager would assign its addresses of Services to the next node")
	}
	wider, err := c.widenUntil(func(one []Range, i int) error { return c.part(i).servesInTurn(one, only(nodes, i)) },
		func(all []Range) error { return c.servesInTurn(all, nodes) })
	if err != nil {
		return r, err
	}
	text := fmt.Sprintf("widen --cluster-cidr to %s (%s), then ", clusterCIDRs(wider), capacity(wider))
	if slices.Equal(wider, c.Ranges) {
		text = "restart kube-controller-manager, so that it reads the Nodes again, then "
	}
	settings := c.settings(text, wider)
	settings.Recreate = r.Recreate
	return settings, nil
}

// others are all nodes but these.
func (c *cluster) others(nodes []inputs.Node) []inputs.Node {
	rest := c.nodes
	for _, n := range nodes {
		rest = without(rest, n.Name)
	}
	return rest
}

// part is c with the podCIDRs number i alone.
func (c *cluster) part(i int) *cluster {
	p := *c
	p.nodes = only(c.nodes, i)
	return &p
}

// freesServices: with one of the nodes the allocator would free a block that it
// leaves out for the Services.
func (c *cluster) freesServices(nodes []inputs.Node) bool {
	for _, n := range nodes {
		for i, p := range n.PodCIDRs {
			for _, s := range c.LeftOut {
				if i < len(c.Ranges) && c.Ranges[i].Share(p, s) {
					return true
				}
			}
		}
	}
	return false
}

// servesInTurn tries to delete and create nodes one after the other, beside
// those that wait.
func (c *cluster) servesInTurn(ranges []Range, nodes []inputs.Node) error {
	left := c.nodes
	if len(c.waiting) > 0 && len(c.Ranges) > 1 { // nobody may wait on: it would leak
		if err := c.serves(ranges, left, len(c.waiting)); err != nil {
			return err
		}
	}
	for i, n := range nodes {
		left = without(left, n.Name)
		if err := c.servesInAnyOrder(ranges, left, len(c.waiting)+i+1); err != nil {
			return err
		}
	}
	return nil
}

// leaveOutServices is c with an allocator that leaves out all Service CIDRs.
func (c *cluster) leaveOutServices() (*cluster, bool) {
	changed := *c
	changed.LeftOut = c.Services
	return &changed, len(c.Services) > len(c.LeftOut)
}

// tellServices makes the allocator leave out what c leaves out.
func (c *cluster) tellServices() Remedy {
	flag := "--service-cluster-ip-range=" + join(c.LeftOut)
	return Remedy{Text: "Start kube-controller-manager with " + flag + ", so that it excludes the Services' addresses",
		LeftOut: c.LeftOut, Commands: c.setFlags(flag)}
}

// byHand chooses podCIDRs that are free, before any Node is deleted, and overlap
// nothing, and reports whether there are enough. With an allocator at work nobody
// must wait, who could be given the same.
func (c *cluster) byHand(again []Recreation) bool {
	grids, err := start(c.Ranges, c.LeftOut, nil)
	if err != nil {
		return false
	}
	for _, g := range grids {
		for _, n := range c.having {
			for _, p := range n.PodCIDRs {
				if p.Overlaps(g.Cluster) && g.Take(p) != nil {
					return false
				}
			}
		}
	}
	chosen := make([][]netip.Prefix, len(again))
	for _, g := range grids {
		clean := c.clean(g, len(again))
		if len(clean) < len(again) {
			return false
		}
		for i := range again {
			chosen[i] = append(chosen[i], clean[i])
		}
	}
	for i := range again {
		again[i].PodCIDRs = chosen[i]
	}
	return true
}

// clean are the first need free blocks that overlap nothing.
func (c *cluster) clean(g *blocks.Grid, need int) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range g.Next(mostBlocks) {
		if len(out) == need {
			break
		}
		if c.clash(p) == "" {
			out = append(out, p)
		}
	}
	return out
}

func themAgain(list []Recreation) string {
	if len(list) == 1 && list[0].PodCIDRs == nil {
		return "it again"
	}
	if len(list) == 1 {
		return "it again with podCIDR " + join(list[0].PodCIDRs)
	}
	if list[0].PodCIDRs == nil {
		return "it again"
	}
	var each []string
	for _, r := range list {
		each = append(each, r.Node+" with podCIDR "+join(r.PodCIDRs))
	}
	return "it again: " + some(each)
}

func nodeList(nodes []inputs.Node) string {
	if len(nodes) == 1 {
		return "Node " + nodes[0].Name
	}
	return "each of the Nodes " + some(namesOf(nodes))
}

// recreate are the commands that make the Nodes again.
func (r *Remedy) recreate() []string {
	var out []string
	if !r.Together {
		for _, n := range r.Recreate {
			out = slices.Concat(out, n.remove(), n.touch(), n.create())
		}
		return out
	}
	var touch []string
	for _, n := range r.Recreate {
		out = append(out, n.remove()...)
		touch = append(touch, n.touch()...)
	}
	slices.Sort(touch)
	out = append(out, slices.Compact(touch)...)
	for _, n := range r.Recreate {
		out = append(out, n.create()...)
	}
	return out
}

// remove keeps the Node's manifest and deletes it. What the API server fills in is
// taken out of the manifest, or it would not be accepted again.
func (r Recreation) remove() []string {
	patch := `{"op":"remove","path":"/spec/podCIDR"},{"op":"remove","path":"/spec/podCIDRs"}`
	if r.PodCIDRs != nil {
		var quoted []string
		for _, p := range r.PodCIDRs {
			quoted = append(quoted, `"`+p.String()+`"`)
		}
		patch = fmt.Sprintf(`{"op":"replace","path":"/spec/podCIDR","value":%s},{"op":"replace","path":"/spec/podCIDRs","value":[%s]}`,
			quoted[0], strings.Join(quoted, ","))
	}
	patch += `,{"op":"remove","path":"/metadata/resourceVersion"},{"op":"remove","path":"/metadata/uid"}`
	return []string{
		"kubectl drain " + r.Node + " --ignore-daemonsets --delete-emptydir-data --timeout=2m",
		fmt.Sprintf("kubectl get node %s -o yaml > %s.yaml", r.Node, r.Node),
		fmt.Sprintf("kubectl patch --local -f %s.yaml --type=json -o yaml -p '[%s]' > %s-new.yaml", r.Node, patch, r.Node),
		"kubectl delete node " + r.Node,
	}
}

// touch has the allocator mark again what it has freed with the Node, though other
// nodes have it.
func (r Recreation) touch() []string {
	var out []string
	for _, k := range r.Keep {
		out = append(out, fmt.Sprintf("kubectl annotate node %s --overwrite fairlead.dev/keeps-podcidr=\"$(date +%%s)\"   "+
			"# so that kube-controller-manager marks its podCIDR again", k))
	}
	return out
}

func (r Recreation) create() []string {
	return []string{fmt.Sprintf("kubectl create -f %s-new.yaml", r.Node), "kubectl uncordon " + r.Node}
}
