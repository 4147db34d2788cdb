// Package uplink gives pods that have addresses of the underlay their frames from the node's NIC, and undoes it. There
// are two modes. In mode bridge the NIC becomes a port of Open vSwitch. In mode steer it stays the host's, and the
// programs of package steer sort its frames. Mode auto is steer where that is possible. Whatever kills it in between,
// the node is found again: by the next start of the agent, by "fairlead-agent uplink restore", or by the next boot.
//
// In both there is the bridge br-uplink, from which a patch port leads to the bridge of the pods. In mode steer the
// programs hand frames over at the bridge's own port, and nothing of the host's moves (steering.go). In mode bridge:
//
// Attached, the NIC is a port of the bridge br-uplink, which is standalone: it forwards like any switch (NORMAL) and
// nobody programs it. The bridge's own port, also called br-uplink, has the NIC's MAC and all that the host had on the
// NIC: addresses, routes, rules, neighbours, network parameters. A patch port leads to the bridge of the pods. The NIC
// keeps its name and stays up all the time.
//
// Steps (next.go) lead from detached to attached, and their undoing back. Before each step the journal is written, with
// all that is needed to go back. The pure function Next says from the journal and what is observed which step comes
// next; nothing else remembers how far an attach has come.
//
// What is ours: the rows of package rows, with them the devices that Open vSwitch makes; the nft table fairlead-uplink,
// which on the userspace datapath keeps the kernel from answering the NIC's frames a second time; what the journal has
// on record on br-uplink; and the programs of package steer. On the NIC nothing else is ours: what is put back is the
// host's.
//
// All functions act on the network namespace of the calling thread.
package uplink
