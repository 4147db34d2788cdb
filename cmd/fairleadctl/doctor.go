package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/diagnose/checks"
)

// secondLook is how long after the first look at what changes all the time the second one is taken.
const secondLook = 2 * time.Second

func doctorCommand(conn *connection, node *localNode) *cobra.Command {
	d := &examination{conn: conn, node: node}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Finds out what is wrong, and what would mend it",
		Long: `doctor examines the cluster through the Kubernetes API, and, where it runs on a node,
that node. Each finding has its cause, what it was seen by, and what mends it.
Nothing is changed. What was not examined is told, with the reason.

The cluster: pod-cidr (a podCIDR that is missing, double or wrong), pools (IPPools
that hand out nothing, or soon won't), leaks (addresses that are held for nobody, or
that two pods have), policies (which Fairlead does not enforce).
A node, as root: agent, ovs (Open vSwitch), uplink (the NIC that bridged pods use),
flows (OpenFlow), mtu (whether pods' largest packets reach other nodes).

"doctor CHECK" makes one check alone. The exit code tells the worst that was found:
0 nothing, 3 warnings, 4 something is not served, 1 a check could not be made.`,
		Example: `  fairleadctl doctor
  fairleadctl doctor leaks
  sudo fairleadctl doctor --node-local
  fairleadctl doctor -o json | jq '.findings[].kind'`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("there is no check %q: want one of %s", args[0], checkNames())}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return d.run(c, nil) },
	}
	d.out.add(c)
	node.addOnly(c)
	c.AddCommand(podCIDRCommand(conn))
	short := map[checks.Check]string{checks.CheckPools: "Examines the IPPools", checks.CheckLeaks: "Examines who holds which address",
		checks.CheckPolicies: "Looks for policies, which are not enforced", checks.CheckAgent: "Asks the agent of this node",
		checks.CheckOVS: "Examines Open vSwitch on this node", checks.CheckUplink: "Examines this node's NIC, for bridged pods",
		checks.CheckFlows: "Compares this node's flows with those that there should be",
		checks.CheckMTU:   "Examines whether pods' largest packets reach other nodes"}
	for _, check := range checks.Checks()[1:] {
		one := &examination{conn: conn, node: node}
		sub := &cobra.Command{Use: string(check), Short: short[check], Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error { return one.run(c, []checks.Check{check}) }}
		one.out.add(sub)
		c.AddCommand(sub)
	}
	return c
}

func checkNames() string {
	var names []string
	for _, c := range checks.Checks() {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}

// examination is one run of doctor.
type examination struct {
	conn *connection
	node *localNode
	out  output
}

func (d *examination) run(c *cobra.Command, chosen []checks.Check) error {
	if err := d.out.check(); err != nil {
		return err
	}
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
	return verdict(r)
}

func (d *examination) options(chosen []checks.Check) (checks.Options, error) {
	o := checks.Options{Checks: chosen, SecondLook: secondLook}
	cfg, notHere, err := d.node.here()
	if err != nil {
		return o, err
	}
	ofNode := func(c checks.Check) bool { return slices.Contains(checks.OfNode(), c) }
	asked := len(chosen) > 0 && slices.ContainsFunc(chosen, ofNode)
	switch {
	case notHere == "" || asked: // who asks for it means this machine
		o.Node = &checks.NodeProbe{Config: cfg, Journal: d.node.journal}
	default:
		o.NoNode = notHere
	}
	if !asked && notHere == "" && !d.node.only && os.Geteuid() != 0 {
		o.Node, o.NoNode = nil, "to look at this node it needs root: sudo"
	}
	if !d.node.only && !asked {
		o.Client, o.NoClient = d.conn.client()
	}
	return o, nil
}

// verdict is the exit code of a result.
func verdict(r checks.Result) error {
	switch {
	case r.Severity == checks.Failing:
		return found{exitFailing}
	case r.Severity == checks.Warning:
		return found{exitWarning}
	}
	if failed := r.Failed(); len(failed) > 0 {
		return fmt.Errorf("%s could not be examined: %s", failed[0].Check, failed[0].Why)
	}
	if len(r.Examined) == 0 {
		return errors.New("nothing could be examined")
	}
	return nil
}

func podCIDRCommand(conn *connection) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "pod-cidr",
		Short: "Examines the podCIDRs of all nodes",
		Long: `doctor pod-cidr lists every node with its podCIDR, and each problem with its cause,
where that is known from, and what would mend it: a node that got none because the
cluster CIDR is used up or nobody gives any, podCIDRs that two nodes have, that
overlap Services or nodes, or that kube-controller-manager would not start with,
and pods with addresses of a podCIDR that their node had before.

A remedy is printed only if, computed with the podCIDRs that there are, it serves
all nodes that wait and overlaps nothing. Commands are to be read before they are
run. Nothing is changed.

It reads Nodes, Pods, Namespaces, ServiceCIDRs, PodCIDRRanges, Events, and in
kube-system the ConfigMap kubeadm-config and the Leases of kube-controller-manager
and fairlead-controller. What may not be read is told, and is not known then.`,
		Example: `  fairleadctl doctor pod-cidr
  fairleadctl doctor pod-cidr --kubeconfig admin.conf --context prod
  fairleadctl doctor pod-cidr -o json | jq '.problems[].kind'`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			ctx, cancel := conn.within(c)
			defer cancel()
			report, err := checks.PodCIDRs(ctx, client)
			if err != nil {
				return err
			}
			if err := out.write(c.OutOrStdout(), report, report.Write); err != nil {
				return err
			}
			return verdict(checks.Result{Severity: report.Severity(), Examined: []checks.Check{checks.CheckPodCIDR}})
		},
	}
	out.add(c)
	return c
}
