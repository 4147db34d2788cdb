package allocator

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// Upcoming returns at most n addresses of p that Allocate will try next, so that they can be probed before a pod needs
// them. It allocates none of them, and another node may.
func (a *Allocator) Upcoming(p pool.Pool, n int) []Address {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Address
	add := func(addr netip.Addr) bool {
		if p.Contains(addr) {
			out = append(out, address(p, addr))
		}
		return len(out) < n
	}
	if n == 0 || p.Total() == 0 {
		return nil
	}
	for _, c := range a.spare[partOf(p)].fresh() {
		if !add(c.addr) {
			return out
		}
	}
	from := p
	if hinted := p.Hinted(); hinted.Total() > 0 {
		from = hinted
	}
	for addr := range from.From(a.cursor(p)) {
		if !add(addr) {
			break
		}
	}
	return out
}
