package policies

import (
	"maps"
	"net/netip"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// units are flows by key: a compile.Match, a portKey, a passKey, a connKey, or sharedKey. Each has a number in this
// process. Those of peers, which are many, are kept in a compact form.
type units struct {
	ids     map[any]uint32
	last    uint32
	flows   map[uint32]openflow.Unit
	peers   map[netip.Prefix]*peerUnit
	pending map[uint32]openflow.Unit
}

// portKey is the name of a port.
type portKey string

// peerUnit is the content of the flows of an address or network, for both directions. It is never changed.
type peerUnit struct {
	id      uint32
	address netip.Prefix
	flows   [2]peerFlow
}

// peerFlow has Set and Guards of a compile.Flow; the zero value is none.
type peerFlow struct {
	set          uint32
	flow, guards bool
}

// passKey is the key of the flows that let a pod's packets pass the tier NetworkPolicy.
type passKey policy.PodKey

// sharedKey is the key of the flows that all rules share.
const sharedKey portKey = ""

func newUnits() units {
	return units{ids: map[any]uint32{}, flows: map[uint32]openflow.Unit{}, peers: map[netip.Prefix]*peerUnit{},
		pending: map[uint32]openflow.Unit{}}
}

// all returns all units.
func (u *units) all() map[uint32]openflow.Unit {
	out := make(map[uint32]openflow.Unit, len(u.flows)+len(u.peers))
	maps.Copy(out, u.flows)
	for _, p := range u.peers {
		out[p.id] = openflow.Unit{Build: p.unit}
	}
	return out
}

func (u *units) has(key any) bool { return u.ids[key] != 0 }

// put stores flows, or removes the unit if there are none.
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

// putPeer stores the content of the flow of an address.
func (u *units) putPeer(f compile.Flow) {
	u.setPeer(f.Match, peerFlow{f.Set, true, f.Guards})
}

func (u *units) forgetPeer(m compile.Match) { u.setPeer(m, peerFlow{}) }

func (u *units) setPeer(m compile.Match, says peerFlow) {
	next := peerUnit{address: m.Address}
	if p := u.peers[m.Address]; p != nil {
		next = *p
	}
	next.flows[m.Direction] = says
	switch {
	case next.flows != [2]peerFlow{}:
		if next.id == 0 {
			next.id = u.next()
		}
		u.peers[m.Address] = &next
		u.pending[next.id] = openflow.Unit{Build: next.unit}
	case next.id != 0:
		delete(u.peers, m.Address)
		u.pending[next.id] = openflow.Unit{}
	}
}

// unit computes the flows, which are not kept.
func (p *peerUnit) unit() openflow.Unit {
	flows := make([]openflow.Flow, 0, len(p.flows))
	for d, says := range p.flows {
		if says.flow {
			flows = append(flows, ofPeer(policy.Direction(d), p.address, says.set))
		}
		if says.guards {
			flows = append(flows, policing.Twin(flows[len(flows)-1]))
		}
	}
	return openflow.Unit{Flows: flows}
}

// changed returns the units that differ since the last call.
func (u *units) changed() map[uint32]openflow.Unit {
	out := u.pending
	u.pending = map[uint32]openflow.Unit{}
	return out
}
