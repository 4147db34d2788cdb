package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

func statusCommand(dir *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes and pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), cmd.OutOrStdout(), *dir, output, "nodes", "pods")
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

func getCommand(dir *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:       "get nodes|pods",
		Short:     "Show nodes or pods",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"nodes", "pods"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd.Context(), cmd.OutOrStdout(), *dir, output, args...)
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

func addOutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "table or json")
}

// show prints nodes, pods or both.
func show(ctx context.Context, w io.Writer, dir, output string, what ...string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("-o %s: there are table and json", output)
	}
	l, err := lab.Open(dir)
	if err != nil {
		return err
	}
	all := map[string]any{}
	for i, kind := range what {
		if output == "table" && i > 0 {
			fmt.Fprintln(w)
		}
		if kind == "nodes" {
			nodes, err := l.NodeStates(ctx)
			if err != nil {
				return err
			}
			all[kind] = nodes
			printNodes(w, output, nodes)
			continue
		}
		pods, err := l.PodStates()
		if err != nil {
			return err
		}
		all[kind] = pods
		printPods(w, output, pods)
	}
	parts, err := l.PartStates(ctx)
	if err != nil {
		return err
	}
	if output == "json" {
		if len(parts) > 0 {
			all["controlPlane"] = parts
		}
		return printJSON(w, all)
	}
	printParts(w, parts)
	if l.RunnerPID() == 0 {
		fmt.Fprintf(w, "\nThe pod runner %s: lab runner start\n", runnerState(l))
	}
	return nil
}

func printJSON(w io.Writer, all map[string]any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}

func printNodes(w io.Writer, output string, nodes []lab.NodeState) {
	if output != "table" {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "NODE\tADDRESSES\tPODCIDRS\tOVS\tAGENT")
	for _, n := range nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n",
			n.Node, list(n.Addresses), list(n.PodCIDRs), ovsState(n), oneLine(n.Agent.String()))
	}
}

func printPods(w io.Writer, output string, pods []lab.PodState) {
	if output != "table" {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "POD\tNODE\tSTATE\tIPS\tATTEMPT\tLAST ERROR")
	for _, p := range pods {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\n",
			p.Pod, orDash(p.Node), p.State, list(p.IPs), p.Attempt, oneLine(p.LastError))
	}
	if len(pods) == 0 {
		fmt.Fprintln(t, "(none)\t\t\t\t\t")
	}
}

// printParts prints the control plane's components, if the lab has one.
func printParts(w io.Writer, parts []lab.PartState) {
	if len(parts) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "CONTROL PLANE\tPID\tSTATE")
	for _, p := range parts {
		state := "serves"
		if p.Problem != "" {
			state = "does not serve: " + oneLine(p.Problem)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\n", p.Part, p.PID, state)
	}
}

func ovsState(n lab.NodeState) string {
	switch {
	case n.VswitchdPID != 0 && n.OVSDBPID != 0:
		return "running"
	case n.OVSDBPID != 0:
		return "no vswitchd"
	case n.VswitchdPID != 0:
		return "no ovsdb"
	default:
		return "down"
	}
}

func runnerState(l *lab.Lab) string {
	if pid := l.RunnerPID(); pid != 0 {
		return fmt.Sprintf("runs (pid %d)", pid)
	}
	return "is not running"
}

func list(s []string) string { return orDash(strings.Join(s, ",")) }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func oneLine(s string) string { return orDash(strings.Join(strings.Fields(s), " ")) }
