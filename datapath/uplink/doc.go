// Package uplink attaches the node's NIC for bridged pods, and restores it. There are two modes. In mode bridge the NIC
// becomes a port of Open vSwitch. In mode steer it stays the host's, and the programs of package steer sort its frames.
// Mode auto is steer where that is possible. Whenever the process is killed, the node's network is recovered: by the
// next start of the agent, by "fairlead-agent uplink restore", or by the next boot.
//
// Both have the bridge br-uplink, connected to the pods' bridge by a patch port. In mode steer the programs hand frames
// over at the bridge's own port, and none of the host's configuration moves (steering.go). In mode bridge:
//
// While attached, the NIC is a port of the bridge br-uplink, which is standalone: it forwards like any switch (NORMAL)
// and has no controller. The bridge's own port, also called br-uplink, has the NIC's MAC and all that the host had on
// the NIC: addresses, routes, rules, neighbours, network parameters. A patch port leads to the pods' bridge. The NIC
// keeps its name and stays up all the time.
//
// Steps (next.go) lead from detached to attached, and undoing them leads back. Before each step the journal is written,
// with all that is needed to go back. The pure function Next derives the next step from the journal and the observed
// state; nothing else records how far an attach has progressed.
//
// Fairlead's are: the rows of package rows, with the devices that Open vSwitch creates for them; the nft table
// fairlead-uplink, which on the userspace datapath keeps the kernel from processing the NIC's frames a second time;
// what the journal records on br-uplink; and the programs of package steer. Nothing else on the NIC is Fairlead's: what
// is restored is the host's.
//
// All functions act on the network namespace of the calling thread.
package uplink
