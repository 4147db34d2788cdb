// Command fairlead-agent connects the pods of one node to the network through Open vSwitch. This file has flags,
// signals and exit codes; the work is in package agent.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/agent"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/config"
	"github.com/fairlead-cni/fairlead/ctl/nodecmd"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// version is set by the linker.
var version = "dev"

// Exit codes. 78 is EX_CONFIG of sysexits.h: the node has no usable podCIDR, and a restart alone will not help.
const (
	exitNoPodCIDR = 78
	// Of "uplink attach" and "uplink preflight".
	exitRefused    = 3
	exitRolledBack = 4
)

func main() {
	// No other goroutine gets this thread. Some switch theirs to a pod's network namespace for a moment, and a command
	// executed in the agent's Pod gets the namespaces of the process's first thread. Go does not promise that this is that
	// thread; code that stays in another namespace for longer takes care of that itself: link.OnThread.
	runtime.LockOSThread()
	cli.Main("fairlead-agent", command(), exitCode)
}

func exitCode(err error) int {
	podCIDR, refused := (*desired.PodCIDRError)(nil), (*preflight.RefusedError)(nil)
	switch {
	case errors.As(err, &refused):
		return exitRefused
	case errors.Is(err, uplink.ErrRolledBack):
		return exitRolledBack
	case errors.As(err, &podCIDR):
		return exitNoPodCIDR
	}
	return cli.Code(err)
}

type flags struct {
	config, controllerConfig, nodeName string
	check                              bool
}

func command() *cobra.Command {
	var f flags
	c := cli.Root(&cobra.Command{
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
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), f) },
	}, version)
	c.PersistentFlags().StringVar(&f.config, "config", "/etc/fairlead/agent.conf", "config file")
	c.Flags().BoolVar(&f.check, "check-config", false, "check the config, print warnings and errors, and stop")
	c.Flags().StringVar(&f.controllerConfig, "controller-config", "",
		"with --check-config: an antrea-controller.conf to check as well")
	c.Flags().StringVar(&f.nodeName, "node-name", "",
		"name of this node's Node (default: the environment variable NODE_NAME, else the host name)")
	cli.Verbosity(c)
	c.AddCommand(nodecmd.Uplink(&f.config), nodecmd.InstallCNI(), nodecmd.Uninstall())
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
		return cli.Usage(err)
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
		return cli.Usage(err)
	}
	if os.Geteuid() != 0 {
		return errors.New("the agent needs root: it creates network interfaces, routes and iptables rules")
	}
	intervals, err := api.ParseIntervals(os.Getenv(api.IntervalsVariable))
	if err != nil {
		return cli.Usage(fmt.Errorf("the environment variable %s: %w", api.IntervalsVariable, err))
	}
	log := klog.Background()
	for _, w := range warnings {
		log.Info("config", "warning", w)
	}
	limitProcessors()
	limitGarbage()
	log.Info("starting fairlead-agent", "version", version, "node", name, "config", f.config)
	err = agent.Run(ctx, agent.Options{Config: cfg, Version: version, NodeName: name, Shim: nodecmd.Shim(log),
		Intervals: intervals, Log: log})
	if err == nil {
		log.Info("fairlead-agent stopped, the data path stays in place")
	}
	return err
}

// nodeName is the flag, else NODE_NAME, else the host name in lower case, as kubelet names its Node.
func nodeName(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if env := os.Getenv("NODE_NAME"); env != "" {
		return env, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("determining the name of this node: %w (set --node-name)", err)
	}
	return strings.ToLower(host), nil
}
