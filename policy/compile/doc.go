// Package compile computes which rules apply to the pods of one node, and updates the result incrementally: a change of
// one object costs only what depends on it. It has no client and does not depend on Open vSwitch; its result is what
// flows are built from, and Judge says what they do to one connection.
//
// # Sets and classes
//
// Rules name peers by selectors and networks. Each selector is one set, however many rules use it, and all networks of
// a rule together are one set. Flows do not match sets. A peer's class says which of the sets in use contain it, and
// rule flows match classes:
//
//	address or network of the peer -> class, longest prefix first; an address without one has class 0
//	pod -> group; pods to which the same ClusterNetworkPolicy rules apply are one group
//	Admin, Baseline: group x class x port -> rule, by conjunction; rule -> verdict
//	NetworkPolicy: pod x class x port -> rule, likewise
//
// So an address is one flow per direction with one number in it, whatever the number of rules, tiers and priorities; a
// new pod in a namespace joins an existing class; and an exception of a network is one flow, a longer prefix with its
// own class, where a conjunction would need the rest of the network, split into prefixes. Only what the rules of the
// node's own pods name has a class, and an address has a flow only if its class differs from that of the network around
// it.
//
// # Conjunctions
//
// A rule matches a connection if pod, class and port match: up to three dimensions, each with one flow per value
// (ovs-fields(7), "conjunction"). Named ports divide a rule: one part for each number that the name has, with the pods
// that have it. For ingress these are the rule's own pods, for egress the peers.
//
// A flow has room for MaxClauses conjunctions. Accept rules that do not fit accept nothing; rules that deny or pass
// always fit: one with too many parts denies all ports of the pods that have the port.
//
// In the tier NetworkPolicy all rules accept and have one rank: their flows are shared. In the other tiers each rule
// has its own rank, which counts all rules of the cluster's policies, so that new pods do not change it.
//
// # Names that last
//
// Rules and classes have numbers, which flows contain. They are hashes of the rule's or class's content, so that a
// restarted agent computes the numbers that the switch already has, and a changed rule is a new rule. If two hashes are
// equal, the later one gets the next free number: then flows may differ after a restart, but nothing else.
package compile
