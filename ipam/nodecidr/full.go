package nodecidr

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
	"github.com/fairlead-cni/fairlead/ipam/blocks"
)

// full is why no block of a family is left. Of the causes, cause has no numbers.
type full struct{ text, cause string }

// wait lists a Node for which families have no block left, and what helps.
func (m *planner) wait(n *Node, missing []int) {
	var texts, causes []string
	for _, f := range missing {
		one, known := m.fulls[f]
		if !known { // the same for all Nodes that wait
			one = m.full(f)
			m.fulls[f] = one
		}
		texts, causes = append(texts, one.text), append(causes, one.cause)
	}
	m.plan.Waiting = append(m.plan.Waiting, Waiting{n.Name, n.UID, strings.Join(texts, "; ") +
		". Add another CIDR to nodeIPAM.clusterCIDRs of fairlead-controller, or delete Nodes that are gone",
		strings.Join(causes, "; ")})
}

func (m *planner) full(family int) full {
	var ranges []string
	total := uint64(0)
	for _, r := range m.Ranges {
		if netaddr.Family(r.Cluster.Addr()) == family {
			ranges = append(ranges, r.String())
			total += r.Blocks()
		}
	}
	cause := fmt.Sprintf("IPv%d", family)
	byPools, byDeleted := m.byPools(family), m.byDeleted(family)
	if byPools != "" {
		cause += ", IPPools"
	}
	if byDeleted != "" {
		cause += ", deleted Nodes"
	}
	return full{fmt.Sprintf("no IPv%d podCIDR is left: %s has %d, and all are in use%s%s", family,
		strings.Join(ranges, " and "), total, byPools, byDeleted), cause}
}

// poolsNamed is how many pools a message names.
const poolsNamed = 3

// byPools says how many blocks of a family have addresses of pools, and of which.
func (m *planner) byPools(family int) string {
	var taken uint64
	names := map[string]bool{}
	for _, g := range m.grids {
		if netaddr.Family(g.Cluster.Addr()) != family {
			continue
		}
		pools := blocks.Grid{Range: g.Range}
		for name, prefixes := range m.Pools {
			for _, p := range prefixes {
				if p.Overlaps(g.Cluster) && pools.MarkUsed(p) == nil {
					names[name] = true
				}
			}
		}
		taken += pools.Blocks() - pools.Free()
	}
	sorted := slices.Sorted(maps.Keys(names))
	switch n := len(sorted); {
	case n == 0:
		return ""
	case n == 1:
		return fmt.Sprintf(", %d by IPPool %s", taken, sorted[0])
	case n > poolsNamed:
		return fmt.Sprintf(", %d by IPPools %s and %d more", taken, strings.Join(sorted[:poolsNamed], ", "), n-poolsNamed)
	}
	return fmt.Sprintf(", %d by IPPools %s", taken, strings.Join(sorted, ", "))
}

// byDeleted says how many blocks of a family are claimed for Nodes that are gone.
func (m *planner) byDeleted(family int) string {
	n := 0
	for _, c := range m.Claims {
		if m.byUID[c.UID] == nil && netaddr.Family(c.PodCIDR.Addr()) == family &&
			slices.ContainsFunc(m.grids, func(g *blocks.Grid) bool { return g.Cluster.Overlaps(c.PodCIDR) }) {
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 of a deleted Node whose pods may still run"
	}
	return fmt.Sprintf(", %d of deleted Nodes whose pods may still run", n)
}
