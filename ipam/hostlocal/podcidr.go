package hostlocal

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// podCIDR is one range to allocate from, without host bits.
type podCIDR netip.Prefix

// podCIDRsOf checks the caller's ranges: at most one per family, each with room for a gateway and at least one pod.
func podCIDRsOf(prefixes []netip.Prefix) ([]podCIDR, error) {
	if len(prefixes) == 0 {
		return nil, fmt.Errorf("the node has no podCIDR")
	}
	var out []podCIDR
	seen := map[bool]netip.Prefix{}
	for _, p := range prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("podCIDR %s is not an IPv4 or IPv6 range", p)
		}
		if other, twice := seen[p.Addr().Is4()]; twice {
			return nil, fmt.Errorf("podCIDRs %s and %s are of one family: a pod gets one address of each family", other, p)
		}
		seen[p.Addr().Is4()] = p
		if smallest := p.Addr().BitLen() - 2; p.Bits() > smallest {
			return nil, fmt.Errorf("podCIDR %s has no room for a gateway and a pod: /%d is the smallest that has",
				p, smallest)
		}
		out = append(out, podCIDR(p.Masked()))
	}
	return out, nil
}

func (c podCIDR) String() string { return netip.Prefix(c).String() }

// gateway is the first address after the network's own.
func (c podCIDR) gateway() netip.Addr { return netip.Prefix(c).Addr().Next() }

// usable reports whether a pod may have addr.
func (c podCIDR) usable(addr netip.Addr) bool {
	p := netip.Prefix(c)
	if !p.Contains(addr) || addr == p.Addr() || addr == c.gateway() {
		return false
	}
	return !addr.Is4() || p.Contains(addr.Next()) // not the broadcast address
}

// size is the number of usable addresses, or the largest number there is.
func (c podCIDR) size() uint64 {
	p := netip.Prefix(c)
	hostBits := p.Addr().BitLen() - p.Bits()
	switch {
	case p.Addr().Is4():
		return 1<<hostBits - 3
	case hostBits < 64:
		return 1<<hostBits - 2
	default:
		return math.MaxUint64
	}
}

// rangeSet converts c for the library. Its defaults for start, end and gateway agree with usable.
func (c podCIDR) rangeSet() (*allocator.RangeSet, error) {
	set := &allocator.RangeSet{{Subnet: types.IPNet(*netaddr.IPNet(netip.Prefix(c)))}}
	if err := set.Canonicalize(); err != nil {
		return nil, fmt.Errorf("podCIDR %s: %w", c, err)
	}
	return set, nil
}

// FullError: a podCIDR has no free address.
type FullError struct {
	PodCIDR netip.Prefix
	Used    uint64 // addresses in use
	Total   uint64 // addresses that pods may have
}

func (e *FullError) Error() string {
	return fmt.Sprintf("podCIDR %s is full: %d of %d addresses in use; delete pods on this node "+
		"or give it a larger podCIDR", e.PodCIDR, e.Used, e.Total)
}
