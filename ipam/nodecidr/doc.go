// Package nodecidr decides which podCIDRs the Nodes of a cluster get, and says what is wrong with those that they have.
// It computes from values; package controller reads and writes them.
//
// A Node's podCIDR is first claimed: a claim is an object named by the block, so that the API server lets one Node have
// it and tells all others that it is taken. Then it is written to the Node, where it can't be changed any more. So two
// controllers that work at once, or one that slept and wakes up, give no block twice, and what one has begun the next
// one ends.
//
// Ours are the claims, and what stands in Nodes as claimed. Other podCIDRs of Nodes are taken, whoever gave them.
package nodecidr
