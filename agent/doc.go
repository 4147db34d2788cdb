// Package agent starts the parts of the node agent in the order of their dependencies, and ends them. Its packages,
// from the one that starts the others down to those that they depend on:
//
//	agent         starts the parts below; uninstall takes all of it off a node again
//	pods          what each CNI verb means; what crashes leave behind
//	addresses     addresses of IPPools: allocation, probing, pending releases, reclaim
//	node          the loop, the only writer of the node; its start
//	apply         the appliers: observe, compare, do
//	uplink        keeps the node's NIC attached
//	events        Warning Events on the Node, on Pods and on policies
//	attachments   which pods' interfaces are on this node, and who works on them
//	status        what the last round left, over HTTP and in metrics
//	desired       what the node should look like: pure
//	rundir, signal
package agent
