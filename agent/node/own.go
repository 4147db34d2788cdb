package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

var errNoAnswer = errors.New("no answer yet")

// updateOwn updates the node's own Node. If it can't be used (it is gone, or another node has the same podCIDR), the
// last valid one stays in effect: running pods keep their addresses, and only new ones are refused. The other nodes are
// updated as long as there is any Node: none at all means that the input was lost (a directory that is not mounted),
// and is no reason to cut their pods off.
func (n *Node) updateOwn(s *inputs.Snapshot) error {
	if s.Unread {
		return fmt.Errorf("waiting for Nodes from %s: %w", n.Source, cmp.Or(s.Trouble, errNoAnswer))
	}
	if len(s.Nodes) > 0 {
		n.nodes = s.Nodes
	}
	own, err := desired.CheckOwn(n.NodeName, s.Nodes, n.Source.String())
	if err == nil { // at the start, the transport interface is not known yet
		err = desired.CheckReserved(own, n.links.transport, n.links.needed)
	}
	if err != nil {
		n.bridgeOnly(s)
		return err
	}
	if n.own.Name != "" && !slices.Equal(n.own.PodCIDRs, own.PodCIDRs) {
		n.Log.Info("podCIDRs of this node changed", "from", n.own.PodCIDRs, "to", own.PodCIDRs)
	}
	if !slices.Equal(n.own.Addresses, own.Addresses) {
		n.links.searchedAt = time.Time{}
	}
	n.own = own
	return nil
}

// bridgeOnly takes the own Node without podCIDRs, if none are in effect, for a node that serves bridged pods. It
// returns false if that can't be done.
func (n *Node) bridgeOnly(s *inputs.Snapshot) bool {
	own, found := s.Nodes[n.NodeName]
	if !n.Config.EnableBridgingMode || !found || len(n.own.PodCIDRs) > 0 {
		return false
	}
	own.PodCIDRs = nil
	n.own = own
	return n.links.find(n, n.progress.verify) == nil
}

// usable takes the own Node and finds the transport interface. fatal is an error that waiting does not fix.
func (n *Node) usable(s *inputs.Snapshot) (fatal, err error) {
	if err := n.updateOwn(s); err != nil {
		return nil, err
	}
	if err := n.links.find(n, n.progress.verify); err != nil {
		return err, nil
	}
	return nil, desired.CheckReserved(n.own, n.links.transport, n.links.needed)
}
