package podcidr

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/agent/inputs"
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
func (c *cluster) remedyRecreate(d *Diagnosis, nodes, keep []inputs.Node) {
	rest := c.nodes
	for _, n := range nodes {
		rest = without(rest, n.Name)
	}
	need := len(nodes) + len(c.waiting)
	ranges := c.Ranges
	if len(ranges) == 0 {
		d.NoHelp = append(d.NoHelp, "Delete "+nodeList(nodes)+" and create it again with a podCIDR that is free; which are can't "+
			"be told, because the cluster CIDR is not known")
		return
	}
	first := ""
	var again Remedy
	if err := c.serves(ranges, rest, need); err != nil {
		if ranges, err = c.widen(rest, need); err != nil {
			d.NoHelp = append(d.NoHelp, "There is no free podCIDR for "+nodeList(nodes)+": "+err.Error())
			return
		}
		again = c.settings("", ranges)
		first = fmt.Sprintf("Widen --cluster-cidr to %s (%s), then ", clusterCIDRs(ranges), capacity(ranges))
	}
	again.Recreate = c.recreations(ranges, rest, nodes, keep)
	again.Text = first + "delete " + nodeList(nodes) + " and create it again" + with(again.Recreate[0])
	if first == "" {
		again.Text = strings.ToUpper(again.Text[:1]) + again.Text[1:]
	}
	if first != "" {
		again.Ranges = ranges
	}
	for _, r := range again.Recreate {
		again.Commands = append(again.Commands, r.commands()...)
	}
	again.Beware = append(again.Beware, "Pods of a node whose Node is deleted end; drain it first. Those that stay keep "+
		"addresses of the old podCIDR and are cut off")
	d.Remedies = append(d.Remedies, again)
}

func with(r Recreation) string {
	if r.PodCIDRs == nil {
		return ""
	}
	return " with podCIDR " + join(r.PodCIDRs)
}

// recreations leave the choice to the allocator where there is one, since it knows
// which podCIDRs are on their way to other nodes.
func (c *cluster) recreations(ranges []Range, rest, nodes, keep []inputs.Node) []Recreation {
	var out []Recreation
	grids, err := start(ranges, c.told, rest)
	for i, n := range nodes {
		r := Recreation{Node: n.Name, Keep: namesOf(keep)}
		for _, g := range grids {
			if err == nil && c.Allocates != Yes {
				free := g.next(len(nodes) + len(c.waiting))
				r.PodCIDRs = append(r.PodCIDRs, free[len(c.waiting)+i])
			}
		}
		out = append(out, r)
	}
	return out
}

func nodeList(nodes []inputs.Node) string {
	return count(len(nodes), "Node "+nodes[0].Name, "Nodes "+some(namesOf(nodes)))
}

// commands recreate the Node. What the API server fills in is taken out of the
// manifest, or it would not be accepted again.
func (r Recreation) commands() []string {
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
	out := []string{
		"kubectl drain " + r.Node + " --ignore-daemonsets --delete-emptydir-data",
		fmt.Sprintf("kubectl get node %s -o yaml > %s.yaml", r.Node, r.Node),
		fmt.Sprintf("kubectl patch --local -f %s.yaml --type=json -o yaml -p '[%s]' > %s-new.yaml", r.Node, patch, r.Node),
		"kubectl delete node " + r.Node,
	}
	for _, k := range r.Keep {
		out = append(out, fmt.Sprintf("kubectl annotate node %s --overwrite fairlead.dev/keeps-podcidr=\"$(date +%%s)\"   "+
			"# so that kube-controller-manager marks its podCIDR again", k))
	}
	return append(out,
		fmt.Sprintf("kubectl create -f %s-new.yaml", r.Node),
		"kubectl uncordon "+r.Node)
}
