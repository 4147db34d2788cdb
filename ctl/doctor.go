package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/diagnose/checks"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
)

// recheckAfter is the time between two checks of state that changes all the time.
const recheckAfter = 2 * time.Second

func doctorCommand(conn *connection, node *localNode) *cobra.Command {
	d := &examination{conn: conn, node: node}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Finds problems and prints remedies",
		Long: `doctor examines the cluster through the Kubernetes API and, if it runs on a node, that
node. Each finding has its cause, the evidence, and a remedy. Nothing is changed.
Checks that could not run are listed, with the reason.

The cluster: pod-cidr (missing, duplicate or invalid podCIDRs), pools (exhausted, invalid
or filling IPPools), leaks (orphaned and duplicate addresses), policies (those that Fairlead
does not enforce, and those without effect; on a node also whether Open vSwitch enforces
them), services (endpoints on nodes that do not exist; on a node also ClusterIPs that are
not translated, kube-proxy where it is needed, and space in conntrack), versions (Kubernetes
and container runtimes that are too old), reach (which nodes' pods do not reach each other,
as found by agents with reachability: probe: they are queried by commands in their Pods,
as "fairleadctl reach" does; with --node-local only this node's agent).
A node, as root: agent, ovs (Open vSwitch), uplink (the NIC that bridged pods use),
flows (OpenFlow), mtu (whether pods' largest packets reach other nodes).

"doctor CHECK" runs one check. The exit code is that of the worst finding: 0 none,
3 warning, 4 some pods or nodes have no working network, 1 a check could not run.`,
		Example: `  fairleadctl doctor
  fairleadctl doctor leaks
  sudo fairleadctl doctor --node-local
  fairleadctl doctor -o json | jq '.findings[].kind'`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usage(fmt.Errorf("unknown check %q: want one of %s", args[0], strings.Join(checks.Checks(), ", ")))
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return d.run(c, nil) },
	}
	d.out.add(c)
	node.addOnly(c)
	c.AddCommand(podCIDRCommand(conn))
	c.AddCommand(checkCommands(conn, node)...)
	return c
}

// checkCommands are the subcommands, one for each check.
func checkCommands(conn *connection, node *localNode) (subs []*cobra.Command) {
	short := map[string]string{checks.CheckPools: "Checks the IPPools", checks.CheckLeaks: "Checks for orphaned and duplicate addresses",
		checks.CheckPolicies: "Checks for policies that are not enforced or have no effect", checks.CheckAgent: "Checks the agent of this node",
		checks.CheckServices: "Checks endpoints of Services, and what this node needs for them",
		checks.CheckVersions: "Checks for Kubernetes and container runtimes that are too old",
		checks.CheckOVS:      "Checks Open vSwitch on this node", checks.CheckUplink: "Checks this node's NIC, for bridged pods",
		checks.CheckFlows:    "Compares this node's flows with the desired ones",
		checks.CheckFirewall: "Checks whether this node's nftables rules drop the tunnel's packets",
		checks.CheckMTU:      "Checks whether pods' largest packets reach other nodes",
		checks.CheckReach:    "Shows which nodes' pods do not reach each other, as found by the agents' probes",
		checks.CheckVLANs:    "Checks whether bridged pods reach the gateways of their VLANs"}
	for _, check := range checks.Checks()[1:] {
		one := &examination{conn: conn, node: node}
		sub := &cobra.Command{Use: check, Short: short[check], Args: cli.FlagsOnly,
			RunE: func(c *cobra.Command, _ []string) error { return one.run(c, []string{check}) }}
		one.out.add(sub)
		if check == checks.CheckReach { // the only check of both the cluster and a node
			node.addOnly(sub)
		}
		subs = append(subs, sub)
	}
	return subs
}

// examination is one run of doctor.
type examination struct {
	conn *connection
	node *localNode
	out  output
}

