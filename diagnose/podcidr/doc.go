// Package podcidr finds out why a node has no podCIDR, or one that it should not
// use, and what would mend it, in numbers.
//
// It is pure: Diagnose and Survey compute from Nodes and Facts. Read is the one
// function that talks to the cluster, and fills Facts with what it may read.
//
// A remedy is told only after it was tried on a model of
// kube-controller-manager's range allocator (allocator.go): the allocator starts
// with the new settings, every node that waits gets a podCIDR, and none of these
// overlaps a podCIDR, the Service CIDR or an address of a node.
package podcidr
