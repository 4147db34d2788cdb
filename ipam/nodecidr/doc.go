// Package nodecidr decides which podCIDRs the Nodes of a cluster get, and finds faults in those that they have. It is a
// pure computation; package controller reads and writes the objects.
//
// A podCIDR is claimed first: a claim is an object named by the block, so the API server creates it for one Node and
// rejects all others. Then it is written to the Node, where it is immutable. So two controllers that run at the same
// time, or one that was suspended and resumes, never assign a block twice, and the next one completes what a crashed
// one has begun.
//
// Fairlead owns the claims, and those podCIDRs of Nodes that are claimed. Other podCIDRs of Nodes count as in use.
package nodecidr
