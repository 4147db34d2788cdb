package bed

import (
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// dir is the directory of the bed without a name.
const dir = "/run/fairlead-bed"

// MaxNodes is the maximum number of nodes of a bed.
const MaxNodes = 20

// Modes of kube-proxy. With NoKubeProxy none runs until Bed.StartKubeProxy.
const (
	Nftables    = "nftables"
	IPTables    = "iptables"
	NoKubeProxy = "none"
)

// Container runtimes of the nodes: the installed containerd, which is Debian's, that of the module test/containerd, and
// CRI-O of the module test/crio.
const (
	Containerd   = "containerd"
	Containerd23 = "containerd-2.3"
	CRIO         = "cri-o"
)

// RuntimeVariable names the environment variable that selects the runtime of tests that name none.
const RuntimeVariable = "FAIRLEAD_TEST_RUNTIME"

// Options of a bed. The zero value of a field means its default.
type Options struct {
	// Name distinguishes beds; each has a directory of its own. Default: none.
	Name string
	// Replace removes a bed of this name that is not in use. Without it, an existing bed is an error.
	Replace bool
	// Nodes is the number of nodes, 1 to MaxNodes. Default: 3.
	Nodes int
	// IPFamily is underlay.Dual (the default), IPv4 or IPv6.
	IPFamily underlay.IPFamily
	// Datapath is what Fairlead's Open vSwitch will use on the nodes: vswitch.Auto (the default), Netdev or System.
	Datapath vswitch.Datapath
	// NoNodeCIDRs disables podCIDR assignment by kube-controller-manager, for another allocator.
	NoNodeCIDRs bool
	// KubeProxy is Nftables (the default), IPTables or NoKubeProxy.
	KubeProxy string
	// Runtime is Containerd, Containerd23 or CRIO. Default: as RuntimeVariable selects, or Containerd.
	Runtime string
	// Audit enables the API server's audit log: Bed.AuditLog.
	Audit bool
	// Images are archives that are imported on every node before its kubelet starts.
	Images []string
	// Set are flags of the control plane's components, "PART.FLAG=VALUE" or "PART.FLAG-" (controlplane.ParseFlags).
	Set []string
	// Progress is called at each step with a short description. Default: none.
	Progress func(step string)
}

func (o *Options) complete() error {
	o.Nodes = orElse(o.Nodes, 3)
	o.IPFamily = orElse(o.IPFamily, underlay.Dual)
	o.Datapath = orElse(o.Datapath, vswitch.Auto)
	o.KubeProxy = orElse(o.KubeProxy, Nftables)
	o.Runtime = orElse(o.Runtime, orElse(os.Getenv(RuntimeVariable), Containerd))
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Name != "" {
		if msgs := validation.IsDNS1123Label(o.Name); len(msgs) > 0 {
			return fmt.Errorf("name %q: %s", o.Name, msgs[0])
		}
	}
	if o.Nodes < 1 || o.Nodes > MaxNodes {
		return fmt.Errorf("a bed has 1 to %d nodes, not %d", MaxNodes, o.Nodes)
	}
	if !slices.Contains([]underlay.IPFamily{underlay.IPv4, underlay.IPv6, underlay.Dual}, o.IPFamily) {
		return fmt.Errorf("IP family %q is none of %s, %s and %s", o.IPFamily, underlay.IPv4, underlay.IPv6, underlay.Dual)
	}
	if !slices.Contains([]string{Nftables, IPTables, NoKubeProxy}, o.KubeProxy) {
		return fmt.Errorf("kube-proxy mode %q is none of %s, %s and %s", o.KubeProxy, Nftables, IPTables, NoKubeProxy)
	}
	if !slices.Contains([]string{Containerd, Containerd23, CRIO}, o.Runtime) {
		return fmt.Errorf("runtime %q is none of %s, %s and %s", o.Runtime, Containerd, Containerd23, CRIO)
	}
	if o.Datapath == vswitch.Auto {
		o.Datapath = vswitch.Netdev
		if vswitch.KernelDatapath() == nil {
			o.Datapath = vswitch.System
		}
	}
	if o.NoNodeCIDRs {
		o.Set = append([]string{"kcm.allocate-node-cidrs=false", "kcm.cluster-cidr-"}, o.Set...)
	}
	_, err := controlplane.FlagsOfParts(o.Set, append(controlplane.Parts(), controlplane.Scheduler))
	return err
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
