package lab

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Reboot is a power failure of a node and its next boot: all processes are killed, the namespaces with their
// interfaces, addresses, routes and pods are recreated, /run is empty and the boot ID another. The disk is kept, Open
// vSwitch's database and the agent's files included. Open vSwitch starts first, with the boot unit beside it, then the
// NIC gets its addresses as from the distribution's configuration. The agent is not started: AgentStart does it. A
// running pod runner sees that sandboxes are gone, as kubelet does.
func (l *Lab) Reboot(ctx context.Context, node string) error {
	h, n, err := l.node(node)
	if err != nil {
		return err
	}
	runs := l.RunnerPID() != 0
	if err := l.RunnerStop(ctx); err != nil {
		return err
	}
	if err := l.powerOff(ctx, h, n); err != nil {
		return fmt.Errorf("rebooting %s: %w", node, err)
	}
	if err := l.boot(ctx, n); err != nil {
		return fmt.Errorf("rebooting %s: %w", node, err)
	}
	if l.spec.Cluster == Kube {
		if err := l.KubeProxyStart(node); err != nil {
			return err
		}
	}
	if !runs {
		return nil
	}
	return l.RunnerStart(ctx)
}

func (l *Lab) powerOff(ctx context.Context, h host.Host, n int) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := host.End(ctx, Guard.PID(h), unix.SIGTERM); err != nil { // as in stopPolitely
		return err
	}
	if err := host.Kill(ctx, h); err != nil {
		return err
	}
	if err := l.underlay().UnplugNode(ctx, n); err != nil {
		return err
	}
	return h.ShutDown()
}
