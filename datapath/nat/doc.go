// Package nat keeps the iptables rules that pods need: leave to be forwarded,
// and the node's address for what they send to the outside. Bridged pods need
// them for what goes through the host, Services above all. What looks like the
// tunnel between nodes is not forwarded for them, and what is for a Service that
// nothing has translated is refused.
//
// What lets pass is in tables nat and filter, behind the rules of others. What
// drops is in table mangle, before theirs: no packet comes to tables nat and
// filter before, so no rule there lets one past, and to DROP is final in any.
// It is in the chains FORWARD and POSTROUTING, as only there a packet to a
// Service has its backend's address.
//
// The tunnel itself is let in and out at the node's own end, before the rules of
// others, and is not tracked.
//
// What is ours: the chains FAIRLEAD-POSTROUTING of tables nat and mangle,
// FAIRLEAD-FORWARD of tables filter and mangle, FAIRLEAD-INPUT of table filter,
// FAIRLEAD-OUTPUT of tables filter and raw and FAIRLEAD-PREROUTING of table raw,
// for IPv4 and IPv6, with all that is in them, and every rule of the built-in
// chains of these names that jumps there. No other rule is touched.
//
// A chain is read and compared first, and written only when it differs: the
// whole chain and its jump in one commit of iptables-restore, so that no
// packet meets half of it. Both back ends of iptables work, legacy and nft. With
// nft nothing is read again before some rule of the namespace has changed.
//
// Connections of pods that have begun while the rules were not there would stay
// as they are: conntrack forgets them when the rules are back, and at the start.
//
// All functions act on the network namespace of the calling thread.
package nat
