// Package pods is what each CNI verb means on this node. An ADD does its slow and independent part, address and
// veth, in its own goroutine, and hands the loop (package node) one record; what crashes leave behind, the
// reconciler reclaims. What is ours it recognises by what the packages below do: records (attachments), veths
// (link), leases (hostlocal) and allocations (addresses).
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

// undoTimeout bounds the clean-up of a failed ADD, which must also run when the runtime has given up waiting. It
// fits in between wire.ServerDeadline and wire.ClientDeadline, or the reason would not be reported.
const undoTimeout = 20 * time.Second

// Node is where attachments are applied: package node.
type Node interface {
	// Apply returns nil when the attachment's traffic flows, or flows no more.
	Apply(ctx context.Context, c node.Change) error
	// Coming says that an Apply will come within moments; done ends that.
	Coming() (done func())
}

// Parts are what Pods are made of.
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
	// txOff: switch tx checksum offload off in pods. A pod's TCP is silent on the userspace datapath otherwise: it
	// forwards frames without the checksum that the kernel left out.
	txOff bool

	unfinished unfinished
	broken     map[string]string // broken records that were logged
	links      sync.Mutex        // held while a veth is made
}

// New opens the leases of podCIDRs.
func New(parts Parts) (*Pods, error) {
	p := &Pods{Parts: parts,
		txOff: parts.Config.DisableTXChecksumOffload || parts.Config.OVSDatapathType == api.DatapathNetdev}
	var err error
	p.leases, err = hostlocal.Open(hostlocal.DefaultDir, p.Registry.BootID)
	return p, err
}
