package hoststate

import (
	"bytes"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// RuleOn returns the rule that names from as one that names to.
func RuleOn(o Object, from, to Iface) Object {
	return o.edit(func(head []byte) {
		binary.NativeEndian.PutUint32(head[8:], binary.NativeEndian.Uint32(head[8:])&fraInvert)
	}, func(a attr) []byte {
		if (a.typ == fraIIF || a.typ == fraOIF) && cString(a.value) == from.Name {
			return append([]byte(to.Name), 0)
		}
		return a.value
	})
}

// HasRule reports whether want is among have.
func HasRule(have []Object, want Object) bool {
	plain := func(o Object) string { return RuleOn(o, Iface{}, Iface{}).Describe(nil) }
	return slices.ContainsFunc(have, func(o Object) bool { return plain(o) == plain(want) })
}

// MoveRules makes the rules that name from name to instead. A rule may already be moved, or gone.
func MoveRules(rules []Object, from, to Iface) error {
	have, err := List(Rule)
	if err != nil {
		return err
	}
	return each("moving", rules, func(o Object) error {
		if now := RuleOn(o, from, to); !HasRule(have, now) {
			if err := now.ensure(); err != nil {
				return err
			}
		}
		return RuleOn(o, Iface{}, Iface{}).remove()
	})
}

// neighbourOn returns a neighbour as a request for another interface and state.
func neighbourOn(o Object, to Iface, state uint16) Object {
	return o.edit(func(head []byte) {
		binary.NativeEndian.PutUint32(head[4:], uint32(to.Index))
		binary.NativeEndian.PutUint16(head[8:], state)
	}, func(a attr) []byte {
		if a.typ == unix.NDA_CACHEINFO || a.typ == unix.NDA_PROBES {
			return nil
		}
		return a.value
	})
}

// PutNeighbours adds permanent neighbours and proxies on an interface.
func PutNeighbours(list []Object, to Iface) error {
	return each("adding", list, func(o Object) error {
		if !to.Supports(o) {
			return nil
		}
		return neighbourOn(o, to, o.state()).add(unix.NLM_F_REPLACE)
	})
}

// HasNeighbours reports whether the interface has all permanent neighbours and proxies of the list.
func HasNeighbours(list []Object, on Iface) (bool, error) {
	have, err := permanentNeighboursOf(on)
	if err != nil {
		return false, err
	}
	for _, want := range list {
		if on.Supports(want) && !slices.ContainsFunc(have, want.sameNeighbour) {
			return false, nil
		}
	}
	return true, nil
}

func (o Object) sameNeighbour(other Object) bool {
	return o.header()[10] == other.header()[10] && bytes.Equal(o.attr(unix.NDA_DST), other.attr(unix.NDA_DST)) &&
		bytes.Equal(o.attr(unix.NDA_LLADDR), other.attr(unix.NDA_LLADDR))
}

// CopyLiveNeighbours copies the neighbours that from has resolved to to, so the first packets need no resolution. A
// failure costs only one resolution on the wire, so it is not reported.
func CopyLiveNeighbours(from, to Iface) {
	const live = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE
	all, err := List(Neighbour)
	if err != nil {
		return
	}
	for _, o := range all {
		if o.isOn(from) && o.state()&live != 0 {
			_ = neighbourOn(o, to, unix.NUD_REACHABLE).add(unix.NLM_F_REPLACE)
		}
	}
}
