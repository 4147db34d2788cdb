// Package nat keeps Fairlead's iptables rules: packets of routed pods to the
// outside get the node's address, and packets from and to pods may be
// forwarded even where the node drops by default (Docker sets that).
//
// What is ours: the chains Postrouting in table nat and Forward in table
// filter, in iptables and ip6tables, with everything in them, and the rules
// that jump to them. The jumps are appended, so an administrator's own rules
// come first and win. Nothing else is touched.
//
// All functions act on the network namespace of the calling process.
package nat
