// Package firewall finds out whether the node's nftables rules drop a packet, and which rule does. It changes nothing
// and sends nothing: it reads the rules, as libnftables-json(5) describes them, and follows the packet through them.
//
// It reports a packet as dropped only if that is certain. A condition that it cannot evaluate, such as a mark or a
// rate, makes the answer unknown, never a wrong cause.
//
// It does not read rules of iptables-legacy; it does read those of iptables-nft.
package firewall
