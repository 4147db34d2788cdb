package clusterip

import (
	"encoding/binary"
	"net/netip"
)

// Endpoints are endpoints of one family, in order, packed to save memory.
type Endpoints string

// Pack packs list, whose endpoints are of one family.
func Pack(list []netip.AddrPort) Endpoints {
	b := make([]byte, 0, 6*len(list))
	for _, e := range list {
		b = binary.BigEndian.AppendUint16(append(b, e.Addr().AsSlice()...), e.Port())
	}
	return Endpoints(b)
}

// List unpacks the endpoints.
func (e Endpoints) List(ipv4 bool) []netip.AddrPort {
	size := 16
	if ipv4 {
		size = 4
	}
	out := make([]netip.AddrPort, 0, len(e)/(size+2))
	for rest := []byte(e); len(rest) > size; rest = rest[size+2:] {
		a, _ := netip.AddrFromSlice(rest[:size])
		out = append(out, netip.AddrPortFrom(a, binary.BigEndian.Uint16(rest[size:])))
	}
	return out
}
