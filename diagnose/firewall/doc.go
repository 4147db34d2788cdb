// Package firewall says whether the node's nftables rules drop a packet, and which rule does. It changes nothing and
// sends nothing: it reads the rules, as libnftables-json(5) describes them, and follows the packet through them.
//
// It says that a packet is dropped only where that is certain. What it cannot tell, such as a mark or a rate, makes the
// answer unknown, never a wrong cause.
//
// Rules of iptables-legacy are not among them; those of iptables-nft are.
package firewall
