// Package capture reads the packets of an interface by a packet socket (packet(7)), as tcpdump(8) does: it sees what
// comes and goes, and changes nothing. Its filter runs in the kernel, and looks into tunnel packets for the addresses
// of pods. Nothing stays behind: a socket ends with the process, and nothing on the node is ours.
package capture
