package main

import (
	"errors"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/lab/host"
)

func kubectlCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [ARG...]",
		Short: "Run kubectl as the administrator of the cluster",
		Long: `Run kubectl as the administrator of the cluster. All arguments are kubectl's. It runs on the host
"control-plane": files in /etc, /opt, /var and /run are that host's.`,
		DisableFlagParsing: true, // kubectl's flags are not ours; ours precede the word kubectl
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "--help" || args[0] == "-h" {
				return cmd.Help()
			}
			b, err := bed.Open(*name)
			if err != nil {
				return err
			}
			return b.Plane().ExecKubectl(args)
		},
	}
}

func nodeCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "node NODE -- CMD [ARG...]",
		Short: "Run a command on a node",
		Long: `Run a command on a node, in all its namespaces. NODE may also be "outside", the host beyond the cluster,
"switch", "router" or "control-plane". The exit code is the command's.`,
		Example: "  e2e node node1 -- ip route\n  e2e node node1 -- ctr -n k8s.io containers list",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return errors.New("write: e2e node NODE -- CMD [ARG...]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := bed.Open(*name)
			if err != nil {
				return err
			}
			child := exec.Command(args[1], args[2:]...)
			child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
			child.Env = host.Env()
			if err := b.Host(args[0]).Start(child); err != nil {
				return err
			}
			return child.Wait()
		},
	}
}

func importCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "import ARCHIVE...",
		Short: "Import images on all nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := bed.Open(*name)
			if err != nil {
				return err
			}
			for _, archive := range args {
				if err := b.Import(cmd.Context(), archive); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func rebootCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "reboot NODE",
		Short: "Simulate a power failure of a node and its next boot: the disk is kept",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := bed.Open(*name)
			if err != nil {
				return err
			}
			if err := b.Crash(cmd.Context(), args[0]); err != nil {
				return err
			}
			return b.Boot(cmd.Context(), args[0])
		},
	}
}
