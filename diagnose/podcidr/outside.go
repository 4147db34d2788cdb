package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// PodAddress is one running pod with an address in a podCIDR: its namespace/name, node and addresses.
type PodAddress struct {
	Pod, Node string
	IPs       []netip.Addr
}

// OutsidePods finds pods outside podCIDR: their address is in a podCIDR that their node had before.
func OutsidePods(nodes map[string]inputs.Node, pods []PodAddress) []report.Finding {
	byNode := map[string][]string{}
	for _, p := range pods {
		n := nodes[p.Node]
		outside := func(a netip.Addr) bool {
			return !slices.ContainsFunc(n.PodCIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
		}
		if len(n.PodCIDRs) > 0 && slices.ContainsFunc(p.IPs, outside) {
			byNode[p.Node] = append(byNode[p.Node], p.Pod)
		}
	}
	var out []report.Finding
	for _, n := range sorted(nodes) {
		list := slices.Sorted(slices.Values(byNode[n.Name]))
		if len(list) == 0 {
			continue
		}
		d := finding(Changed, report.Warning, []inputs.Node{n})
		d.Cause = fmt.Sprintf("%s an address outside of the podCIDR %s of node %s, which must have been changed since: the node and "+
			"other nodes cannot reach them", report.Count(len(list), "pod "+list[0]+" has", "%d pods ("+report.Some(list)+") have"),
			report.Join(n.PodCIDRs, ","), n.Name)
		r := report.Remedy{Text: "Delete them, so that they are recreated with an address of the node's podCIDR",
			Beware: []string{"A pod without a controller is not recreated"}}
		for _, pod := range list {
			namespace, name, _ := strings.Cut(pod, "/")
			r.Commands = append(r.Commands, "kubectl -n "+namespace+" delete pod "+name)
		}
		d.Remedies = []report.Remedy{r}
		out = append(out, d)
	}
	return out
}
