// Package nat maintains the iptables rules that pods need: accepting forwarded packets, and masquerading what they send
// to the outside. Bridged pods need them for traffic through the host, above all to Services. Packets of pods that look
// like tunnel packets are not forwarded, and packets to a Service that nothing has translated are rejected.
//
// Rules that accept are in tables nat and filter, after the rules of others. Rules that drop are in table mangle,
// before theirs: every packet traverses it before nat and filter, so no rule there bypasses it, and DROP is final in
// any table. They are in the chains FORWARD and POSTROUTING, as only there a packet to a Service has its backend's
// address.
//
// Tunnel packets are accepted in and out at the node's own end, before the rules of others, and are not tracked.
//
// Fairlead's are: the chains FAIRLEAD-POSTROUTING of tables nat and mangle, FAIRLEAD-FORWARD of tables filter and
// mangle, FAIRLEAD-INPUT of table filter, FAIRLEAD-OUTPUT of tables filter and raw and FAIRLEAD-PREROUTING of table
// raw, for IPv4 and IPv6, with all their rules, and every rule of the corresponding built-in chains that jumps there.
// No other rule is touched.
//
// A chain is read and compared first, and written only when it differs: the whole chain and its jump in one
// iptables-restore commit, so no packet meets half of it. Both iptables backends work, legacy and nft. With nft nothing
// is read again until some rule of the namespace has changed.
//
// Pod connections that began while the rules were missing would stay untranslated: their conntrack entries are deleted
// when the rules are restored, and at startup.
//
// All functions act on the network namespace of the calling thread.
package nat
