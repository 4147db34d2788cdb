package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/agent/doctor"
)

func doctorCommand() *cobra.Command {
	var conn connection
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Finds out what is wrong with a cluster, and what would mend it",
	}
	conn.add(c)
	c.AddCommand(podCIDRCommand(&conn))
	return c
}

func podCIDRCommand(conn *connection) *cobra.Command {
	var out output
	timeout := 30 * time.Second
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

It reads Nodes, Pods, Namespaces, ServiceCIDRs, Events, and in kube-system the
ConfigMap kubeadm-config and the Lease of kube-controller-manager. What may not be
read is told, and is not known then.`,
		Example: `  fairleadctl doctor pod-cidr
  fairleadctl doctor pod-cidr --kubeconfig admin.conf --context prod
  fairleadctl doctor pod-cidr -o json | jq '.problems[].kind'`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := conn.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			report, err := doctor.PodCIDRs(ctx, client)
			if err != nil {
				return err
			}
			if err := out.write(c.OutOrStdout(), report, report.WriteText); err != nil {
				return err
			}
			switch report.Severity() {
			case doctor.Failing:
				return found{exitFailing}
			case doctor.Warning:
				return found{exitWarning}
			}
			return nil
		},
	}
	out.add(c)
	c.Flags().DurationVar(&timeout, "timeout", timeout, "how long it may take")
	return c
}
