package events

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/test/e2e/install"
)

const release = "fairlead"

// helmInstall installs Fairlead and waits until all nodes are Ready.
func helmInstall() event {
	return event{name: "helm install", free: onlyHost, undo: uninstallByHelm, do: installByHelm}
}

// helmUninstall restores all nodes and deletes Fairlead. Pods lose their network, hosts must not.
func helmUninstall() event {
	return event{name: "helm uninstall", free: onlyHost, undo: installByHelm, do: uninstallByHelm}
}

func installByHelm(ctx context.Context, c *busy) error {
	if err := c.helmWithChart(ctx, "install"); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

func uninstallByHelm(ctx context.Context, c *busy) error {
	if _, err := install.Helm(ctx, c.Bed, "uninstall", release); err != nil {
		return err
	}
	return await(ctx, "the end of Fairlead's pods", func() error {
		out, err := c.Kubectl(ctx, "get", "pods", "-n", "kube-system", "-o", "name", "-l", "app.kubernetes.io/part-of=fairlead")
		if err == nil && out != "" {
			err = fmt.Errorf("there are still %s", out)
		}
		return err
	})
}

// helmRollback rolls the upgrade back.
func helmRollback() event {
	return event{name: "helm rollback", free: everything, do: rollbackByHelm,
		// A rollback is undone by another one, to the revision before.
		undo: func(ctx context.Context, c *busy) error {
			if _, err := install.Helm(ctx, c.Bed, "rollback", release); err != nil {
				return err
			}
			return c.awaitVersion(ctx, true)
		}}
}

func rollbackByHelm(ctx context.Context, c *busy) error {
	if _, err := install.Helm(ctx, c.Bed, "rollback", release); err != nil {
		return err
	}
	return c.awaitVersion(ctx, false)
}

// helmWithChart runs "helm install" or "helm upgrade" as docs/install.md does, with the values of mode steer and the
// given ones.
func (c *busy) helmWithChart(ctx context.Context, verb string, values ...string) error {
	chart, err := install.Chart()
	if err != nil {
		return err
	}
	args := append([]string{verb, release, chart}, install.Sets(c.Bed, append(install.Steer(), values...)...)...)
	_, err = install.Helm(ctx, c.Bed, args...)
	return err
}

// awaitVersion waits until the agent on each node is of the other version of the image, or of the first one again.
func (c *busy) awaitVersion(ctx context.Context, next bool) error {
	if err := c.rolledOut(ctx); err != nil {
		return err
	}
	return c.awaitAgents(ctx, install.NextTag, next)
}

// awaitAgents waits until the agent on each node is of that version or, without want, of another.
func (c *busy) awaitAgents(ctx context.Context, version string, want bool) error {
	for _, node := range c.Nodes() {
		err := await(ctx, "the version of the agent on "+node, func() error {
			pod, err := c.PodOf(ctx, "fairlead-agent", node)
			if err != nil {
				return err
			}
			out, err := c.Kubectl(ctx, "exec", "-n", "kube-system", pod, "-c", "fairlead-agent", "--", "fairlead-agent", "--version")
			if is := strings.HasSuffix(strings.TrimSpace(out), " "+version); err == nil && is != want {
				err = fmt.Errorf("it is %s", out)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
