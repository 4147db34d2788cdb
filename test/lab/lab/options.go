package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// Options of a lab. The zero value of a field means its default.
type Options struct {
	// Dir is the directory of the lab. It must not exist, or be empty. Default: DefaultDir.
	Dir string
	// BinDir holds the programs lab, fairlead-agent and fairlead. Default: the directory of this program.
	BinDir string
	// Nodes is the number of nodes, 1 to MaxNodes. Default: 2.
	Nodes int
	// Datapath is Auto (the default), Netdev or System.
	Datapath vswitch.Datapath
	// IPFamily is Dual (the default), IPv4 or IPv6.
	IPFamily underlay.IPFamily
	// Mode is Routed (the default) or Bridge.
	Mode underlay.Mode
	// Uplink is the agents' uplink.mode in mode Bridge: api.UplinkBridge (the default), or api.UplinkSteer.
	Uplink string
	// Subnets is the number of subnets of the underlay, 1 (the default) or 2. Nodes alternate between two: node1 is in
	// the first, node2 in the second. The host outside is the router between them.
	Subnets int
	// RoutePods adds routes to all podCIDRs on that router, as noEncap mode requires for two subnets, and noSNAT for
	// traffic with the outside.
	RoutePods bool
	// Cluster is Directory (the default) or Kube.
	Cluster Cluster
	// Set are flags of the control plane's components, "PART.FLAG=VALUE" with the PARTs of package controlplane, or
	// "PART.FLAG-" to remove one of the lab's. With Kube only.
	Set []string
	// KubeProxy is kube-proxy's mode: nftables (the default), iptables, or none for no kube-proxy. With Kube only.
	KubeProxy string
	// Config is YAML that is merged into the config of each agent.
	Config []byte
	// NoGuard starts no guard beside Open vSwitch (build/ovs). There is none on the userspace datapath anyway.
	NoGuard bool
	// ProductIntervals keeps the product's intervals where the environment, as in a test, sets shorter ones.
	ProductIntervals bool
	// NoAgent starts no agents, and no program fairlead-agent is needed.
	NoAgent bool
	// ReadyTimeout is the time limit for agents to get ready. Default: 5 min, since a guest on a busy machine takes long.
	ReadyTimeout time.Duration
	// Keep leaves a lab running whose agents do not get ready.
	Keep bool
	// Progress is called at each step with a short description. Default: none.
	Progress func(step string)
}

func (o *Options) complete() error {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	var err error
	if o.Dir, err = host.Absolute(o.Dir); err != nil {
		return err
	}
	if o.BinDir == "" {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		o.BinDir = filepath.Dir(exe)
	}
	if o.BinDir, err = filepath.Abs(o.BinDir); err != nil {
		return err
	}
	o.Nodes = orElse(o.Nodes, 2)
	o.Datapath = orElse(o.Datapath, vswitch.Auto)
	o.IPFamily = orElse(o.IPFamily, underlay.Dual)
	o.Mode = orElse(o.Mode, underlay.Routed)
	o.Uplink = orElse(o.Uplink, api.UplinkBridge)
	o.Subnets = orElse(o.Subnets, 1)
	o.Cluster = orElse(o.Cluster, Directory)
	o.ReadyTimeout = orElse(o.ReadyTimeout, 5*time.Minute)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Nodes < 1 || o.Nodes > underlay.MaxNodes {
		return fmt.Errorf("a lab has 1 to %d nodes, not %d", underlay.MaxNodes, o.Nodes)
	}
	if o.Subnets < 1 || o.Subnets > 2 {
		return fmt.Errorf("the underlay has 1 or 2 subnets, not %d", o.Subnets)
	}
	if o.Mode != underlay.Routed && o.Mode != underlay.Bridge {
		return fmt.Errorf("mode %q is neither %s nor %s", o.Mode, underlay.Routed, underlay.Bridge)
	}
	if o.Uplink != api.UplinkBridge && o.Uplink != api.UplinkSteer {
		return fmt.Errorf("uplink mode %q is neither %s nor %s", o.Uplink, api.UplinkSteer, api.UplinkBridge)
	}
	if o.Mode == underlay.Bridge && o.Subnets > 1 {
		return fmt.Errorf("the underlay of mode %s has one subnet for nodes, and VLANs: --subnets %d is for mode %s",
			underlay.Bridge, o.Subnets, underlay.Routed)
	}
	if o.Datapath != vswitch.Netdev && o.Datapath != vswitch.System && o.Datapath != vswitch.Auto {
		return fmt.Errorf("datapath %q is none of %s, %s and %s", o.Datapath, vswitch.Auto, vswitch.Netdev, vswitch.System)
	}
	if o.IPFamily != underlay.IPv4 && o.IPFamily != underlay.IPv6 && o.IPFamily != underlay.Dual {
		return fmt.Errorf("IP family %q is none of %s, %s and %s", o.IPFamily, underlay.IPv4, underlay.IPv6, underlay.Dual)
	}
	return o.completeKube()
}

func (o *Options) completeKube() error {
	if o.Cluster != Directory && o.Cluster != Kube {
		return fmt.Errorf("cluster %q is neither %s nor %s", o.Cluster, Directory, Kube)
	}
	if o.Cluster == Directory && (len(o.Set) > 0 || o.KubeProxy != "") {
		return fmt.Errorf("flags of Kubernetes' parts need a cluster with Kubernetes: --cluster %s", Kube)
	}
	if o.Cluster == Kube && o.RoutePods {
		return fmt.Errorf("the router of a lab with Kubernetes cannot have routes to podCIDRs: these are not known beforehand")
	}
	o.KubeProxy = orElse(o.KubeProxy, "nftables")
	if !slices.Contains([]string{"nftables", "iptables", "none"}, o.KubeProxy) {
		return fmt.Errorf("kube-proxy mode %q is none of nftables, iptables and none", o.KubeProxy)
	}
	_, err := controlplane.FlagsOfParts(o.Set, controlplane.Parts())
	return err
}

// settle replaces Auto with what this machine supports.
func (o *Options) settle() {
	if o.Datapath != vswitch.Auto {
		return
	}
	o.Datapath = vswitch.Netdev
	if vswitch.KernelDatapath() == nil {
		o.Datapath = vswitch.System
	}
	o.Progress("datapath: " + string(o.Datapath))
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
