package clusterip

import (
	"net/netip"
)

// owner is what an ID is for.
type owner struct {
	to       netip.AddrPort
	protocol uint8
}

// IDs are numbers by owner. They are derived from the owner, so an agent that starts uses the ones that the switch has;
// if two would be equal, which is rare, the second gets the next number.
type IDs struct {
	byID  map[uint32]owner
	moved map[owner]uint32 // those that did not get their derived number
}

// Of returns the ID of a port, which has at most 31 bits and is not 0.
func (i *IDs) Of(to netip.AddrPort, protocol uint8) uint32 {
	if i.byID == nil {
		i.byID, i.moved = map[uint32]owner{}, map[owner]uint32{}
	}
	o := owner{to, protocol}
	if id, had := i.moved[o]; had {
		return id
	}
	first := firstID(to, protocol)
	id := first
	for other, taken := i.byID[id]; taken && other != o || id == 0; other, taken = i.byID[id] {
		id = (id + 1) & 0x7fffffff
	}
	if i.byID[id] = o; id != first {
		i.moved[o] = id
	}
	return id
}

// firstID is the ID that a port gets unless another has it: FNV-1a of address, port and protocol.
func firstID(to netip.AddrPort, protocol uint8) uint32 {
	var b [19]byte
	key, h := b[:0], uint32(2166136261)
	if a := to.Addr(); a.Is4() {
		four := a.As4()
		key = append(key, four[:]...)
	} else {
		sixteen := a.As16()
		key = append(key, sixteen[:]...)
	}
	for _, x := range append(key, byte(to.Port()>>8), byte(to.Port()), protocol) {
		h = (h ^ uint32(x)) * 16777619
	}
	return h & 0x7fffffff
}

// Forget frees the ID of a port for another.
func (i *IDs) Forget(to netip.AddrPort, protocol uint8) {
	delete(i.byID, i.Of(to, protocol))
	delete(i.moved, owner{to, protocol})
}
