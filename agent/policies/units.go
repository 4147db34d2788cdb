package policies

import (
	"maps"
	"net/netip"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// units are flows by what they are for: a compile.Match, a portKey, a passKey, a connKey, or sharedKey. Each has a
// number in this process. Those of peers, of which there are many, are kept as what they are made of.
type units struct {
	ids     map[any]uint32
	last    uint32
	flows   map[uint32]openflow.Unit
	peers   map[peerKey]peerUnit
	pending map[uint32]openflow.Unit
}

// portKey is the name of a port.
type portKey string

// peerKey is for the class of an address: what of a compile.Match it takes to tell it from others.
type peerKey struct {
	direction policy.Direction
	address   netip.Prefix
}

// peerUnit has the unit's number, and Set and Guards of a compile.Flow.
type peerUnit struct {
	id, set uint32
	guards  bool
}

// passKey is for what lets a pod's packets pass the tier NetworkPolicy.
type passKey policy.PodKey

// sharedKey is for what all rules share.
const sharedKey portKey = ""

func newUnits() units {
	return units{ids: map[any]uint32{}, flows: map[uint32]openflow.Unit{}, peers: map[peerKey]peerUnit{},
		pending: map[uint32]openflow.Unit{}}
}

// all returns all units.
func (u *units) all() map[uint32]openflow.Unit {
	out := make(map[uint32]openflow.Unit, len(u.flows)+len(u.peers))
	maps.Copy(out, u.flows)
	for key, p := range u.peers {
		out[p.id] = p.unit(key)
	}
	return out
}

func (u *units) has(key any) bool { return u.ids[key] != 0 }

// put stores flows, or forgets what there was.
func (u *units) put(key any, flows []openflow.Flow) {
	id := u.ids[key]
	switch {
	case len(flows) > 0 && id == 0:
		id = u.next()
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

func (u *units) next() uint32 {
	u.last++
	return u.last
}

// putPeer stores what the flows of an address say.
func (u *units) putPeer(f compile.Flow) {
	key := peerKey{f.Direction, f.Address}
	p := peerUnit{id: u.peers[key].id, set: f.Set, guards: f.Guards}
	if p.id == 0 {
		p.id = u.next()
	}
	u.peers[key] = p
	u.pending[p.id] = p.unit(key)
}

func (u *units) forgetPeer(m compile.Match) {
	key := peerKey{m.Direction, m.Address}
	if id := u.peers[key].id; id != 0 {
		delete(u.peers, key)
		u.pending[id] = openflow.Unit{}
	}
}

// unit has flows that are made when they are needed.
func (p peerUnit) unit(key peerKey) openflow.Unit {
	return openflow.Unit{Made: func() openflow.Unit {
		m := compile.Match{Direction: key.direction, Kind: compile.Address, Address: key.address}
		return openflow.Unit{Flows: flowsOf(compile.Flow{Match: m, Set: p.set, Guards: p.guards}, 0)}
	}}
}

// changed returns what differs since it was called last.
func (u *units) changed() map[uint32]openflow.Unit {
	out := u.pending
	u.pending = map[uint32]openflow.Unit{}
	return out
}
