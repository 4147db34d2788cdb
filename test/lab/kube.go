package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

func kubectlCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [ARG...]",
		Short: "Run kubectl as the administrator of the lab's cluster",
		Long: `Run kubectl as the administrator of the lab's cluster. All arguments are kubectl's. It runs on the
host "control-plane": files in /run are that host's.`,
		Example: "  lab kubectl get nodes,pods -A -o wide\n  lab --name b kubectl describe node node1",
		// kubectl parses its own flags. Those of lab precede the word kubectl.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "--help" || args[0] == "-h" {
				return cmd.Help()
			}
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			return l.ExecKubectl(args)
		},
	}
}

func controlPlaneCommand(dir *string) *cobra.Command {
	var set []string
	var follow bool
	wait := 2 * time.Minute
	cmd := &cobra.Command{
		Use:   "control-plane etcd|apiserver|kcm start|stop|kill|restart|pause|resume|log\n  lab control-plane wipe",
		Short: "Start, stop, stall or inspect a part of the control plane",
		Long: `Start, stop, stall or inspect a part of the control plane: etcd, apiserver (kube-apiserver) or kcm
(kube-controller-manager).

start waits until the part serves; stop is SIGTERM, kill is SIGKILL. pause is SIGSTOP: the part
hangs, its connections stay open and nothing answers on them, until resume. With start and
restart, --set gives a flag of the part another value and --set FLAG- leaves one out; that is
kept for later starts.

wipe makes the cluster forget everything: all parts are killed, etcd's data is deleted, and all
start again. Then Nodes are registered and agents get new tokens, as kubelets would see to.`,
		Example: `  lab control-plane apiserver pause
  lab control-plane kcm restart --set cluster-cidr=10.77.0.0/20`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			flags, err := controlplane.ParseFlags(set)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			if len(args) == 1 && args[0] == "wipe" {
				return l.Wipe(ctx)
			}
			part, act, err := partAndAct(args)
			if err != nil {
				return err
			}
			p, err := l.Plane()
			if err != nil {
				return err
			}
			if act == "log" {
				return printLog(cmd.Context(), cmd.OutOrStdout(), p.Log(part), follow)
			}
			return controlPlaneAct(ctx, p, part, act, flags)
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "with start and restart: FLAG=VALUE, or FLAG-; may be repeated")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "with log: keep printing")
	cmd.Flags().DurationVar(&wait, "wait", wait, "timeout of the command")
	return cmd
}

func partAndAct(args []string) (controlplane.Part, string, error) {
	for _, part := range controlplane.Parts() {
		if string(part) == args[0] && len(args) == 2 {
			return part, args[1], nil
		}
	}
	return "", "", fmt.Errorf("write: lab control-plane PART ACT, with a PART of %v, or lab control-plane wipe",
		controlplane.Parts())
}

func controlPlaneAct(ctx context.Context, p controlplane.Plane, part controlplane.Part, act string,
	set controlplane.Flags) error {
	if len(set) > 0 && act != "start" && act != "restart" {
		return fmt.Errorf("--set belongs to start and restart")
	}
	switch act {
	case "start":
		return p.Start(ctx, part, set)
	case "restart":
		return p.Restart(ctx, part, set)
	case "stop":
		return p.Stop(ctx, part)
	case "kill":
		return p.Kill(ctx, part)
	case "pause":
		return p.Pause(part)
	case "resume":
		return p.Resume(part)
	default:
		return errUnknownAct(act, "start, stop, kill, restart, pause, resume and log")
	}
}

func kubeProxyCommand(dir *string) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "kube-proxy NODE start|stop|log",
		Short: "Start, stop or inspect a node's kube-proxy",
		Long: `Start, stop or inspect a node's kube-proxy. Its kernel rules stay when it ends: Services
work on as they were.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			switch args[1] {
			case "start":
				return l.KubeProxyStart(args[0])
			case "stop":
				return l.KubeProxyStop(cmd.Context(), args[0])
			case "log":
				proxy, err := l.KubeProxy(args[0])
				if err != nil {
					return err
				}
				return printLog(cmd.Context(), cmd.OutOrStdout(), proxy.Log(), follow)
			default:
				return errUnknownAct(args[1], "start, stop and log")
			}
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "with log: keep printing")
	return cmd
}
