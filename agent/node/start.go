package node

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/rundir"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// connectEvery is the interval of attempts to connect to ovsdb-server.
const connectEvery = 500 * time.Millisecond

// The start runs step by step, in the order of the methods below. Each returns nil at once when ctx ends, so the caller
// checks ctx. Each step that waits writes to last what it waits for, which the CNI plugin then answers.

// WaitPodCIDR waits until the node has a podCIDR that it can use: as long as the config allows, which begins when
// the source has delivered the Nodes. With enableBridgingMode the agent then goes on without, and serves bridged
// pods alone. The error is a *desired.PodCIDRError, or one that waiting does not fix.
func (n *Node) WaitPodCIDR(ctx context.Context, last rundir.LastError) error {
	var deadline <-chan time.Time
	overdue := false
	for {
		snapshot := n.Source.Snapshot()
		fatal, err := n.usable(snapshot)
		if fatal != nil {
			return fatal
		}
		if err = n.Advisor.Explain(err, snapshot); err == nil {
			n.Log.Info("podCIDRs of this node", "node", n.NodeName, "podCIDRs", n.own.PodCIDRs)
			n.Advisor.EnableEvents()
			return nil
		}
		if overdue && n.bridgeOnly(snapshot) {
			n.Log.Error(err, "no routed pod can be added; bridged pods are served without a podCIDR")
			return nil
		}
		if !snapshot.Unread && !snapshot.Kept && deadline == nil {
			deadline = time.After(n.Config.PodCIDRWait)
		}
		n.waiting(err, snapshot, last)
		select {
		case <-ctx.Done():
			return nil
		case <-n.Source.Changed():
		case <-n.Advisor.Changed:
		case <-deadline:
			if !n.Config.EnableBridgingMode {
				return &desired.PodCIDRError{Reason: n.Advisor.Diagnose(ctx, err, snapshot), Waited: n.Config.PodCIDRWait}
			}
			n.Advisor.EnableEvents()
			overdue = true
		}
	}
}

// waiting reports why there is no podCIDR yet.
func (n *Node) waiting(reason error, snapshot *inputs.Snapshot, last rundir.LastError) {
	before := n.Board.Publish(&status.Status{NotReady: reason, Snapshot: snapshot})
	if !snapshot.Unread || snapshot.Trouble != nil { // else the request has only just been sent
		n.logChange("not ready, waiting for a podCIDR (podCIDRWait)", before.NotReady, reason)
	}
	last.Write(reason)
}

// CheckTransport rejects a transport interface and config that can't carry pod traffic.
func (n *Node) CheckTransport() error {
	t := n.links.transport
	local := desired.Endpoint(t, n.own)
	n.Log.Info("transport interface", "interface", t.Name, "mtu", t.MTU, "address", local)
	if desired.LacksServiceCIDRv6(n.Config, n.own.PodCIDRs) {
		n.Log.Info("config", "warning", "serviceCIDRv6 is not set, and this cluster's pods have IPv6: if its Services do, too, "+
			"bridged pods do not reach them. Set it to the range of kube-apiserver's --service-cluster-ip-range")
	}
	for _, p := range n.own.PodCIDRs {
		if mtu := desired.PodMTU(n.Config, t.MTU, local); p.Addr().Is6() && mtu < 1280 {
			return fmt.Errorf("pods would get an MTU of %d, and IPv6 needs 1280 (RFC 8200): raise the MTU of %s or set defaultMTU",
				mtu, t.Name)
		}
	}
	if n.Config.TunnelType == api.TunnelGRE && desired.Tunnels(n.Config) && local.Is6() {
		return fmt.Errorf("tunnelType gre needs IPv4 between nodes, and this node's address is %s: use geneve or vxlan",
			local)
	}
	return nil
}

// ConnectOVSDB waits for ovsdb-server without a limit: it may start after the agent. It returns nil if ctx ends before.
func (n *Node) ConnectOVSDB(ctx context.Context, last rundir.LastError) *ovsdb.DB {
	endpoint := "unix:" + filepath.Join(n.Config.OVSRunDir, "db.sock")
	reported := false
	for {
		db, err := ovsdb.Connect(ctx, endpoint, n.Log.WithName("ovsdb"))
		if err == nil {
			return db
		}
		if !reported {
			reported = true
			err = fmt.Errorf("waiting for Open vSwitch: %w. Does ovsdb-server run on this node? Where the pod fairlead-ovs runs it, "+
				"that pod's log says why not", err)
			n.Log.Error(err, "not ready")
			n.Board.Publish(&status.Status{NotReady: err, Snapshot: n.Source.Snapshot()})
			last.Write(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(connectEvery):
		}
	}
}

// Use gives the loop the database, with all appliers. It applies nothing yet; what earlier steps waited for is over.
func (n *Node) Use(db *ovsdb.DB, last rundir.LastError) {
	steps, wait := newSteps(db, n.Config, n.NodeName, n.Source, n.Uplink.Sync, n.Metrics, n.Log)
	n.db, n.steps = db, steps
	n.Uplink.Waits = wait.Waits
	n.Board.Publish(&status.Status{NotReady: status.ErrStarting, Snapshot: n.Source.Snapshot()})
	last.Write(status.ErrStarting)
}

// AttachUplink attaches the node's NIC, if the config wants it, and then looks up where the node's addresses are.
func (n *Node) AttachUplink(ctx context.Context) error {
	n.Uplink.Attach(ctx, n.links.transport.Name)
	n.links.searchedAt = time.Time{} // addresses may have moved
	return n.links.find(n, n.progress.verify)
}

// WaitFirstRound returns true when the node is as desired, false if ctx ends before.
func (n *Node) WaitFirstRound(ctx context.Context, last rundir.LastError) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-n.firstOK:
			return true
		case <-n.published:
			if err := n.Board.Ready(); err != nil {
				last.Write(err)
			}
		}
	}
}
