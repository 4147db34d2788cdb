package desired

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// PodCIDRError says why the node can't serve routed pods: its podCIDR is missing, or conflicts with other addresses. It
// ends a start with exit code 78.
type PodCIDRError struct {
	Reason string
	// Waited is how long the agent has waited for a usable one, if it gave up; else 0.
	Waited time.Duration
}

func (e *PodCIDRError) Error() string {
	if e.Waited == 0 {
		return e.Reason
	}
	return fmt.Sprintf("%s. Waited %s for it (podCIDRWait)", strings.TrimSuffix(e.Reason, "."), e.Waited)
}

func podCIDRErrorf(format string, args ...any) error {
	return &PodCIDRError{Reason: fmt.Sprintf(format, args...)}
}

// CheckOwn returns the Node of the named node, or a *PodCIDRError that says why
// its podCIDRs can't be used and what to change. source names where Nodes come
// from.
func CheckOwn(name string, nodes map[string]inputs.Node, source string) (inputs.Node, error) {
	own, found := nodes[name]
	if !found {
		return own, podCIDRErrorf("there is no Node %s in %s (Nodes there: %s). "+
			"In a cluster, kubelet creates it; or name this node with --node-name or NODE_NAME", name, source, someNames(nodes))
	}
	if len(own.PodCIDRs) == 0 {
		return own, podCIDRErrorf("node %s has no podCIDR: spec.podCIDR and spec.podCIDRs of its Node are empty in %s. "+
			"Give it a range that no other node has (%s)", name, source, someTaken(nodes))
	}
	for _, p := range own.PodCIDRs {
		if p.Addr().BitLen()-p.Bits() < 2 {
			return own, podCIDRErrorf("podCIDR %s of node %s has no room for pods: "+
				"network, gateway and broadcast address fill it. Give the node a range of at least /%d",
				p, name, p.Addr().BitLen()-2)
		}
	}
	if c, other, clash := firstConflict(own, nodes); clash {
		return own, podCIDRErrorf("%s. Pods of both nodes would get the same addresses: give one of the two "+
			"another range (spec.podCIDR cannot be changed in place: delete the Node %s or %s and create it again)",
			c, name, other)
	}
	return own, nil
}

// CheckReserved returns a *PodCIDRError when a podCIDR of own overlaps a network of the transport interface or holds an
// address that the node needs: the gateway's route would capture packets for them.
func CheckReserved(own inputs.Node, t link.Transport, needed []link.Needed) error {
	for _, p := range own.PodCIDRs {
		for _, s := range t.Subnets {
			if p.Overlaps(s) {
				return podCIDRErrorf("podCIDR %s of node %s overlaps %s, the network of %s: the node would lose its route to "+
					"other nodes. Give the node another podCIDR", p, own.Name, s, t.Name)
			}
		}
		for _, n := range needed {
			// A gateway that was renamed in the config still has its old address.
			former := n.Internal && n.Addr == p.Addr().Next()
			if p.Contains(n.Addr) && !former {
				return podCIDRErrorf("podCIDR %s of node %s holds %s, %s on this node, which would be cut off. Give the node "+
					"another podCIDR, or, if another network plugin left it behind, remove that", p, own.Name, n.Addr, n.What)
			}
		}
	}
	return nil
}

// firstConflict finds, by name, the first other node whose podCIDRs overlap
// those of own, or whose address lies in them.
func firstConflict(own inputs.Node, nodes map[string]inputs.Node) (sentence, other string, found bool) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		for _, p := range own.PodCIDRs {
			for _, a := range n.Addresses {
				if p.Contains(a) {
					return fmt.Sprintf("podCIDR %s of node %s holds the address %s of node %s", p, own.Name, a, name),
						name, true
				}
			}
			if name == own.Name {
				continue
			}
			for _, q := range n.PodCIDRs {
				if p.Overlaps(q) {
					return overlapSentence(own.Name, p, name, q), name, true
				}
			}
		}
	}
	return "", "", false
}

// OutsidePodCIDRs are the names of the routed pods with an address outside of the node's podCIDRs, as when these were
// changed while the pods ran.
func OutsidePodCIDRs(own inputs.Node, attachments []api.Attachment) []string {
	inside := func(a netip.Prefix) bool {
		return slices.ContainsFunc(own.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a.Addr()) })
	}
	var pods []string
	for _, a := range attachments {
		if !a.Bridged && slices.ContainsFunc(a.Addrs, func(p netip.Prefix) bool { return !inside(p) }) {
			pods = append(pods, a.Pod())
		}
	}
	slices.Sort(pods)
	return pods
}

