// Command e2e-tool is the only program in the pods of the end-to-end tests: a server and a client. It is also what the
// nodes of a bed need beside Kubernetes: their process 1, and the hook that shows containers the boot ID of their node.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

func main() {
	host.Init()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e-tool:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "e2e-tool",
		Short:         "The program in pods of the end-to-end tests; without a command it waits, as a pause container does",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pause(cmd.Context())
			return nil
		},
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(serveCommand(), getCommand(), askCommand(), showCommand(), bootIDCommand(), runcCommand())
	return cmd
}

// pause waits until ctx ends, and reaps orphans: it may be process 1 of a pod.
func pause(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}

// showCommand prints files: the image has no cat.
func showCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE...",
		Short: "Print files",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, file := range args {
				data, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				if _, err := cmd.OutOrStdout().Write(data); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// timeoutFlag is the clients' flag --timeout.
func timeoutFlag(cmd *cobra.Command) *time.Duration {
	return cmd.Flags().Duration("timeout", 3*time.Second, "timeout of a reply")
}
