package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
)

// serve answers CNI requests until ctx ends. The runtime is told about the
// network only when the socket is there to answer.
func (p *pods) serve(ctx context.Context, o Options) error {
	server, err := cniserver.Listen(cniserver.Config{
		Socket:  o.Config.CNISocket,
		Handler: p,
		IPAM:    secondary{p},
		Log:     p.log,
		Observe: p.metrics.cniRequest,
	})
	if err != nil {
		return err
	}
	runtime := p.loop.state.Load().runtime
	if err := p.announce(ctx, o, runtime); err != nil {
		return fmt.Errorf("telling the container runtime about Fairlead: %w", closed(server, err))
	}
	p.loop.serving.Store(true)
	p.log.Info("ready: CNI requests are answered", "socket", o.Config.CNISocket)
	var announcing sync.WaitGroup
	announcing.Go(func() { p.followRuntime(ctx, o, runtime) })
	defer announcing.Wait()
	return server.Serve(ctx)
}

// followRuntime announces again when the node's container runtime is another than announced: it was upgraded.
func (p *pods) followRuntime(ctx context.Context, o Options, announced string) {
	tick := time.NewTicker(time.Second) // a look costs nothing
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		runtime := p.loop.state.Load().runtime
		if runtime == announced {
			continue
		}
		if err := p.announce(ctx, o, runtime); err != nil {
			p.log.Error(err, "telling the container runtime about Fairlead", "runtime", runtime)
			tick.Reset(reconcileEvery)
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
func (p *pods) announce(ctx context.Context, o Options, runtime string) error {
	if o.Shim != "" {
		changed, err := conflist.Plugins{BinDir: conflist.DefaultBinDir, Kept: conflist.DefaultKept}.InstallShim(o.Shim)
		if err != nil {
			return err
		}
		if changed {
			p.log.Info("CNI plugin installed", "directory", conflist.DefaultBinDir)
		}
	}
	changed, warnings, err := conflist.Write(ctx, conflist.Config{
		Path: conflist.DefaultPath, BinDirs: []string{conflist.DefaultBinDir}, Socket: o.Config.CNISocket, Runtime: runtime})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		p.log.Info("CNI network configuration", "warning", w)
	}
	if changed {
		p.log.Info("CNI network configuration written", "path", conflist.DefaultPath, "runtime", runtime)
	}
	return nil
}
