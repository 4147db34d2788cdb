package podcidr

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// capacity is how many nodes ranges hold, in words.
func capacity(ranges []Range) string {
	most := ^uint64(0)
	for _, r := range ranges {
		most = min(most, r.Blocks())
	}
	return report.Count(int(most), "1 node", "%d nodes")
}

// roomFor is how many pods a node with a podCIDR of ranges has addresses for, in words.
func roomFor(ranges []Range) string {
	for _, r := range ranges {
		if pods := podsOnNode(r); pods > 0 {
			return fmt.Sprintf("at most %d pods on a node", pods)
		}
	}
	return "more pods on a node than the limit"
}

// podsOnNode is the number of addresses of a podCIDR, without network, gateway and, in IPv4, broadcast; 0 for more than
// a node runs.
func podsOnNode(r Range) int {
	if host := r.Cluster.Addr().BitLen() - r.Mask; host < 16 {
		return max(0, 1<<host-3)
	}
	return 0
}

func clusterCIDRs(ranges []Range) string {
	var out []netip.Prefix
	for _, r := range ranges {
		out = append(out, r.Cluster.Masked())
	}
	return report.Join(out, ",")
}

// kcmFlags make kube-controller-manager assign podCIDRs of ranges.
func kcmFlags(ranges []Range) []string {
	return append([]string{"--allocate-node-cidrs=true", "--cluster-cidr=" + clusterCIDRs(ranges)}, maskFlags(ranges)...)
}

// maskFlags are kube-controller-manager's flags for the masks. With two families it rejects --node-cidr-mask-size, with
// one it rejects the others.
func maskFlags(ranges []Range) []string {
	if len(ranges) == 1 {
		return []string{fmt.Sprintf("--node-cidr-mask-size=%d", ranges[0].Mask)}
	}
	var out []string
	for _, r := range ranges {
		out = append(out, fmt.Sprintf("--node-cidr-mask-size-ipv%d=%d", netaddr.Family(r.Cluster.Addr()), r.Mask))
	}
	return out
}

// configLines are the keys of fairlead-controller's config file for ranges.
func configLines(ranges []Range) []string {
	out := []string{"nodeIPAM:", "  enableNodeIPAM: true",
		"  clusterCIDRs: [" + strings.ReplaceAll(clusterCIDRs(ranges), ",", ", ") + "]"}
	for _, key := range maskKeys(ranges) {
		out = append(out, "  "+key)
	}
	return out
}

// maskKeys are the config keys of the masks.
func maskKeys(ranges []Range) []string {
	var out []string
	for _, family := range byFamily(ranges) {
		out = append(out, fmt.Sprintf("nodeCIDRMaskSizeIPv%d: %d", netaddr.Family(family[0].Cluster.Addr()), family[0].Mask))
	}
	return out
}
