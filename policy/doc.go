// Package policy has NetworkPolicies and ClusterNetworkPolicies as values, and reads them from Kubernetes API objects.
// It has no client and no flows. Package policy/compile computes which rules apply to the pods of a node.
//
// # Tiers
//
// A connection is judged once as egress of its source and once as ingress of its destination. Each direction has three
// tiers in order: Admin, NetworkPolicy, Baseline. In Admin and Baseline rules are ordered, and the first one that
// matches the connection decides: Accept and Deny are final, Pass leaves it to the next tier. In NetworkPolicy a pod
// that any policy isolates in this direction may do what one of the rules accepts, and nothing else; for other pods
// Baseline follows, and then everything is accepted.
//
// The specification defines no order for ClusterNetworkPolicies of equal tier and priority. Here they are ordered by
// name, so that the order is the same on every node.
//
// # Fail closed
//
// The API may have a field that this version does not support, or an object may come from a manifest that no API server
// has validated. A NetworkPolicy rule that is not completely understood accepts nothing. A ClusterNetworkPolicy rule
// accepts nothing, or, if its action is Deny or Pass, denies everything, as its specification requires; likewise if the
// rule has a field of another type than this version supports, which does not keep other rules from being read. A
// NetworkPolicy whose subject is not understood isolates all pods of its namespace and accepts nothing. A
// ClusterNetworkPolicy whose subject or tier is not understood applies to no pod: denying everything for every pod of
// the cluster would be worse. Policy.Problems lists each of these.
//
// # Who is a peer
//
// Selectors select pods, but never those with hostNetwork, which have their node's addresses. Networks select by
// address, including pods. A named port is a port of the connection's destination pod, even if a network selects it;
// anything else has no named ports.
package policy
