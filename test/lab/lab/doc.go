// Package lab runs the nodes of a cluster on one machine: each node has its own namespaces, Open vSwitch, agent and
// default paths, all are on one underlay network, and a runner creates and removes pods as kubelet and a container
// runtime would. The command bin/lab is a thin layer over it; tests use it directly. Package underlay has the drawing
// of the network.
//
// Everything of a lab is inside its hosts' namespaces (package host) or in its directory, a tmpfs of its own. Nothing
// of it is in the machine's network, so all labs have the same addresses and any number of them can run side by side.
// The directory identifies what belongs to the lab: processes by the namespaces that are pinned there, the runner by
// its record and its command line.
package lab
