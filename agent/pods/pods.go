// Package pods implements the CNI verbs on this node. An ADD does its slow and independent part, address and veth, in
// its own goroutine, and hands the loop (package node) one record; the reconciler reclaims what crashes leave behind.
// It recognises Fairlead's resources as the packages below do: records (attachments), veths (link), leases (hostlocal)
// and allocations (addresses).
package pods

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/addresses"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/node"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// undoTimeout bounds the clean-up of a failed ADD, which must also run when the runtime has stopped waiting. It fits
// between wire.ServerDeadline and wire.ClientDeadline; otherwise the reason would not be reported.
const undoTimeout = 20 * time.Second

// Node is where attachments are applied: package node.
type Node interface {
	// Apply returns nil when the attachment's traffic flows, or no longer flows.
	Apply(ctx context.Context, c node.Change) error
	// ExpectAdd says that an Apply will come within moments; done ends that.
	ExpectAdd() (done func())
}

// Parts are the dependencies of Pods.
type Parts struct {
	Config    api.AgentConfig
	Node      Node
	Source    inputs.Source
	Board     *status.Board
	Intervals api.AgentIntervals
	Registry  *attachments.Registry
	Addresses *addresses.Addresses
	Metrics   *status.Metrics
	Log       logr.Logger
}

// Pods implements cniserver.Handler.
type Pods struct {
	Parts
	leases *hostlocal.Store
	// txOff: disable tx checksum offload in pods. Otherwise pods' TCP does not work on the userspace datapath, which
	// forwards frames without the checksum that the kernel left out.
	txOff bool

	unfinished unfinished
	broken     map[string]string // broken records that were logged
	links      sync.Mutex        // held while a veth is created
}

// New opens the leases of podCIDRs.
func New(parts Parts) (*Pods, error) {
	p := &Pods{Parts: parts,
		txOff: parts.Config.DisableTXChecksumOffload || parts.Config.OVSDatapathType == api.DatapathNetdev}
	var err error
	p.leases, err = hostlocal.Open(hostlocal.DefaultDir, p.Registry.BootID)
	return p, err
}
