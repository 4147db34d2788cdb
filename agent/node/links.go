package node

import (
	"net/netip"
	"reflect"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/link"
)

// transportEvery is how often, at most, ADDs and DELs list the node's interfaces and addresses: this takes longer the
// more pods there are.
const transportEvery = time.Second

// links are what the loop knows about the node's interfaces.
type links struct {
	transport  link.Transport
	searchedAt time.Time // when the node was searched for the transport
	// known: all of what follows was found, if perhaps long ago.
	known bool
	// needed are addresses that no route to pods may cover.
	needed    []link.Needed
	nodeAddrs []netip.Addr
	// vlanDevices are the VLAN sub-interfaces of the transport interface, by VLAN.
	vlanDevices map[uint16]string
	// forBridged is findForBridged; a test replaces it by one that fails.
	forBridged func(*links, *Node) error
}

// find looks up the interface of the node's address again. A node whose address is missing for a moment (DHCP, a
// flapping link) keeps the last one.
func (l *links) find(n *Node, verify bool) error {
	if !verify && time.Since(l.searchedAt) < transportEvery {
		return nil
	}
	cfg := n.Config
	t, err := link.FindTransport(n.own.Addresses, n.Uplink.Holder(cfg.TransportInterface), cfg.TransportInterfaceCIDRs,
		cfg.HostGateway)
	if err != nil {
		if l.known {
			return nil
		}
		return err
	}
	if l.transport.Name != "" && !reflect.DeepEqual(l.transport, t) {
		n.Log.Info("transport interface changed", "from", l.transport, "to", t)
	}
	l.transport = t
	if verify || !l.known { // not at each ADD: there may be many routes
		if err := l.findAround(n); err != nil {
			return err
		}
	}
	l.searchedAt = time.Now()
	return nil
}

// findAround collects what else on the node matters to pods, all of it or nothing.
func (l *links) findAround(n *Node) (err error) {
	found := *l
	found.known = true
	if found.needed, err = link.FindNeeded(n.Config.HostGateway); err != nil {
		return err
	}
	if n.Config.EnableBridgingMode {
		if err := l.forBridged(&found, n); err != nil {
			return err
		}
	}
	*l = found
	return nil
}

// findForBridged collects what else on the node matters to bridged pods.
func (l *links) findForBridged(n *Node) (err error) {
	l.vlanDevices = nil // in mode steer, pods may share a VLAN with them
	if !n.Uplink.Steers() {
		if l.vlanDevices, err = link.VLANDevices(l.transport.Name, n.Uplink.NIC(l.transport.Name)); err != nil {
			return err
		}
	}
	l.nodeAddrs, err = link.NodeAddrs(n.Config.HostGateway)
	return err
}
