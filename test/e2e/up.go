package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

func upCommand(name *string) *cobra.Command {
	var o bed.Options
	var family, datapath, cni string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a cluster and wait until its nodes have registered",
		Long: `Create a cluster and wait until its nodes have registered. If it fails, or is interrupted, nothing is left
behind.

Nodes are called node1, node2 and so on, with the addresses 192.168.77.11, .12 and so on (fd77::11,
::12) on eth0, a trunk port of a switch with the VLANs 10 (192.168.110.0/24, fd77:0:0:a10::/64) and
20 (192.168.120.0/24, fd77:0:0:a20::/64). A router has .1 and ::1 in each; the host "outside" behind
it is 203.0.113.1 and 2001:db8::1. The API server is https://192.168.77.2:6443. On every node there
is the image ` + bed.TestImage + `, a server and client for tests (--help there).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cni != "none" && cni != "bridge" {
				return fmt.Errorf("--cni %q is neither none nor bridge", cni)
			}
			if o.Nodes < 1 { // 0 would mean the default
				return fmt.Errorf("--nodes %d: there are 1 to %d nodes", o.Nodes, bed.MaxNodes)
			}
			begun := time.Now()
			o.Name, o.IPFamily, o.Datapath = *name, underlay.IPFamily(family), vswitch.Datapath(datapath)
			o.Progress = func(step string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "[%5.1fs] %s\n", time.Since(begun).Seconds(), step)
			}
			return up(cmd, o, cni, begun)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Nodes, "nodes", 3, fmt.Sprintf("number of nodes, 1 to %d", bed.MaxNodes))
	flags.StringVar(&family, "ip-family", string(underlay.Dual), "addresses of nodes and pods: ipv4, ipv6 or dual")
	flags.StringVar(&datapath, "datapath", string(vswitch.Auto),
		"datapath of Open vSwitch on the nodes: system (the kernel's), netdev, or auto: what is available")
	flags.StringVar(&o.KubeProxy, "kube-proxy", bed.Nftables, "nftables, iptables or none")
	flags.StringVar(&o.Runtime, "runtime", bed.Containerd, bed.Containerd+": the installed one; "+bed.Containerd23+
		" or "+bed.CRIO+", which are built once on a machine")
	flags.BoolVar(&o.NoNodeCIDRs, "no-node-cidrs", false, "kube-controller-manager assigns no podCIDRs")
	flags.BoolVar(&o.Audit, "audit", false, "write an audit log of the API server")
	flags.StringArrayVar(&o.Images, "import", nil, "image archive to import on every node; may be repeated")
	flags.StringArrayVar(&o.Set, "set", nil,
		"PART.FLAG=VALUE of etcd, apiserver, kcm or scheduler; PART.FLAG- leaves one out")
	flags.StringVar(&cni, "cni", "none", "none, or bridge: the reference bridge plugin and routes between nodes")
	return cmd
}

func up(cmd *cobra.Command, o bed.Options, cni string, begun time.Time) error {
	b, err := bed.Up(cmd.Context(), o)
	if err != nil {
		return err
	}
	if cni == "bridge" {
		if err := b.BridgeCNI(cmd.Context()); err != nil {
			return errors.Join(err, b.Down(context.WithoutCancel(cmd.Context())))
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%d nodes in %.1f s. Next: e2e kubectl get nodes, e2e down.\n",
		len(b.Nodes()), time.Since(begun).Seconds())
	if o.Audit {
		fmt.Fprintln(cmd.OutOrStdout(), "Audit log:", b.AuditLog())
	}
	return nil
}

func downCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster, even if it is incomplete or broken",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return bed.Down(cmd.Context(), *name) },
	}
}
