package pods

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
)

// Serve answers CNI requests until ctx ends. The network configuration is installed only when the socket is
// there to answer.
func (p *Pods) Serve(ctx context.Context, shim string) error {
	server, err := cniserver.Listen(cniserver.Config{
		Socket:  p.Config.CNISocket,
		Handler: p,
		IPAM:    p.Addresses.Secondary(),
		Log:     p.Log,
		Observe: p.Metrics.Pods.Request,
	})
	if err != nil {
		return err
	}
	runtime := p.Board.Load().Runtime
	if err := p.announce(ctx, shim, runtime); err != nil {
		return fmt.Errorf("installing the CNI network configuration: %w", closed(server, err))
	}
	p.Board.Serving()
	p.Log.Info("ready: serving CNI requests", "socket", p.Config.CNISocket)
	var announcing sync.WaitGroup
	announcing.Go(func() { p.followRuntime(ctx, shim, runtime) })
	defer announcing.Wait()
	return server.Serve(ctx)
}

// followRuntime announces again when the node's container runtime is another than announced: it was upgraded.
func (p *Pods) followRuntime(ctx context.Context, shim, announced string) {
	tick := time.NewTicker(time.Second) // a look costs nothing
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		runtime := p.Board.Load().Runtime
		if runtime == announced {
			continue
		}
		if err := p.announce(ctx, shim, runtime); err != nil {
			p.Log.Error(err, "installing the CNI network configuration", "runtime", runtime)
			tick.Reset(p.Intervals.Reconcile)
			continue
		}
		announced = runtime
	}
}

func closed(server *cniserver.Server, err error) error {
	if cerr := server.Close(); cerr != nil {
		return fmt.Errorf("%w (and closing the socket: %w)", err, cerr)
	}
	return err
}

// announce installs the CNI plugin and writes the network configuration list.
func (p *Pods) announce(ctx context.Context, shim, runtime string) error {
	if shim != "" {
		changed, err := conflist.Plugins{BinDir: conflist.DefaultBinDir, Kept: conflist.DefaultKept}.InstallShim(shim)
		if err != nil {
			return err
		}
		if changed {
			p.Log.Info("CNI plugin installed", "directory", conflist.DefaultBinDir)
		}
	}
	changed, warnings, err := conflist.Write(ctx, conflist.Config{
		Path: conflist.DefaultPath, BinDirs: []string{conflist.DefaultBinDir}, Socket: p.Config.CNISocket, Runtime: runtime})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		p.Log.Info("CNI network configuration", "warning", w)
	}
	if changed {
		p.Log.Info("CNI network configuration written", "path", conflist.DefaultPath, "runtime", runtime)
	}
	return nil
}
