package reach

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
)

// maxSuspected is how many nodes are probed at once because this node's packets to them are unanswered, and
// suspectedFor for how long.
const maxSuspected, suspectedFor = 4, 15 * time.Second

// suspected are nodes that are not probed, but to which, by the flows' counters, packets are sent without an answer:
// the path may fail, or a pod has nothing to send. Like any other node, one whose probes are late is then probed until
// its state is decided. If there are more than can be probed at once, they take turns.
func (t *session) suspected(asked []string, now time.Time) (nodes []string) {
	unanswered := t.Board.Load().Unanswered
	if len(unanswered) == 0 {
		return nil
	}
	for _, p := range t.nodes {
		if p.NoAgent == "" && !slices.Contains(asked, p.Name) && slices.ContainsFunc(p.PodCIDRs, func(c desired.PeerCIDR) bool {
			_, found := slices.BinarySearchFunc(unanswered, c.Prefix, netip.Prefix.Compare)
			return found
		}) {
			nodes = append(nodes, p.Name)
		}
	}
	if len(nodes) <= maxSuspected {
		return nodes
	}
	first := int(now.Unix()/int64(suspectedFor.Seconds())) * maxSuspected % len(nodes)
	return slices.Concat(nodes, nodes)[first : first+maxSuspected]
}
