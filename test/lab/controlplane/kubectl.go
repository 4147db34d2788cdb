package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// kubectl returns the command line and the environment of kubectl as the administrator, on the control plane's host.
// Its cache stays there, and the user's settings for other clusters are ignored.
func (p Plane) kubectl(args []string) (argv, env []string) {
	env = append(host.Env(), "KUBECONFIG="+p.AdminKubeconfig(), "KUBECACHEDIR=/run/lab/kubectl", "KUBERC=off")
	return append([]string{p.Program, "kubectl"}, args...), env
}

// ExecKubectl replaces this process with kubectl. It returns only if it fails.
func (p Plane) ExecKubectl(args []string) error {
	argv, env := p.kubectl(args)
	return p.Host.Exec("", argv, env)
}

// Kubectl runs kubectl as the administrator and returns its standard output. An error contains its standard error.
func (p Plane) Kubectl(ctx context.Context, stdin []byte, args ...string) (string, error) {
	argv, env := p.kubectl(args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, failed bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &failed
	err := p.Host.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(failed.String()))
	}
	return out.String(), err
}
