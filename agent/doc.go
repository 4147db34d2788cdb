// Package agent is the node's brain. Data flows one way:
//
//	inputs (Nodes, Pods, Namespaces; attachments in OVSDB; the transport interface)
//	   -> Desire(Inputs) Desired             pure: the same inputs give the same value
//	   -> appliers: ovsdb, link, route, nat, openflow     observe, diff, do
//
// One goroutine, the loop (loop.go), writes the node. A CNI ADD (cni.go) does
// its slow and independent part, address and veth, in its own goroutine, and
// hands the loop one record; the loop takes all that wait and answers them
// together. What must outlive the process stands in OVSDB, in the kernel and
// in the lease directory, each marked as ours (see package datapath), so an
// agent that starts with an empty memory computes the same Desired and changes
// nothing.
package agent
