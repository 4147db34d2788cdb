package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2/textlogger"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

func agentCommand(dir *string) *cobra.Command {
	var follow bool
	wait := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "agent NODE start|stop|kill|log|status",
		Short: "Start, stop or inspect a node's agent",
		Long: `Start, stop or inspect a node's agent. start waits until it is ready; stop is SIGTERM, kill is
SIGKILL. log prints what all agents of the node logged.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			ctx, node := cmd.Context(), args[0]
			if args[1] != "log" && follow {
				return fmt.Errorf("-f belongs to log")
			}
			switch args[1] {
			case "start":
				return startAgent(ctx, l, node, wait)
			case "stop":
				return l.AgentStop(ctx, node)
			case "kill":
				return l.AgentKill(ctx, node)
			case "log":
				path, err := l.AgentLog(node)
				if err != nil {
					return err
				}
				return printLog(ctx, cmd.OutOrStdout(), path, follow)
			case "status":
				s, err := l.AgentState(ctx, node)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), s)
				}
				return err
			default:
				return errUnknownAct(args[1], "start, stop, kill, log and status")
			}
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "with log: keep printing")
	cmd.Flags().DurationVar(&wait, "wait", wait, "with start: timeout for readiness; 0: do not wait")
	return cmd
}

func startAgent(ctx context.Context, l *lab.Lab, node string, wait time.Duration) error {
	if err := l.AgentStart(ctx, node); err != nil || wait == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := l.WaitReady(ctx, node); err != nil {
		return fmt.Errorf("%w (see: lab agent %s log)", err, node)
	}
	return nil
}

func runnerCommand(dir *string) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "runner start|stop|kill|log|status",
		Short: "Start, stop or inspect the pod runner",
		Long: `Start, stop or inspect the pod runner, the process that stands for kubelet and container runtime
of all nodes. While it does not run, pods stay as they are and manifests wait.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			if args[0] != "log" && follow {
				return fmt.Errorf("-f belongs to log")
			}
			switch args[0] {
			case "start":
				return l.RunnerStart(cmd.Context())
			case "stop":
				return l.RunnerStop(cmd.Context())
			case "kill":
				return l.RunnerKill(cmd.Context())
			case "log":
				return printLog(cmd.Context(), cmd.OutOrStdout(), l.RunnerLog(), follow)
			case "status":
				fmt.Fprintln(cmd.OutOrStdout(), runnerState(l))
				return nil
			default:
				return errUnknownAct(args[0], "start, stop, kill, log and status")
			}
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "with log: keep printing")
	return cmd
}

// daemonCommand is the pod runner itself; "lab up" and "lab runner start" start it.
func daemonCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:    lab.DaemonCommand,
		Short:  "Run the pod runner in the foreground",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.RunDaemon(cmd.Context(), *dir, textlogger.NewLogger(textlogger.NewConfig()))
		},
	}
}

// printLog prints a log, and with follow what is appended until ctx ends.
func printLog(ctx context.Context, w io.Writer, path string, follow bool) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("there is no log yet: %w", err)
	}
	defer f.Close()
	for {
		if _, err := io.Copy(w, f); err != nil || !follow {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}
