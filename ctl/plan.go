package ctl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/diagnose/checks"
	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

func planCommand() *cobra.Command {
	var out output
	var clusterCIDR, nodeMask, serviceCIDR string
	var nodes int
	c := &cobra.Command{
		Use:   "plan --cluster-cidr CIDR[,CIDR]",
		Short: "Computes how many nodes and pods a cluster CIDR holds, before the cluster exists",
		Long: `plan computes how many nodes and pods a cluster CIDR holds, before the cluster
exists. Changing a podCIDR later means deleting and recreating the Node. plan needs no
cluster.`,
		Example: `  fairleadctl plan --cluster-cidr 10.244.0.0/16 --nodes 300
  fairleadctl plan --cluster-cidr 192.168.0.0/22 --node-mask 26 --nodes 10 --service-cidr 10.96.0.0/12
  fairleadctl plan --cluster-cidr 10.244.0.0/16,fd00:10:244::/56 --node-mask 24,64`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			ranges, err := parseRanges(clusterCIDR, nodeMask)
			if err != nil {
				return cli.Usage(err)
			}
			services, err := parseCIDRs(serviceCIDR)
			if err != nil {
				return cli.Usage(fmt.Errorf("--service-cidr: %w", err))
			}
			plan, err := podcidr.NewPlan(ranges, services, nodes)
			if err != nil {
				return cli.Usage(err)
			}
			err = out.write(c.OutOrStdout(), plan, func(p *report.Printer) { checks.WritePlan(p, plan) })
			if err == nil && len(plan.Problems) > 0 {
				return cli.ExitCode(exitFailing)
			}
			return err
		},
	}
	c.Flags().StringVar(&clusterCIDR, "cluster-cidr", "", "ranges that podCIDRs are cut from, one per family")
	c.Flags().StringVar(&nodeMask, "node-mask", "",
		"length of the podCIDRs, in the order of --cluster-cidr (default: 24 for IPv4, 64 for IPv6)")
	c.Flags().StringVar(&serviceCIDR, "service-cidr", "", "the Service CIDR, of one or both families")
	c.Flags().IntVar(&nodes, "nodes", 0, "number of nodes, including the control plane")
	out.add(c)
	return c
}

func parseRanges(clusterCIDR, nodeMask string) ([]podcidr.Range, error) {
	cidrs, err := parseCIDRs(clusterCIDR)
	if err == nil && len(cidrs) == 0 {
		err = errors.New("it is required: a CIDR such as 10.244.0.0/16")
	}
	if err != nil {
		return nil, fmt.Errorf("--cluster-cidr: %w", err)
	}
	masks := strings.Split(nodeMask, ",")
	if nodeMask != "" && len(masks) != len(cidrs) {
		return nil, fmt.Errorf("--node-mask %s: want one for each CIDR of --cluster-cidr, %d", nodeMask, len(cidrs))
	}
	var out []podcidr.Range
	for i, p := range cidrs {
		r := podcidr.Range{Cluster: p, Mask: 24}
		if p.Addr().Is6() {
			r.Mask = 64
		}
		if nodeMask != "" {
			if r.Mask, err = strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(masks[i]), "/")); err != nil {
				return nil, fmt.Errorf("--node-mask %s: want a number such as 24", nodeMask)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// parseCIDRs parses at most one CIDR of each family. Host bits are an error: they indicate a mistake.
func parseCIDRs(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is not a CIDR", s)
		case p != p.Masked():
			return nil, fmt.Errorf("%s has host bits set; did you mean %s?", s, p.Masked())
		case slices.ContainsFunc(out, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }):
			return nil, fmt.Errorf("%s: Kubernetes takes one CIDR of each family", list)
		}
		out = append(out, p)
	}
	return out, nil
}