func (d *examination) run(c *cobra.Command, chosen []string) error {
	o, err := d.options(chosen)
	if err != nil {
		return err
	}
	ctx, cancel := d.conn.within(c)
	defer cancel()
	r := checks.Examine(ctx, o)
	if err := d.out.write(c.OutOrStdout(), r, r.Write); err != nil {
		return err
	}
	return exitOf(r)
}

func (d *examination) options(chosen []string) (checks.Options, error) {
	o := checks.Options{Checks: chosen, SecondLook: recheckAfter}
	cfg, notHere, err := d.node.here()
	if err != nil {
		return o, err
	}
	if o.Here = notHere == ""; o.Here {
		o.NetworkPolicies = cfg.NetworkPolicies
	}
	ofNode := func(c string) bool { return slices.Contains(checks.OfNode(), c) }
	asked := len(chosen) > 0 && slices.ContainsFunc(chosen, ofNode)
	switch {
	case notHere == "" || asked: // a request for these checks means this machine
		o.Node = &checks.NodeProbe{Config: cfg, Journal: d.node.journal}
	default:
		o.NoNode = notHere
	}
	if !asked && notHere == "" && !d.node.only && os.Geteuid() != 0 {
		o.Node, o.NoNode = nil, "examining this node needs root: sudo"
	}
	if !d.node.only && !asked {
		o.Client, o.NoClient = d.conn.client()
	}
	o.Reaches = d.reaches(o.Client, chosen)
	return o, nil
}

// sides queries agents, and returns what they report and what stays unknown.
type sides = func(context.Context) ([]reach.Side, []string, error)

// reaches queries all agents; nil: only this node's is queried.
func (d *examination) reaches(client *kube.Client, chosen []string) sides {
	var err error
	if client == nil && !d.node.only && slices.Contains(chosen, checks.CheckReach) {
		client, err = d.conn.client()
	}
	switch {
	case err != nil:
		return func(context.Context) ([]reach.Side, []string, error) { return nil, nil, err }
	case client == nil:
		return nil
	}
	return d.conn.querier(client).Sides
}

// exitOf is the exit code of a result.
func exitOf(r checks.Result) error {
	if err := exitOfSeverity(r.Severity); err != nil {
		return err
	}
	if failed := r.Failed(); len(failed) > 0 {
		return fmt.Errorf("checking %s failed: %s", failed[0].Check, failed[0].Why)
	}
	if len(r.Examined) == 0 {
		return errors.New("no check could run")
	}
	return nil
}

func podCIDRCommand(conn *connection) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "pod-cidr",
		Short: "Checks the podCIDRs of all nodes",
		Long: `doctor pod-cidr lists every node with its podCIDR, and each problem with cause, evidence
and remedy: a node without a podCIDR because the cluster CIDR is exhausted or no allocator
runs, duplicate podCIDRs, podCIDRs that overlap Services or nodes or that would keep
kube-controller-manager from starting, and pods outside of their node's podCIDR.

A remedy is printed only if, computed with the existing podCIDRs, it serves all waiting
nodes and overlaps nothing. Read the commands before you run them. Nothing is changed.

It reads Nodes, Pods, Namespaces, ServiceCIDRs, PodCIDRRanges, Events, and in
kube-system the ConfigMap kubeadm-config and the Leases of kube-controller-manager
and fairlead-controller. What may not be read is reported as unknown.`,
		Example: `  fairleadctl doctor pod-cidr
  fairleadctl doctor pod-cidr --kubeconfig admin.conf --context prod
  fairleadctl doctor pod-cidr -o json | jq '.problems[].kind'`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			return conn.run(c, func(ctx context.Context, client *kube.Client) error {
				r, err := checks.PodCIDRs(ctx, client)
				if err != nil {
					return err
				}
				return cmp.Or(out.write(c.OutOrStdout(), r, r.Write),
					exitOf(checks.Result{Severity: r.Severity(), Examined: []string{checks.CheckPodCIDR}}))
			})
		},
	}
	out.add(c)
	return c
}
