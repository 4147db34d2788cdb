package pods

import (
	"context"
	"fmt"
	"sync"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
)

// Serve answers CNI requests until ctx ends. The network configuration is installed only once the socket accepts
// requests.
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
	network := announcement{Pods: p, shim: shim, plugins: conflist.Plugins{BinDir: conflist.DefaultBinDir,
		Kept: conflist.DefaultKept}, path: conflist.DefaultPath}
	if err := network.install(ctx, p.Board.Load().Runtime); err != nil {
		return fmt.Errorf("installing the CNI network configuration: %w", closed(server, err))
	}
	p.Board.Serving()
	p.Log.Info("ready: serving CNI requests", "socket", p.Config.CNISocket)
	var following sync.WaitGroup
	following.Go(func() { network.follow(ctx) })
	defer following.Wait()
	return server.Serve(ctx)
}

func closed(server *cniserver.Server, err error) error {
	if cerr := server.Close(); cerr != nil {
		return fmt.Errorf("%w (and closing the socket: %w)", err, cerr)
	}
	return err
}
