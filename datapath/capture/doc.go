// Package capture reads the packets of an interface through a packet socket (packet(7)), as tcpdump(8) does. It sees
// what is sent and received, and changes nothing. Its filter runs in the kernel and looks for pod addresses inside
// tunnel packets too. It leaves nothing behind: the socket is closed with the process, and nothing on the node is
// Fairlead's.
package capture
