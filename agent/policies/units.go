package policies

import (
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/policy"
)

// units are flows by what they are for: a compile.Match, a portKey, a passKey, a connKey, or sharedKey. Each has a
// number in this process.
type units struct {
	ids     map[any]uint32
	last    uint32
	flows   map[uint32]openflow.Unit
	pending map[uint32]openflow.Unit
}

// portKey is the name of a port.
type portKey string

// passKey is for what lets a pod's packets pass the tier NetworkPolicy.
type passKey policy.PodKey

// sharedKey is for what all rules share.
const sharedKey portKey = ""

func newUnits() units {
	return units{ids: map[any]uint32{}, flows: map[uint32]openflow.Unit{}, pending: map[uint32]openflow.Unit{}}
}

func (u *units) has(key any) bool { return u.ids[key] != 0 }

// put stores flows, or forgets what there was.
func (u *units) put(key any, flows []openflow.Flow) {
	id := u.ids[key]
	switch {
	case len(flows) > 0 && id == 0:
		u.last++
		id = u.last
		u.ids[key] = id
	case len(flows) == 0 && id == 0:
		return
	case len(flows) == 0:
		delete(u.ids, key)
	}
	unit := openflow.Unit{Flows: flows}
	if delete(u.flows, id); len(flows) > 0 {
		u.flows[id] = unit
	}
	u.pending[id] = unit
}

// changed returns what differs since it was called last.
func (u *units) changed() map[uint32]openflow.Unit {
	out := u.pending
	u.pending = map[uint32]openflow.Unit{}
	return out
}
