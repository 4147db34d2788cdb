package reach

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
)

// mostSuspected is how many nodes are asked at once because this node's packets to them are unanswered, and
// suspectedFor how long it is the turn of these.
const mostSuspected, suspectedFor = 4, 15 * time.Second

// suspected are nodes that are not asked but sent packets, and answer none, by what the flows have counted: the path
// may fail, or a pod has nothing to say. One whose packets are late then is asked until that is decided, as any other.
// More than can be asked at once take turns.
func (t *talk) suspected(asked []string, now time.Time) (nodes []string) {
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
	if len(nodes) <= mostSuspected {
		return nodes
	}
	first := int(now.Unix()/int64(suspectedFor.Seconds())) * mostSuspected % len(nodes)
	return slices.Concat(nodes, nodes)[first : first+mostSuspected]
}
