package compile

import (
	"iter"
	"net/netip"
)

// prefixes are prefixes with a lookup of those that contain an address. The zero value has none.
type prefixes struct {
	count map[netip.Prefix]int
	// lengths counts the prefixes of each length, for IPv4 and IPv6.
	lengths [2][129]int
}

func (x *prefixes) add(p netip.Prefix) {
	if x.count == nil {
		x.count = map[netip.Prefix]int{}
	}
	x.count[p]++
	x.lengths[family(p.Addr())][p.Bits()]++
}

func (x *prefixes) remove(p netip.Prefix) {
	if x.count[p]--; x.count[p] == 0 {
		delete(x.count, p)
	}
	x.lengths[family(p.Addr())][p.Bits()]--
}

// around returns the prefixes that contain p, including p, shortest first.
func (x *prefixes) around(p netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		lengths := &x.lengths[family(p.Addr())]
		for bits := 0; bits <= p.Bits(); bits++ {
			if lengths[bits] == 0 {
				continue
			}
			at := netip.PrefixFrom(p.Addr(), bits).Masked()
			if x.count[at] > 0 && !yield(at) {
				return
			}
		}
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// edges are where networks of sets begin, and where their exceptions begin.
type edges struct {
	prefixes
	at map[netip.Prefix]map[uint32]edge // by the set's number
}

type edge struct {
	set *set
	n   int
}
