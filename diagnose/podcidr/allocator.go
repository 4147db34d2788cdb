package podcidr

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/blocks"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// This file is a model of kube-controller-manager's range allocator (pkg/controller/nodeipam/ipam of Kubernetes 1.36):
// its state right after a start. test/podcidr compares it with the real one.

// MaxMaskDiff is how many bits longer than the cluster CIDR a node's mask may be. kube-controller-manager rejects more
// for IPv6, kubeadm for both families.
const MaxMaskDiff = 16

// newGrid is a grid of free blocks, for a range that kube-controller-manager accepts.
func newGrid(r Range) (*blocks.Grid, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if diff := r.Mask - r.Cluster.Bits(); diff > MaxMaskDiff && r.Cluster.Addr().Is6() {
		return nil, fmt.Errorf("the node mask /%d is %d bits longer than %s; kube-controller-manager accepts at most %d",
			r.Mask, diff, r.Cluster, MaxMaskDiff)
	}
	return blocks.New(r)
}

// start is the allocator right after its start: one grid per range, in which the Service CIDRs that it excludes and the
// nodes' podCIDRs are in use. It does not start if a node's podCIDR number i is not in range number i.
func start(ranges []Range, services []netip.Prefix, nodes []inputs.Node) ([]*blocks.Grid, error) {
	var grids []*blocks.Grid
	for _, r := range ranges {
		g, err := newGrid(r)
		if err != nil {
			return nil, err
		}
		for _, s := range services {
			if s.Overlaps(g.Cluster) {
				if err := g.MarkUsed(s); err != nil {
					return nil, err
				}
			}
		}
		grids = append(grids, g)
	}
	for _, n := range nodes {
		for i, p := range n.PodCIDRs {
			if i >= len(grids) {
				return nil, fmt.Errorf("node %s has %d podCIDRs, but there %s", n.Name, len(n.PodCIDRs),
					report.Count(len(grids), "is 1 cluster CIDR", "are %d cluster CIDRs"))
			}
			if err := grids[i].MarkUsed(p); err != nil {
				return nil, fmt.Errorf("node %s: %w", n.Name, err)
			}
		}
	}
	return grids, nil
}
