package agents

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/diagnose/cluster"
)

// Of a large cluster only those nodes' agents are asked that an Event names, and none of a node that is not ready.
func TestWhomAllAsks(t *testing.T) {
	v := &cluster.View{Warnings: []cluster.Warning{{About: "Node n7", Reason: "PodsNotReached"}, {About: "Node n8", Reason: "NoPodCIDR"}}}
	for i := range mostNodes {
		v.Nodes = append(v.Nodes, cluster.Node{Name: fmt.Sprint("n", i), Ready: "True"})
	}
	v.Nodes[3].Ready = "Unknown"
	if nodes, unasked := whom(v); len(nodes) != mostNodes-1 || unasked != "" {
		t.Errorf("of %d nodes %d are asked: %s", len(v.Nodes), len(nodes), unasked)
	}
	v.Nodes = append(v.Nodes, cluster.Node{Name: "more", Ready: "True"})
	if nodes, unasked := whom(v); !slices.Equal(nodes, []string{"n7"}) || !strings.HasPrefix(unasked, "the agents of 99 nodes") {
		t.Errorf("of %d nodes %v are asked: %s", len(v.Nodes), nodes, unasked)
	}
}
