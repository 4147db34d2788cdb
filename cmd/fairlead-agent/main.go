// Command fairlead-agent puts the pods of one node on the network through Open
// vSwitch. This file has flags, signals and exit codes; the work is in package
// agent.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/agent"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/config"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
)

// version is set by the linker.
var version = "dev"

// Exit codes. 78 is EX_CONFIG of sysexits.h: the node has no podCIDR that it
// can use, and a restart alone will not help.
const (
	exitError     = 1
	exitUsage     = 2
	exitNoPodCIDR = 78
	// Of "uplink attach" and "uplink preflight".
	exitRefused    = 3
	exitRolledBack = 4
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
	fmt.Fprintf(os.Stderr, "fairlead-agent: %v\n", err)
	stop()
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	podCIDR, usage, refused := (*agent.PodCIDRError)(nil), usageError{}, (*uplink.RefusedError)(nil)
	switch {
	case errors.As(err, &refused):
		return exitRefused
	case errors.Is(err, uplink.ErrRolledBack):
		return exitRolledBack
	case errors.As(err, &podCIDR):
		return exitNoPodCIDR
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitError
}

type flags struct {
	config, controllerConfig, nodeName string
	check                              bool
}

func command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "fairlead-agent",
		Short: "Connects the pods of this node to the network through Open vSwitch",
		Long: `fairlead-agent connects the pods of this node to the network through Open vSwitch.

It reads Nodes, Pods and Namespaces from the Kubernetes API or from a directory
of manifests, programs the bridge br-int, routes and iptables, and serves CNI
requests of the plugin "fairlead". It needs root and a running Open vSwitch. SIGTERM stops it;
the data path stays in place.

Exit codes: 0 stopped by a signal, 1 run-time error, 2 invalid flags or config file,
78 the node has no usable podCIDR.`,
		Example: `  fairlead-agent --config /etc/fairlead/agent.conf
  fairlead-agent --check-config --config /etc/fairlead/agent.conf`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("%q: fairlead-agent takes no arguments, only flags", args[0])}
			}
			return nil
		},
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return run(c.Context(), f) },
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.PersistentFlags().StringVar(&f.config, "config", "/etc/fairlead/agent.conf", "config file")
	c.Flags().BoolVar(&f.check, "check-config", false, "check the config, print warnings and errors, and stop")
	c.Flags().StringVar(&f.controllerConfig, "controller-config", "",
		"with --check-config: an antrea-controller.conf to check as well")
	c.Flags().StringVar(&f.nodeName, "node-name", "",
		"name of this node's Node (default: the environment variable NODE_NAME, else the host name)")
	verbosity := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	c.Flags().AddGoFlag(verbosity.Lookup("v"))
	c.AddCommand(uplinkCommand(&f.config), installCNICommand(), uninstallCommand())
	c.CompletionOptions.DisableDefaultCmd = true
	return c
}

func run(ctx context.Context, f flags) error {
	cfg, warnings, err := config.Load(f.config)
	if err == nil && f.controllerConfig != "" {
		var more []config.Finding
		_, more, err = config.LoadController(f.controllerConfig)
		warnings = append(warnings, more...)
	}
	if err != nil {
		return usageError{err}
	}
	if f.check {
		for _, w := range warnings {
			fmt.Println("warning:", w)
		}
		fmt.Println(f.config + ": ok")
		return nil
	}
	name, err := nodeName(f.nodeName)
	if err != nil {
		return usageError{err}
	}
	if os.Geteuid() != 0 {
		return errors.New("the agent needs root: it creates network interfaces, routes and iptables rules")
	}
	intervals, err := api.ParseIntervals(os.Getenv(api.IntervalsVariable))
	if err != nil {
		return usageError{fmt.Errorf("the environment variable %s: %w", api.IntervalsVariable, err)}
	}
	log := klog.Background()
	for _, w := range warnings {
		log.Info("config", "warning", w)
	}
	onOneProcessor()
	log.Info("starting fairlead-agent", "version", version, "node", name, "config", f.config)
	err = agent.Run(ctx, agent.Options{Config: cfg, Version: version, NodeName: name, Shim: shim(log),
		Intervals: intervals, Log: log})
	if err == nil {
		log.Info("fairlead-agent stopped, the data path stays in place")
	}
	return err
}

// onOneProcessor has the agent's own code take at most one of the node's processors. It is mostly waiting, and what it
// wakes up on other processors costs more than it gains: docs/performance.md has figures. The environment variable
// GOMAXPROCS says otherwise.
func onOneProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// nodeName is the flag, else NODE_NAME, else the host name in lower case as
// kubelet makes it.
func nodeName(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if env := os.Getenv("NODE_NAME"); env != "" {
		return env, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the name of this node: %w (set --node-name)", err)
	}
	return strings.ToLower(host), nil
}

// shim is the CNI plugin beside the agent's own binary.
func shim(log logr.Logger) string {
	self, err := os.Executable()
	if err != nil {
		log.Error(err, "looking for the CNI plugin to install")
		return ""
	}
	path := filepath.Join(filepath.Dir(self), "fairlead")
	if _, err := os.Stat(path); err != nil {
		log.Info("no CNI plugin next to the agent, not installing one", "path", path)
		return ""
	}
	return path
}
