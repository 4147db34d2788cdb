// Command fairlead-controller does Fairlead's cluster-wide work. This file has flags, signals and exit codes; the work
// is in package controller.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/config"
	"github.com/fairlead-cni/fairlead/controller"
	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/migrate/takedown"
)

// version is set by the linker.
var version = "dev"

func main() { cli.Main("fairlead-controller", command(), cli.Code) }

type flags struct {
	config, kubeconfig, healthSocket string
	check                            bool
}

func command() *cobra.Command {
	var f flags
	c := cli.Root(&cobra.Command{
		Use:   "fairlead-controller",
		Short: "Assigns podCIDRs, reports the usage of IPPools, and reclaims addresses of lost Nodes",
		Long: `fairlead-controller assigns podCIDRs to Nodes, with nodeIPAM.enableNodeIPAM. It reports the
usage of IPPools and problems with them, in their status and in metrics. It keeps a deleted
pool until none of its addresses is in use. With reclaim.enable it reclaims addresses of pods
whose Nodes are deleted or fenced. Agents work without it. Of several replicas one is the
leader, the others stand by.

Exit codes: 0 stopped by a signal, 1 run-time error, 2 invalid flags or config file.`,
		Example: `  fairlead-controller --config /etc/fairlead/controller.conf
  fairlead-controller --kubeconfig ~/.kube/config`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), f) },
	}, version)
	c.Flags().StringVar(&f.config, "config", "", "config file (default: none, every key has its default)")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; overrides clientConnection.kubeconfig")
	c.PersistentFlags().StringVar(&f.healthSocket, "health-socket", "",
		"unix socket that also serves /healthz and /readyz, so that several replicas can run on one node; only one of them listens on apiPort")
	c.Flags().BoolVar(&f.check, "check-config", false, "check the config, print warnings and errors, and stop")
	cli.Verbosity(c)
	c.AddCommand(queryCommand(&f.healthSocket))
	c.CompletionOptions.DisableDefaultCmd = true
	return c
}

// queryTimeout ends a query: a running controller answers at once.
const queryTimeout = 10 * time.Second

func queryCommand(socket *string) *cobra.Command {
	return &cobra.Command{
		Use:   "ask healthz|readyz --health-socket PATH",
		Short: "Queries the health of the controller that serves a socket",
		Long: `ask is for a pod's probes. It queries the controller that runs with the same --health-socket:
healthz (it runs) or readyz (its caches are synced with the API server). It exits with 0 if so,
else with 1 and the reason.`,
		Example: `  fairlead-controller ask readyz --health-socket /dev/shm/health.sock`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] != "healthz" && args[0] != "readyz" {
				return cli.Usage(fmt.Errorf("unknown probe %q: want healthz or readyz", strings.Join(args, " ")))
			}
			if *socket == "" {
				return cli.Usage(errors.New("--health-socket is required: the socket of the controller"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), queryTimeout)
			defer cancel()
			return controller.Query(ctx, *socket, args[0])
		},
	}
}

func run(ctx context.Context, f flags) error {
	cfg, warnings, err := config.ParseController(nil, "")
	if f.config != "" {
		cfg, warnings, err = config.LoadController(f.config)
	}
	if err != nil {
		return cli.Usage(err)
	}
	if f.check {
		for _, w := range warnings {
			fmt.Println("warning:", w)
		}
		fmt.Println(cmp.Or(f.config, "no config file") + ": ok")
		return nil
	}
	intervals, err := api.ParseIntervals(os.Getenv(api.IntervalsVariable))
	if err != nil {
		return cli.Usage(fmt.Errorf("the environment variable %s: %w", api.IntervalsVariable, err))
	}
	log := klog.Background()
	for _, w := range warnings {
		log.Info("config", "warning", w)
	}
	cfg.ClientConnection.Kubeconfig = cmp.Or(f.kubeconfig, cfg.ClientConnection.Kubeconfig)
	client, err := kube.NewFor(controller.Component, cfg.KubeAPIServerOverride, cfg.ClientConnection, version)
	if err != nil {
		return cli.Usage(err)
	}
	log.Info("starting fairlead-controller", "version", version, "config", f.config, "server", client.Server)
	o := controller.Options{Config: cfg, Client: client.Dynamic, Kubernetes: client.Kubernetes, Log: log,
		Intervals: intervals.Controller, HealthSocket: f.healthSocket, Version: version}
	o.OtherAllocator = func(ctx context.Context) (string, error) { return podcidr.OtherAllocator(ctx, client.Kubernetes) }
	o.Withdraw = func(ctx context.Context) (bool, error) { return takedown.Withdraw(ctx, client.Kubernetes) }
	err = controller.Run(ctx, o)
	if err == nil {
		log.Info("fairlead-controller stopped")
	}
	return err
}
