package lab

import (
	"testing"

	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

func TestNodeManifest(t *testing.T) {
	node := nodeManifest(underlay.Network{Family: underlay.IPv6}, 3)
	if node.Name != "node3" || node.Spec.PodCIDR != "fd77:0:0:3::/64" || len(node.Spec.PodCIDRs) != 1 ||
		node.Status.Addresses[0].Address != "fd77::13" {
		t.Errorf("node 3 of an IPv6 lab: %+v", node)
	}
}
