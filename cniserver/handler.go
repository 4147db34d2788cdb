package cniserver

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/api"
)

// Handler does the work of the CNI verbs. Package agent implements it. It is an interface because of the import rule:
// the server must not import the data path and the address store, and only the agent imports all three.
//
// An error that wraps a *types.Error (github.com/containernetworking/cni), or that TryAgainLater or NoAddress returned,
// goes to the runtime with its code. Any other error becomes CodeInternal, or for STATUS types.ErrPluginNotAvailable,
// and a context that has ended "try again later". Its text goes to the runtime and from there into a Pod's Events.
type Handler interface {
	// Add attaches a pod. Repeated for the same attachment it returns the same result. After an error nothing is left.
	Add(context.Context, Request) (Result, error)
	// Del undoes an Add, as far as there is something to undo.
	Del(context.Context, Request) error
	// Check returns an error if the attachment differs from the result of Add.
	Check(context.Context, Request) error
	// GC removes what attachments of the network other than the valid ones have left. It leaves other networks alone.
	GC(ctx context.Context, network string, valid []AttachmentID) error
	// Status returns an error if an Add cannot succeed now.
	Status(context.Context) error
}

// AttachmentID identifies an attachment: CNI_CONTAINERID and CNI_IFNAME.
type AttachmentID struct {
	ContainerID string
	IfName      string
}

// Request is one ADD, DEL or CHECK, validated.
type Request struct {
	ContainerID string
	IfName      string
	// Netns is CNI_NETNS. For ADD and CHECK it is the path of a network namespace other than the agent's own. For DEL
	// it may be empty or no longer exist.
	Netns string
	// Network is the name in the network configuration.
	Network string
	// PodNamespace, PodName and PodUID are K8S_POD_NAMESPACE, K8S_POD_NAME and K8S_POD_UID of CNI_ARGS. Each is empty
	// if the runtime does not set it, as outside of Kubernetes.
	PodNamespace string
	PodName      string
	PodUID       string
	// PrevMAC and PrevAddrs are, for CHECK only, those of the interface IfName in the result of the ADD.
	PrevMAC   api.MAC
	PrevAddrs []netip.Prefix
}

// Result is the result of an ADD.
type Result struct {
	// HostIf is the name of the host end of the pod's veth.
	HostIf string
	// MAC and MTU (bytes) are those of the pod's interface. MTU is in the result from CNI 1.1.0 on.
	MAC api.MAC
	MTU int
	// Addrs are the pod's addresses with their masks.
	Addrs []netip.Prefix
	// Gateways are the next hops of the pod's default routes, at most one of
	// each family.
	Gateways []netip.Addr
}
