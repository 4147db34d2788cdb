package podcidr

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/blocks"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Plan is the arithmetic of a cluster that does not exist yet.
type Plan struct {
	Ranges []RangePlan `json:"ranges"`
	// Nodes is how many nodes are wanted, 0 for no particular number. Holds is how many fit, the minimum of all ranges.
	Nodes int    `json:"nodes,omitempty"`
	Holds uint64 `json:"holds"`
	// Problems are messages. A plan with one must not be used.
	Problems []string `json:"problems,omitempty"`
	// Remedies are messages about what would help.
	Remedies []string `json:"remedies,omitempty"`
	// KubeadmFlags and KCMFlags are for kubeadm init and kube-controller-manager. ExtraArgs are for kubeadm's config
	// file, as init has no flags for them.
	KubeadmFlags []string `json:"kubeadmFlags"`
	ExtraArgs    []string `json:"kubeadmExtraArgs,omitempty"`
	KCMFlags     []string `json:"kubeControllerManagerFlags"`
	// NodeIPAM are lines of fairlead-controller's config file.
	NodeIPAM []string `json:"fairleadController"`
}

// RangePlan is one range of a Plan.
type RangePlan struct {
	Cluster netip.Prefix `json:"clusterCIDR"`
	Mask    int          `json:"nodeMask"`
	// Blocks counts all podCIDRs of the range; ForServices counts those that overlap a Service CIDR, which
	// kube-controller-manager excludes.
	Blocks      uint64 `json:"podCIDRs"`
	ForServices uint64 `json:"takenByServices,omitempty"`
	// Pods is how many pods a node has addresses for, 0 for more than it can run.
	Pods        int          `json:"podsPerNode,omitempty"`
	First, Last netip.Prefix `json:"-"`
}

// NewPlan computes a cluster of nodes nodes. The error is about the ranges themselves.
func NewPlan(ranges []Range, services []netip.Prefix, nodes int) (Plan, error) {
	grids, err := start(ranges, services, nil)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Nodes: nodes, Holds: ^uint64(0), KCMFlags: kcmFlags(ranges),
		KubeadmFlags: []string{"--pod-network-cidr=" + clusterCIDRs(ranges)}, NodeIPAM: configLines(ranges)}
	if len(services) > 0 {
		p.KCMFlags = append(p.KCMFlags, "--service-cluster-ip-range="+report.Join(services, ","))
		p.KubeadmFlags = append(p.KubeadmFlags, "--service-cidr="+report.Join(services, ","))
	}
	for i, g := range grids {
		if g.Mask != defaultMask(g.Cluster) {
			p.ExtraArgs = append(p.ExtraArgs, maskFlags(ranges)[i])
		}
		p.Ranges = append(p.Ranges, RangePlan{Cluster: g.Cluster, Mask: g.Mask, Blocks: g.Blocks(),
			ForServices: g.Blocks() - g.Free(), Pods: podsOnNode(g.Range), First: g.Block(0), Last: g.Block(g.Blocks() - 1)})
		p.Holds = min(p.Holds, g.Free())
		p.judge(g, services)
	}
	if uint64(nodes) > p.Holds {
		p.Problems = append(p.Problems, fmt.Sprintf("there are podCIDRs for %s, not for %d",
			report.Count(int(p.Holds), "1 node", "%d nodes"), nodes))
		if len(p.Problems) == 1 {
			p.widen(ranges, services)
		}
	}
	return p, nil
}

// judge finds what is wrong with one range, regardless of the number of nodes.
func (p *Plan) judge(g *blocks.Grid, services []netip.Prefix) {
	for _, s := range services {
		if s.Overlaps(g.Cluster) {
			p.Problems = append(p.Problems, fmt.Sprintf("the cluster CIDR %s overlaps the Service CIDR %s", g.Cluster, s))
		}
	}
	if !private(g.Cluster) {
		p.Problems = append(p.Problems, fmt.Sprintf("%s is not private address space (RFC 1918, 4193, 6598): pods cannot reach the "+
			"hosts that it belongs to", g.Cluster))
	}
	if g.Mask-g.Cluster.Bits() > MaxMaskDiff {
		p.Problems = append(p.Problems, fmt.Sprintf("the node mask /%d is more than %d bits longer than %s: "+
			"kube-controller-manager accepts it, kubeadm does not", g.Mask, MaxMaskDiff, g.Cluster))
	}
	if g.Cluster.Addr().BitLen()-g.Mask < 2 {
		p.Problems = append(p.Problems, fmt.Sprintf("a podCIDR of /%d has no room for a pod", g.Mask))
	}
}

// widen proposes ranges that hold all nodes.
func (p *Plan) widen(ranges []Range, services []netip.Prefix) {
	c := newCluster(nil, Facts{Ranges: ranges, Services: services, LeftOut: services, Allocates: Yes}, time.Time{})
	nodes := make([]inputs.Node, p.Nodes)
	if wider, err := c.widen(ranges, nodes); err == nil {
		p.Remedies = append(p.Remedies, fmt.Sprintf("--cluster-cidr %s holds %s", clusterCIDRs(wider), capacity(wider)))
	}
	longer, full := c.longerMasks(nodes)
	if full != nil || c.serves(longer, nodes) != nil {
		return
	}
	var masks []string
	for _, r := range longer {
		masks = append(masks, fmt.Sprint(r.Mask))
	}
	p.Remedies = append(p.Remedies, fmt.Sprintf("--node-mask %s holds %s, with %s", strings.Join(masks, ","), capacity(longer),
		roomFor(longer)))
}
