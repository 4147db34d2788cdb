package pods

import (
	"context"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
)

// announcement is what the container runtime sees of Fairlead: the CNI plugin and the network configuration list.
type announcement struct {
	*Pods
	shim    string // the plugin's source; empty: it is installed externally
	plugins conflist.Plugins
	path    string

	runtime string // for which it was installed
	// stamp is the stamp of the files, taken before they were found complete. Empty: they were not.
	stamp    string
	warnings []string
}

// install installs the plugin and writes the list, as far as they are not there.
func (a *announcement) install(ctx context.Context, runtime string) error {
	list := a.list(runtime)
	stamp, changed := conflist.Stamp(list), false
	if a.shim != "" {
		var err error
		if changed, err = a.plugins.InstallShim(a.shim); err != nil {
			return err
		}
		if changed {
			a.Log.Info("CNI plugin installed", "directory", a.plugins.BinDir)
		}
	}
	done, err := conflist.Write(ctx, list)
	if err != nil {
		return err
	}
	a.Board.RuntimeUses(done.Beaten)
	if !slices.Equal(done.Warnings, a.warnings) {
		for _, w := range done.Warnings {
			a.Log.Info("CNI network configuration", "warning", w)
		}
	}
	if done.Changed {
		a.Log.Info("CNI network configuration written", "path", a.path, "runtime", runtime)
	}
	a.runtime, a.warnings, a.stamp = runtime, done.Warnings, stamp
	if changed || done.Changed || done.Slow { // a stamp taken now would hide concurrent changes
		a.stamp = ""
	}
	return nil
}

func (a *announcement) list(runtime string) conflist.Config {
	return conflist.Config{Path: a.path, BinDirs: []string{a.plugins.BinDir}, Socket: a.Config.CNISocket, Runtime: runtime}
}

// follow installs again when the node's container runtime has changed, as after an upgrade, and when the files or other
// CNI plugins have changed: without the list kubelet reports the node as not ready, without the plugin no pod starts.
func (a *announcement) follow(ctx context.Context) {
	signal.Loop(ctx, a.Intervals.Reconcile, a.Board.OtherRuntime(), func(ctx context.Context) {
		runtime := a.Board.Load().Runtime
		if err := a.reinstall(ctx, runtime); err != nil {
			a.Log.Error(err, "installing the CNI network configuration", "runtime", runtime)
		}
	})
}

// reinstall installs again, unless everything is as it was installed for this runtime.
func (a *announcement) reinstall(ctx context.Context, runtime string) error {
	if runtime == a.runtime && a.stamp == conflist.Stamp(a.list(runtime)) {
		return nil
	}
	err := a.install(ctx, runtime)
	if err != nil {
		a.Board.RuntimeUses(fmt.Errorf("installing the CNI network configuration: %w", err))
	}
	return err
}
