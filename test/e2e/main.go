// Command e2e runs a real Kubernetes cluster on one machine, for trying Fairlead out and for tests: kubelets, container
// runtimes and a control plane, in namespaces. The implementation is package bed; this package has the commands and
// flags.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

const long = `Run a Kubernetes cluster on this machine: nodes with a real kubelet and container runtime each, in
namespaces of their own, an underlay with the VLANs 10 and 20, and a control plane. The nodes have no network
until you give them one: apply Fairlead's manifest, or use --cni bridge.

Needs root and, on Debian, what "make deps" installs. "e2e down" removes everything. One setting of
the machine is changed, which is reported: fs.inotify.max_user_instances, where it is below 1024.`

const example = `  e2e up --import out/image/fairlead.tar
  e2e kubectl apply -f build/manifests/fairlead.yaml
  e2e kubectl get nodes,pods -A -o wide
  e2e node node1 -- ovs-vsctl show
  e2e reboot node2
  e2e down`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second signal ends the program immediately.
	context.AfterFunc(ctx, stop)
	if err := root().ExecuteContext(ctx); err != nil {
		var ended *exec.ExitError
		if errors.As(err, &ended) && ended.ExitCode() > 0 {
			os.Exit(ended.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "e2e",
		Short:         "Run a real Kubernetes cluster on this machine",
		Long:          long,
		Example:       example,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.TraverseChildren = true // so that --name is parsed before kubectl, whose flags are not
	name := cmd.PersistentFlags().String("name", "", "name of the cluster; several can be up at the same time")
	cmd.AddCommand(upCommand(name), downCommand(name), kubectlCommand(name), nodeCommand(name), importCommand(name),
		rebootCommand(name), daemonCommand(name), controlPlaneCommand(name))
	return cmd
}
