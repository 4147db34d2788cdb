// Package policy has what NetworkPolicies and ClusterNetworkPolicies say, as values, and how these are read from the
// objects of the Kubernetes API. It has no client and knows no flows. Package policy/compile works out which of the
// rules apply to the pods of a node.
//
// # Tiers
//
// A connection is judged once as egress of its source and once as ingress of its destination. In each direction three
// tiers follow each other: Admin, NetworkPolicy, Baseline. In Admin and Baseline rules have an order, and the first one
// that takes the connection decides: Accept and Deny finally, Pass leaves it to the next tier. In NetworkPolicy a pod
// that any policy isolates in this direction may do what one of the rules accepts, and nothing else; for other pods
// Baseline follows, and then everything is accepted.
//
// ClusterNetworkPolicies of equal tier and priority have no order by their specification. Here it is that of their
// names, so that it is the same on every node.
//
// # Fail closed
//
// The API may have a field that this version does not know, or an object may come from a manifest that no API server
// has validated. A rule of a NetworkPolicy that is not understood as a whole accepts nothing. One of a
// ClusterNetworkPolicy accepts nothing, or, if its action is Deny or Pass, denies everything, as its specification
// wants; likewise if the rule has a field of another type than this version knows, which keeps no other rule from being
// read. A NetworkPolicy whose subject is not understood isolates all pods of its namespace and accepts nothing. A
// ClusterNetworkPolicy whose subject or tier is not understood applies to no pod: to deny everything to every pod of
// the cluster would be worse. Policy.Problems names each of these.
//
// # Who is a peer
//
// Selectors select pods, and never those with hostNetwork, which have the addresses of their node. Networks select by
// address, pods too. A named port is a port of the pod that the connection goes to, also where a network selects it;
// what is not a pod has none.
package policy
