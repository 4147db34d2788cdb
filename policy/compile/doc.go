// Package compile works out which rules apply to the pods of one node, and keeps the outcome up to date by key: a
// change of one object costs what depends on it. It has no client and knows no Open vSwitch; what it returns is what
// flows are made of, and Judge says what they do to one connection.
//
// # Sets and classes
//
// Rules name peers by selectors and networks. Each selector is one set, however many rules use it, and the networks of
// a rule are one together. Flows do not name sets. A peer's class says which of the sets in use it is part of, and the
// classes are what the flows of rules match:
//
//	address or network of the peer -> class, the longest prefix first; an address that has none is of class 0
//	pod -> group; pods that the same rules of ClusterNetworkPolicies apply to are one
//	Admin, Baseline: group x class x port -> rule, by conjunction; rule -> verdict
//	NetworkPolicy: pod x class x port -> rule, likewise
//
// So an address is one flow per direction with one number in it, whatever the number of rules, tiers and priorities; a
// pod that comes to a namespace joins a class that exists; and an exception of a network is one flow, a longer prefix
// with a class of its own, where a conjunction would need what is left of the network, cut into prefixes. Only what
// the rules of the node's own pods name has a class, and an address has a flow only if its class is not that of the
// network around it.
//
// # Conjunctions
//
// A rule takes a connection if pod, class and port are in it: up to three dimensions, which are one flow per value each
// (ovs-fields(7), "conjunction"). Named ports divide a rule: one part for each number that the name has, with the pods
// that have it. As ingress these are the rule's own pods, as egress the peers.
//
// A flow has room for MaxClauses conjunctions. What does not fit accepts nothing; rules that deny or pass never come to
// more than fit: one of too many parts denies all ports of the pods that have the port.
//
// In the tier NetworkPolicy all rules accept, and have one rank: their flows are shared. In the other tiers each rule
// has a rank of its own, which counts all rules of the cluster's policies, so that no pod's coming changes it.
//
// # Names that last
//
// Rules and classes have numbers, which flows carry. They are hashes of what the rule or class is, so that an agent
// without memory computes the numbers that the switch has already, and a rule that changes is another rule. If two
// hashes are equal, the later one takes the next free number: after a restart flows may differ then, and nothing else.
package compile
