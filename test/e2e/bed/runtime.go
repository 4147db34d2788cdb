package bed

import (
	"context"
	"io"
	"os/exec"

	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// containerRuntime is a kind of container runtime, of a bed's nodes.
type containerRuntime interface {
	// socket is the path of its CRI socket on each node.
	socket() string
	// start starts it on a node, and waits until it serves.
	start(ctx context.Context, node string) error
	// load is the command that, on a node, imports an archive of images on its standard input, which is a file.
	load(ctx context.Context) *exec.Cmd
	// runcRoot is where its runc keeps the state of containers.
	runcRoot() string
}

func (b *Bed) runtime() containerRuntime {
	if b.spec.Runtime == CRIO {
		return crio{b}
	}
	return containerd{b}
}

// getRuntime returns the directory of a runtime's programs, and builds them if needed. It is empty for an installed
// runtime.
func getRuntime(ctx context.Context, progress io.Writer, name string) (string, error) {
	switch name {
	case Containerd23:
		return kubebin.GetContainerd(ctx, progress)
	case CRIO:
		return kubebin.GetCRIO(ctx, progress)
	}
	return "", nil
}

// KillContainer kills the main process of a container with SIGKILL, bypassing the runtime.
func (b *Bed) KillContainer(ctx context.Context, node, id string) error {
	_, err := b.NodeExec(ctx, node, "runc", "--root", b.runtime().runcRoot(), "kill", id, "KILL")
	return err
}
