package openflow

import (
	"hash/maphash"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/seen"
)

// listing is a list of the switch's Units, as it is received. What is as wanted is not kept.
type listing struct {
	*units
	expected *seen.Set // nil until there is something
	text     []byte    // of the last flow
}

// relist discards what the switch had.
func (u *units) relist() *listing {
	u.listed, u.listedGroups, u.differ = map[Key]*knownFlow{}, nil, map[uint32]struct{}{}
	u.sent, u.dirty = false, map[uint32]unitFunc{}
	return &listing{units: u}
}

// isExpected reports whether a flow or a group is expected.
func (l *listing) isExpected(p seen.Part) bool {
	if l.expected == nil {
		l.expected = seen.New(2 * len(l.want))
		for id, wanted := range l.want {
			unit := wanted.build()
			for i := range unit.Flows {
				l.expected.Expect(unit.Flows[i].hashTo, id)
			}
			if len(unit.Buckets) > 0 {
				l.expected.Expect(unit.group(id).HashTo, id)
			}
		}
	}
	return l.expected.See(p)
}

func (f *Flow) hashTo(h *maphash.Hash) {
	maphash.WriteComparable(h, [...]uint16{uint16(f.Table), f.Priority, uint16(f.Kind)})
	for o := range f.Match.fields { // a whole Match would be allocated on the heap
		maphash.WriteComparable(h, o.field)
		maphash.WriteComparable(h, o.bits)
	}
	for _, a := range f.Actions {
		maphash.WriteComparable(h, a)
	}
}

// flow accepts a flow, unless it belongs to no Unit.
func (l *listing) flow(x *listed) bool {
	if x.unsupported || !l.owns(&x.flow) {
		return false
	}
	cookie, text := x.flow.cookieIn(l.text)
	l.text = text
	if altered := x.limited || x.cookie != cookie; altered || !l.isExpected(x.flow.hashTo) {
		flow := x.flow // a copy, so the list is not kept
		l.listed[flow.Key()] = &knownFlow{flow: &flow, altered: altered}
	}
	return true
}

func (l *listing) group(g nx.Listed) {
	if !g.Known || !l.isExpected(g.HashTo) {
		l.listedGroups = append(l.listedGroups, g)
	}
}

func (l *listing) end() {
	if l.expected == nil {
		for id := range l.want {
			l.differ[id] = struct{}{}
		}
		return
	}
	for id := range l.expected.Incomplete() {
		l.markDiffering(id, l.expected)
	}
}

// markDiffering records that a Unit differs, and lists what the switch has of it: what was seen, or all.
func (u *units) markDiffering(id uint32, s *seen.Set) {
	if _, held := u.differ[id]; held {
		return
	}
	u.differ[id] = struct{}{}
	unit := u.want[id].build()
	for i := range unit.Flows {
		if f := &unit.Flows[i]; s == nil || s.Seen(f.hashTo) {
			u.listed[f.Key()] = &knownFlow{flow: f}
		}
	}
	if g := unit.group(id); len(g.Buckets) > 0 && (s == nil || s.Seen(g.HashTo)) {
		u.listedGroups = append(u.listedGroups, nx.Listed{Group: g, Known: true})
	}
}
