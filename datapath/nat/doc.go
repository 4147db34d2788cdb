// Package nat keeps the iptables rules that pods need: leave to be forwarded,
// and the node's address for what they send to the outside. Bridged pods need
// them for what goes through the host, Services above all. What looks like the
// tunnel between nodes is not forwarded for them.
//
// What is ours: the chains FAIRLEAD-POSTROUTING of table nat and
// FAIRLEAD-FORWARD of table filter, for IPv4 and IPv6, with all that is in
// them, and every rule of POSTROUTING and FORWARD that jumps there. No other
// rule is touched.
//
// A chain is read and compared first, and written only when it differs: the
// whole chain and its jump in one commit of iptables-restore, so that no
// packet meets half of it. Both back ends of iptables work, legacy and nft.
//
// All functions act on the network namespace of the calling thread.
package nat
