// Command fairlead-controller is the cluster's side of Fairlead. This file has flags,
// signals and exit codes; the work is in package controller.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/config"
	"github.com/fairlead-cni/fairlead/controller"
	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/kube"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitError = 1
	exitUsage = 2
)

// usageError is a mistake in the flags or the config file.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "fairlead-controller: %v\n", err)
	stop()
	if usage := (usageError{}); errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitError)
}

type flags struct {
	config, kubeconfig, healthSocket string
	check                            bool
}

func command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "fairlead-controller",
		Short: "Assigns podCIDRs, reports the usage of IPPools, reclaims addresses of lost Nodes",
		Long: `fairlead-controller assigns podCIDRs to Nodes, with nodeIPAM.enableNodeIPAM. It reports the
usage of IPPools and problems with them, in their status and in metrics. It keeps a deleted
pool until none of its addresses is in use. With reclaim.enable it reclaims addresses of pods
whose Nodes are deleted or fenced. Agents work without it. Of several replicas one is the
leader, the others stand by.

Exit codes: 0 stopped by a signal, 1 run-time error, 2 invalid flags or config file.`,
		Example: `  fairlead-controller --config /etc/fairlead/controller.conf
  fairlead-controller --kubeconfig ~/.kube/config`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("%q: fairlead-controller takes no arguments, only flags", args[0])}
			}
			return nil
		},
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return run(c.Context(), f) },
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.Flags().StringVar(&f.config, "config", "", "config file (default: none, every key has its default)")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; overrides clientConnection.kubeconfig")
	c.PersistentFlags().StringVar(&f.healthSocket, "health-socket", "",
		"unix socket that also serves /healthz and /readyz, so that several replicas can run on one node; only one of them listens on apiPort")
	c.Flags().BoolVar(&f.check, "check-config", false, "check the config, print warnings and errors, and stop")
	verbosity := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	c.Flags().AddGoFlag(verbosity.Lookup("v"))
	c.AddCommand(askCommand(&f.healthSocket))
	c.CompletionOptions.DisableDefaultCmd = true
	return c
}

// askTimeout ends a question: a controller that runs answers at once.
const askTimeout = 10 * time.Second

func askCommand(socket *string) *cobra.Command {
	return &cobra.Command{
		Use:   "ask healthz|readyz --health-socket PATH",
		Short: "Queries the health of the controller that serves a socket",
		Long: `ask is for probes of a pod. It queries the controller that runs with the same --health-socket:
healthz (it runs) or readyz (its caches are synced with the API server). It exits with 0 if so,
else with 1 and the reason.`,
		Example: `  fairlead-controller ask readyz --health-socket /dev/shm/health.sock`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] != "healthz" && args[0] != "readyz" {
				return usageError{fmt.Errorf("unknown probe %q: want healthz or readyz", strings.Join(args, " "))}
			}
			if *socket == "" {
				return usageError{errors.New("--health-socket is required: the socket of the controller")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), askTimeout)
			defer cancel()
			return controller.Ask(ctx, *socket, args[0])
		},
	}
}

func run(ctx context.Context, f flags) error {
	cfg, warnings, err := config.ParseController(nil, "")
	if f.config != "" {
		cfg, warnings, err = config.LoadController(f.config)
	}
	if err != nil {
		return usageError{err}
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
		return usageError{fmt.Errorf("the environment variable %s: %w", api.IntervalsVariable, err)}
	}
	log := klog.Background()
	for _, w := range warnings {
		log.Info("config", "warning", w)
	}
	cfg.ClientConnection.Kubeconfig = cmp.Or(f.kubeconfig, cfg.ClientConnection.Kubeconfig)
	client, err := kube.NewFor(controller.Component, cfg.KubeAPIServerOverride, cfg.ClientConnection, version)
	if err != nil {
		return usageError{err}
	}
	log.Info("starting fairlead-controller", "version", version, "config", f.config, "server", client.Server)
	o := controller.Options{Config: cfg, Client: client.Dynamic, Kubernetes: client.Kubernetes, Log: log,
		Intervals: intervals.Controller, HealthSocket: f.healthSocket, Version: version}
	o.OtherAllocator = func(ctx context.Context) (string, error) { return podcidr.OtherAllocator(ctx, client.Kubernetes) }
	err = controller.Run(ctx, o)
	if err == nil {
		log.Info("fairlead-controller stopped")
	}
	return err
}