// OutsideError says what OutsidePodCIDRs are cut off from; nil when there are none.
func OutsideError(own inputs.Node, pods []string) error {
	if len(pods) == 0 {
		return nil
	}
	return fmt.Errorf("pods have addresses outside of the podCIDRs %v of node %s, which must have changed, and are cut "+
		"off from the node and from other nodes: delete them, so that they are recreated (%s)",
		own.PodCIDRs, own.Name, report.Some(pods))
}

func overlapSentence(a string, p netip.Prefix, b string, q netip.Prefix) string {
	if p == q {
		return fmt.Sprintf("node %s has the podCIDR %s, and so has node %s", a, p, b)
	}
	return fmt.Sprintf("podCIDR %s of node %s overlaps %s of node %s", p, a, q, b)
}

// cidrClaim is one podCIDR and the node that has it.
type cidrClaim struct {
	prefix netip.Prefix
	node   *inputs.Node
}

// conflictingNodes returns for each node whose podCIDR must not be used a sentence that says why. Of two nodes that
// claim the same range, the one created first keeps it, so that a new node takes nothing from running pods; equal or
// missing times are decided by name. Ranges in taken (the node's own podCIDRs and the underlay) and what this node
// needs win over every node.
func conflictingNodes(nodes []*inputs.Node, taken []cidrClaim, needed []link.Needed) map[string]string {
	refused := map[string]string{}
	claims := append(make([]cidrClaim, 0, len(taken)+2*len(nodes)), taken...)
	needed = slices.Clone(needed)
	for _, n := range nodes {
		for _, a := range n.Addresses {
			needed = append(needed, link.Needed{Addr: a, What: "the address of node " + n.Name})
		}
		for _, p := range n.PodCIDRs {
			claims = append(claims, cidrClaim{p, n})
		}
	}
	byAddr := func(n link.Needed, a netip.Addr) int { return n.Addr.Compare(a) }
	slices.SortStableFunc(needed, func(a, b link.Needed) int { return byAddr(a, b.Addr) })
	for _, c := range claims[len(taken):] {
		i, _ := slices.BinarySearchFunc(needed, c.prefix.Addr(), byAddr)
		if i < len(needed) && c.prefix.Contains(needed[i].Addr) {
			refused[c.node.Name] = fmt.Sprintf("podCIDR %s of node %s holds %s, %s",
				c.prefix, c.node.Name, needed[i].Addr, needed[i].What)
		}
	}
	if !anyOverlap(claims) {
		return refused
	}
	slices.SortStableFunc(claims[len(taken):], func(a, b cidrClaim) int {
		return cmp.Or(a.node.Created.Compare(b.node.Created), cmp.Compare(a.node.Name, b.node.Name))
	})
	var kept []cidrClaim
	for i, c := range claims {
		j := slices.IndexFunc(kept, func(k cidrClaim) bool {
			return k.prefix.Overlaps(c.prefix) && k.node.Name != c.node.Name
		})
		if j >= 0 && i >= len(taken) {
			refused[c.node.Name] = overlapSentence(c.node.Name, c.prefix, kept[j].node.Name, kept[j].prefix)
			continue
		}
		kept = append(kept, c)
	}
	return refused
}

// anyOverlap is a quick check for the common case: sorted by address, a prefix that overlaps another overlaps the one
// before it or an ancestor of it.
func anyOverlap(claims []cidrClaim) bool {
	sorted := make([]netip.Prefix, 0, len(claims))
	for _, c := range claims {
		sorted = append(sorted, c.prefix)
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].Overlaps(sorted[i]) {
			return true
		}
	}
	return false
}

func someNames(nodes map[string]inputs.Node) string {
	return report.Some(slices.Sorted(maps.Keys(nodes)))
}

func someTaken(nodes map[string]inputs.Node) string {
	var taken []string
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		for _, p := range nodes[name].PodCIDRs {
			taken = append(taken, fmt.Sprintf("%s by %s", p, name))
		}
	}
	return "taken: " + report.Some(taken)
}
