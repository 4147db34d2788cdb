package compile

import (
	"iter"
	"net/netip"
	"slices"
)

// address is the address of a pod or a node, or one with a flow. There is one for each pod of the cluster.
type address struct {
	pod  *pod    // its owner; nil: none
	more *others // nil: none
	// peers are by direction.
	peers [2]peer
}

// others have the address as well: nodes, and pods with outdated objects, in order.
type others struct {
	pods  []*pod
	nodes []string
}

// peer is the content of the flow of an address or network: its class, 0 for none. guards: see Flow. The zero value is
// no flow.
type peer struct {
	class        uint32
	flow, guards bool
}

func (a *address) others() *others {
	if a.more == nil {
		a.more = &others{}
	}
	return a.more
}

// nodes returns the nodes that have the address.
func (a *address) nodes() []string {
	if a.more == nil {
		return nil
	}
	return a.more.nodes
}

func (a *address) add(p *pod) {
	if a.pod == nil {
		a.pod = p
		return
	}
	all := append(a.others().pods, a.pod, p)
	slices.SortFunc(all, later)
	a.pod, a.more.pods = all[0], all[1:]
}

func (a *address) remove(p *pod) {
	switch {
	case a.pod == p && a.more != nil && len(a.more.pods) > 0:
		a.pod, a.more.pods = a.more.pods[0], a.more.pods[1:]
	case a.pod == p:
		a.pod = nil
	case a.more != nil:
		a.more.pods = slices.DeleteFunc(a.more.pods, func(other *pod) bool { return other == p })
	}
}

// addr returns the address, new if there is none yet.
func (c *Compiler) addr(a netip.Addr) *address {
	if c.addrs[a] == nil {
		c.addrs[a] = &address{}
	}
	return c.addrs[a]
}

// dropAddr drops what is no longer needed of an address.
func (c *Compiler) dropAddr(a netip.Addr) {
	at := c.addrs[a]
	if at.more != nil && len(at.more.pods)+len(at.more.nodes) == 0 {
		at.more = nil
	}
	if *at == (address{}) {
		delete(c.addrs, a)
	}
}

// peer returns the content of the flow of an address or network.
func (c *Compiler) peer(s *side, p netip.Prefix) peer {
	if !p.IsSingleIP() {
		return s.networks[p]
	}
	if at := c.addrs[p.Addr()]; at != nil {
		return at.peers[s.direction]
	}
	return peer{}
}

func (c *Compiler) setPeer(s *side, p netip.Prefix, now peer) {
	switch {
	case p.IsSingleIP():
		c.addr(p.Addr()).peers[s.direction] = now
		c.dropAddr(p.Addr())
	case now.flow:
		s.networks[p] = now
	default:
		delete(s.networks, p)
	}
}

// eachPeer iterates over the addresses and networks that have a flow.
func (c *Compiler) eachPeer(s *side) iter.Seq2[netip.Prefix, peer] {
	return func(yield func(netip.Prefix, peer) bool) {
		for p, at := range s.networks {
			if !yield(p, at) {
				return
			}
		}
		for a, at := range c.addrs {
			if at := at.peers[s.direction]; at.flow && !yield(netip.PrefixFrom(a, a.BitLen()), at) {
				return
			}
		}
	}
}

// later orders pods with the same address: the later one has it. An address that the node itself has allocated to a pod
// belongs to no other: the API server may be outdated, for example after a reboot, when addresses are reallocated.
func later(a, b *pod) int {
	switch {
	case a.Local != b.Local:
		if a.Local {
			return -1
		}
		return 1
	case a.Created != b.Created:
		return int(min(max(b.Created-a.Created, -1), 1))
	case a.String() < b.String():
		return -1
	}
	return 1
}
