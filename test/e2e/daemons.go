package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
)

func daemonCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "daemon NODE kubelet|runtime|kube-proxy start|stop|kill|log",
		Short: "Start or stop a daemon of a node, or print its log",
		Long:  `Start or stop a daemon of a node, or print its log. A stopped daemon stays down until "start".`,
		Args:  cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := bed.Open(*name)
			if err != nil {
				return err
			}
			node, d := args[0], bed.Daemon(args[1])
			switch args[2] {
			case "start":
				return b.Start(cmd.Context(), node, d)
			case "stop":
				return b.Stop(cmd.Context(), node, d)
			case "kill":
				return b.Kill(cmd.Context(), node, d)
			case "log":
				return printFile(cmd, b.Log(node, d))
			}
			return fmt.Errorf("%q is none of start, stop, kill and log", args[2])
		},
	}
}

func printFile(cmd *cobra.Command, path string) error {
	data, err := os.ReadFile(path)
	if err == nil {
		_, err = cmd.OutOrStdout().Write(data)
	}
	return err
}

func controlPlaneCommand(name *string) *cobra.Command {
	var set []string
	cmd := &cobra.Command{
		Use:   "control-plane etcd|apiserver|kcm|scheduler start|stop|kill|restart|pause|resume|log",
		Short: "Start, stop, stall or inspect a part of the control plane",
		Long: `Start, stop, stall or inspect a part of the control plane. pause is SIGSTOP: the part hangs until resume.
With start and restart, --set gives a flag of the part another value and --set FLAG- leaves one out.`,
		Example: "  e2e control-plane kcm restart --set cluster-cidr=10.77.0.0/20",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := bed.Open(*name)
			if err != nil {
				return err
			}
			flags, err := controlplane.ParseFlags(set)
			if err != nil {
				return err
			}
			p, part := b.Plane(), controlplane.Part(args[0])
			acts := map[string]func() error{
				"start":   func() error { return p.Start(cmd.Context(), part, flags) },
				"restart": func() error { return p.Restart(cmd.Context(), part, flags) },
				"stop":    func() error { return p.Stop(cmd.Context(), part) },
				"kill":    func() error { return p.Kill(cmd.Context(), part) },
				"pause":   func() error { return p.Pause(part) },
				"resume":  func() error { return p.Resume(part) },
				"log":     func() error { return printFile(cmd, p.Log(part)) },
			}
			act, known := acts[args[1]]
			if !known || !strings.Contains(cmd.Use, args[0]) {
				return errors.New("write: " + cmd.UseLine())
			}
			return act()
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "with start and restart: FLAG=VALUE, or FLAG-; may be repeated")
	return cmd
}
