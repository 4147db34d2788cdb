package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

func upCommand(dir *string) *cobra.Command {
	var o lab.Options
	var datapath, family, config, cluster, mode string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a lab and wait until its agents are ready",
		Long: `Create a lab and wait until its agents are ready. If it fails, or is interrupted, nothing is
left behind.

Nodes are called node1, node2 and so on, with the addresses 192.168.77.11, .12 and so on
(fd77::11, ::12) and the podCIDRs 10.77.1.0/24, 10.77.2.0/24 (fd77:0:0:1::/64, ...).
Their default gateway is the host "outside", 192.168.77.1 (fd77::1), which also has the
addresses 203.0.113.1 and 2001:db8::1: what is beyond the cluster's own network.

With --subnets 2 nodes with an even number are in a second subnet, 192.168.78.0/24 (fd78::/64),
with a bridge of its own, br1. The host outside is the router between the two.

With --mode bridge the underlay is a switch with VLANs, an Open vSwitch on the host "switch". Nodes
have trunk ports with the VLANs 10 and 20 beside the untagged one, and their addresses on eth0; their
agents have enableBridgingMode: true. The default gateway is then the host "router", which has a leg
in each VLAN: eth0 192.168.77.1 (fd77::1), eth10 192.168.110.1 (fd77:0:0:a10::1) and eth20
192.168.120.1 (fd77:0:0:a20::1). The host outside is behind it. With --uplink steer the NIC stays the
host's; on the userspace datapath that wants trafficEncapMode: noEncap (--config).
IPPools are manifests as others are;
without Kubernetes the nodes share the directory of allocations.`,
		Example: "  lab up --nodes 3 --ip-family ipv4\n  lab up --config vxlan.yaml     # tunnelType: vxlan\n" +
			"  lab up --mode bridge --ip-family dual\n" +
			"  lab up --cluster kube --set kcm.cluster-cidr=10.77.0.0/24 --set kcm.node-cidr-mask-size=26 --ip-family ipv4",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Dir, o.Datapath, o.IPFamily = *dir, vswitch.Datapath(datapath), underlay.IPFamily(family)
			o.Cluster, o.Mode = lab.Cluster(cluster), underlay.Mode(mode)
			if o.Nodes < 1 { // 0 would mean the default
				return fmt.Errorf("--nodes %d: a lab has 1 to %d nodes", o.Nodes, underlay.MaxNodes)
			}
			if config != "" {
				data, err := os.ReadFile(config)
				if err != nil {
					return fmt.Errorf("--config: %w", err)
				}
				o.Config = data
			}
			o.Progress = progress(cmd.ErrOrStderr())
			begun := time.Now()
			l, err := lab.Up(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "The lab is up in %s: %d nodes in %.1f s. Next: lab apply, lab status, lab down.\n",
				l.Dir(), len(l.Nodes()), time.Since(begun).Seconds())
			return nil
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Nodes, "nodes", 2, fmt.Sprintf("number of nodes, 1 to %d", underlay.MaxNodes))
	flags.StringVar(&datapath, "datapath", string(vswitch.Auto),
		"system (the kernel's), netdev (in userspace), or auto: what is there")
	flags.StringVar(&family, "ip-family", string(underlay.Dual), "addresses of nodes and pods: ipv4, ipv6 or dual")
	flags.StringVar(&mode, "mode", string(underlay.Routed),
		"routed, or bridge: an underlay with VLANs, and agents that bridge pods")
	flags.StringVar(&o.Uplink, "uplink", api.UplinkBridge,
		"with --mode bridge, agents' uplink.mode: bridge or steer")
	flags.IntVar(&o.Subnets, "subnets", 1, "subnets of the underlay, 1 or 2: nodes alternate between them")
	flags.BoolVar(&o.RoutePods, "route-pods", false, "the underlay's router has routes to all podCIDRs (for noEncap)")
	flags.StringVar(&cluster, "cluster", string(lab.Directory),
		"directory (of manifests) or kube (a real Kubernetes API)")
	flags.StringArrayVar(&o.Set, "set", nil,
		"PART.FLAG=VALUE of etcd, apiserver or kcm; PART.FLAG- leaves one out")
	flags.StringVar(&o.KubeProxy, "kube-proxy", "", "with kube: nftables (the default), iptables or none")
	flags.StringVar(&config, "config", "", "YAML file that is merged into the config of each agent")
	flags.StringVar(&o.BinDir, "bin-dir", "", "directory of Fairlead's programs (default: that of this program)")
	flags.DurationVar(&o.ReadyTimeout, "timeout", time.Minute, "timeout for the agents to be ready")
	flags.BoolVar(&o.Keep, "keep", false, "keep the lab for inspection if its agents do not get ready")
	flags.BoolVar(&o.NoGuard, "no-guard", false, "start no guard beside Open vSwitch; only the kernel's datapath has one")
	flags.BoolVar(&o.NoAgent, "no-agent", false, "start no agents")
	return cmd
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab, even if it is incomplete or broken",
		Long: `Take the lab away: end its processes, whatever started them, and remove its namespaces, mounts
and files. It works on a lab in any state, and does nothing if there is none.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Down(cmd.Context(), *dir, progress(cmd.ErrOrStderr()))
		},
	}
}

// progress prints each step with the time since the first.
func progress(w io.Writer) func(string) {
	begun := time.Now()
	return func(step string) { fmt.Fprintf(w, "[%5.1fs] %s\n", time.Since(begun).Seconds(), step) }
}
