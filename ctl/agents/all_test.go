package agents

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/diagnose/cluster"
)

// In a large cluster only the agents of nodes that an Event names are queried, and no agents of other nodes that are
// not ready; the local node's agent always is.
func TestSelectNodes(t *testing.T) {
	v := &cluster.View{Warnings: []cluster.Warning{{About: "Node n7", Reason: "PodsNotReached"}, {About: "Node n8", Reason: "NoPodCIDR"}}}
	for i := range maxNodes {
		v.Nodes = append(v.Nodes, cluster.Node{Name: fmt.Sprint("n", i), Ready: "True"})
	}
	v.Nodes[3].Ready = "Unknown"
	if nodes, notQueried := selectNodes(v, ""); len(nodes) != maxNodes-1 || notQueried != "the agent of 1 node that is not ready was not queried" {
		t.Errorf("of %d nodes %d are asked: %s", len(v.Nodes), len(nodes), notQueried)
	}
	v.Nodes = append(v.Nodes, cluster.Node{Name: "windows", Ready: "True", NoAgent: "it runs windows"})
	if nodes, _ := selectNodes(v, ""); len(nodes) != maxNodes-1 || slices.Contains(nodes, "windows") {
		t.Errorf("with one that has no agent %d are asked: %v", len(nodes), nodes)
	}
	v.Nodes = append(v.Nodes, cluster.Node{Name: "more", Ready: "True"})
	if nodes, notQueried := selectNodes(v, "n3"); !slices.Equal(nodes, []string{"n3", "n7"}) || !strings.HasPrefix(notQueried, "the agents of 99 nodes") {
		t.Errorf("of %d nodes %v are asked: %s", len(v.Nodes), nodes, notQueried)
	}
}
