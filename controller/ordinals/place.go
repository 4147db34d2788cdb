package ordinals

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// Slot is one address of one pod of a StatefulSet. Family is 4 or 6.
type Slot struct{ Ordinal, Family int }

// Choice is an address of the named pool for a Slot.
type Choice struct {
	Slot
	Addr netip.Addr
	Pool string
}

// placing is the input from which slots get addresses. It is pure: what is chosen has yet to be reserved.
type placing struct {
	// pools are in the order in which they are used.
	pools []pool.Pool
	// named are requested addresses.
	named map[Slot]netip.Addr
	// have are the addresses of filled slots.
	have map[Slot]netip.Addr
	// used are all addresses in use, sorted.
	used []netip.Addr
}

// place chooses addresses for slots, which are sorted by ordinal: the requested ones, else those that continue the
// previous block, else a block, else any. rest are the slots without an address. p is consumed.
func (p *placing) place(slots []Slot) (chosen []Choice, rest []Slot) {
	for _, family := range []int{4, 6} {
		byVLAN := map[int][]Slot{} // anyVLAN if the pod has no address yet
		for _, s := range slots {
			if s.Family == family {
				byVLAN[p.vlanOf(s.Ordinal)] = append(byVLAN[p.vlanOf(s.Ordinal)], s)
			}
		}
		for _, vlan := range slices.Sorted(maps.Keys(byVLAN)) {
			some := placed{p, p.poolsIn(family, vlan)}
			chosen, rest = some.named(byVLAN[vlan], chosen, rest)
		}
	}
	return chosen, rest
}

const anyVLAN = -1

// vlanOf is the VLAN of a pod that has an address.
func (p *placing) vlanOf(ordinal int) int {
	for _, family := range []int{4, 6} {
		addr, has := p.have[Slot{ordinal, family}]
		for _, q := range p.pools {
			if r, in := q.RangeOf(addr); has && in {
				return int(r.VLAN)
			}
		}
	}
	return anyVLAN
}

// poolsIn are the pools of a family restricted to a VLAN, or to any VLAN that the other family is in, too.
func (p *placing) poolsIn(family, vlan int) []pool.Pool {
	of := map[int][]uint16{}
	for _, q := range p.pools {
		for _, r := range q.Ranges {
			of[q.Family] = append(of[q.Family], r.VLAN)
		}
	}
	vlans := of[family]
	if other := of[10-family]; len(other) > 0 {
		vlans = slices.DeleteFunc(slices.Clone(vlans), func(v uint16) bool { return !slices.Contains(other, v) })
	}
	if vlan != anyVLAN {
		vlans = []uint16{uint16(vlan)}
	}
	var out []pool.Pool
	for _, q := range p.pools {
		if in := q.InVLAN(vlans...); q.Family == family && in.Total() > 0 {
			out = append(out, in)
		}
	}
	return out
}

// placed chooses from some of the pools.
type placed struct {
	*placing
	from []pool.Pool
}

// named chooses the requested addresses, and others for the slots that request none.
func (p placed) named(slots []Slot, chosen []Choice, rest []Slot) ([]Choice, []Slot) {
	var free []Slot
	for _, s := range slots {
		addr, asks := p.placing.named[s]
		switch q := p.poolOf(addr); {
		case !asks:
			free = append(free, s)
		case q == "" || p.isUsed(addr):
			rest = append(rest, s)
		default:
			chosen = append(chosen, p.choose(s, addr, q))
		}
	}
	if len(free) == 0 {
		return chosen, rest
	}
	first, ok := p.continued(free)
	if !ok {
		first, ok = p.block(free)
	}
	for _, s := range free {
		addr := first
		if !ok {
			addr = p.firstFree()
		} else {
			addr = plus(first, s.Ordinal-free[0].Ordinal)
		}
		if !addr.IsValid() {
			rest = append(rest, s)
			continue
		}
		chosen = append(chosen, p.choose(s, addr, p.poolOf(addr)))
	}
	return chosen, rest
}

// continued is the address of the first of slots if all fit where they would be if all pods had got one block.
func (p placed) continued(slots []Slot) (netip.Addr, bool) {
	for _, s := range slices.SortedFunc(maps.Keys(p.have), func(a, b Slot) int { return a.Ordinal - b.Ordinal }) {
		if s.Family != slots[0].Family {
			continue
		}
		first := plus(p.have[s], slots[0].Ordinal-s.Ordinal)
		return first, p.allFree(first, slots)
	}
	return netip.Addr{}, false
}

// block is the address of the first of slots if all fit in one block.
func (p placed) block(slots []Slot) (netip.Addr, bool) {
	n := slots[len(slots)-1].Ordinal - slots[0].Ordinal + 1
	for _, q := range p.from {
		if first, ok := q.Block(p.used, int64(n)); ok {
			return first, true
		}
	}
	return netip.Addr{}, false
}

// firstFree is the first free address, invalid if there is none.
func (p placed) firstFree() netip.Addr {
	for _, q := range p.from {
		if first, ok := q.Block(p.used, 1); ok {
			return first
		}
	}
	return netip.Addr{}
}

func (p placed) allFree(first netip.Addr, slots []Slot) bool {
	name := p.poolOf(first)
	return name != "" && !slices.ContainsFunc(slots, func(s Slot) bool {
		addr := plus(first, s.Ordinal-slots[0].Ordinal)
		return p.isUsed(addr) || p.poolOf(addr) != name
	})
}

// poolOf is the name of the pool that has an address, or "".
func (p placed) poolOf(addr netip.Addr) string {
	for _, q := range p.from {
		if addr.IsValid() && q.Contains(addr) {
			return q.Name
		}
	}
	return ""
}

func (p *placing) isUsed(addr netip.Addr) bool {
	_, used := slices.BinarySearchFunc(p.used, addr, netip.Addr.Compare)
	return used
}

func (p *placing) choose(s Slot, addr netip.Addr, pool string) Choice {
	i, _ := slices.BinarySearchFunc(p.used, addr, netip.Addr.Compare)
	p.used = slices.Insert(p.used, i, addr)
	p.have[s] = addr
	return Choice{s, addr, pool}
}

// plus is the address n after a, or before it; invalid if there is none.
func plus(a netip.Addr, n int) netip.Addr {
	for ; n > 0; n-- {
		a = a.Next()
	}
	for ; n < 0; n++ {
		a = a.Prev()
	}
	return a
}
