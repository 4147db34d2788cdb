package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
)

// Cost of each event with tunnels, where the node's NIC is a port of Open vSwitch.
func TestE2EEventsBridge(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Minute)
	defer cancel()
	c := up(t, bed.Options{Name: "events"}, install.Bridge())
	c.happenAll(ctx, t, c.ways(ctx, t), append(harmless(), death(), replacement()))
}

// In mode steer the host does not depend on Open vSwitch: it loses nothing, even if Open vSwitch fails.
func TestE2EEventsSteer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Minute)
	defer cancel()
	c := up(t, bed.Options{Name: "events", KubeProxy: bed.IPTables}, install.Steer())
	kill, replace := death(), replacement()
	kill.free, replace.free = []string{ofHost}, []string{ofHost}
	c.happenAll(ctx, t, c.ways(ctx, t), append(harmless(), kill, replace))
}

const victim = "node1"

// harmless are events that cost no packet.
func harmless() []event {
	free := []string{ofHost, ofPods}
	return []event{
		{"nothing", nothing, free},
		{"agent killed", func(ctx context.Context, c *busy) error {
			return c.killContainer(ctx, "fairlead-agent", "fairlead-agent")
		}, free},
		{"controllers killed", killControllers, free},
		{"kubelet killed", kill(bed.Kubelet), free},
		{"containerd killed", kill(bed.Containerd), free},
		{"API server killed, back after 5 s", killAPIServer, free},
		{"rolling upgrade of the agents", upgradeAgents, free},
	}
}

// death kills ovs-vswitchd; its container starts it again.
func death() event {
	return event{name: "ovs-vswitchd killed", do: func(ctx context.Context, c *busy) error {
		pod, err := c.podOf(ctx, "fairlead-ovs")
		if err != nil {
			return err
		}
		_, err = c.Kubectl(ctx, "exec", "-n", "kube-system", pod, "-c", "fairlead-ovs", "--",
			"sh", "-c", "kill -KILL $(cat /run/openvswitch/ovs-vswitchd.pid)")
		return err
	}}
}

// replacement replaces Open vSwitch's pod on one node, as an upgrade of it does.
func replacement() event {
	return event{name: "fairlead-ovs replaced", do: func(ctx context.Context, c *busy) error {
		pod, err := c.podOf(ctx, "fairlead-ovs")
		if err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, "delete", "pod", "-n", "kube-system", pod); err != nil {
			return err
		}
		return await(ctx, "the new pod of fairlead-ovs", func() error { return c.ready(ctx, "fairlead-ovs") })
	}}
}

// podOf is the name of the pod of a DaemonSet on the node that the events affect.
func (c *busy) podOf(ctx context.Context, set string) (string, error) {
	out, err := c.Kubectl(ctx, "get", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/name="+set,
		"--field-selector=spec.nodeName="+victim, "-o", "jsonpath={.items[*].metadata.name}")
	if err == nil && len(strings.Fields(out)) != 1 {
		err = fmt.Errorf("%s on %s: pods %q, want one", set, victim, out)
	}
	return strings.TrimSpace(out), err
}

// ready returns an error while the pod of a DaemonSet on that node is not ready.
func (c *busy) ready(ctx context.Context, set string) error {
	pod, err := c.podOf(ctx, set)
	if err != nil {
		return err
	}
	out, err := c.Kubectl(ctx, "get", "pod", "-n", "kube-system", pod,
		"-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if err == nil && out != "True" {
		err = fmt.Errorf("pod %s is not ready", pod)
	}
	return err
}

// await waits until there is no error.
func await(ctx context.Context, what string, until func() error) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.Patience)
	defer cancel()
	if err := cluster.Await(ctx, until); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// killContainer kills the main process of a container with SIGKILL, and waits for the next one.
func (c *busy) killContainer(ctx context.Context, set, container string) error {
	pod, err := c.podOf(ctx, set)
	if err != nil {
		return err
	}
	id := func() (string, error) {
		out, err := c.Kubectl(ctx, "get", "pod", "-n", "kube-system", pod, "-o",
			`jsonpath={.status.containerStatuses[?(@.name=="`+container+`")].containerID}`)
		return strings.TrimPrefix(out, "containerd://"), err
	}
	before, err := id()
	if err != nil {
		return err
	}
	if _, err := c.NodeExec(ctx, victim, "ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", before); err != nil {
		return err
	}
	return await(ctx, "the next container "+container, func() error {
		if after, err := id(); err != nil || after == before {
			return errors.Join(err, errors.New("it has not begun"))
		}
		return c.ready(ctx, set)
	})
}

func killControllers(ctx context.Context, c *busy) error {
	_, err := c.Kubectl(ctx, "delete", "pod", "-n", "kube-system", "-l", "app.kubernetes.io/name=fairlead-controller",
		"--grace-period=0", "--force")
	if err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "rollout", "status", "-n", "kube-system", "deployment/fairlead-controller", "--timeout=120s")
	return err
}

// kill kills a daemon of the node, and starts it again.
func kill(d bed.Daemon) func(context.Context, *busy) error {
	return func(ctx context.Context, c *busy) error {
		if err := c.Kill(ctx, victim, d); err != nil {
			return err
		}
		return errors.Join(c.Start(ctx, victim, d), c.WaitReady(ctx))
	}
}

func killAPIServer(ctx context.Context, c *busy) error {
	plane := c.Plane()
	if err := plane.Kill(ctx, controlplane.APIServer); err != nil {
		return err
	}
	select { // duration of the outage
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(5 * time.Second):
	}
	return errors.Join(plane.Start(ctx, controlplane.APIServer, nil), c.WaitReady(ctx))
}

// upgradeAgents replaces all agents, one node after the other, as an image upgrade does.
func upgradeAgents(ctx context.Context, c *busy) error {
	_, err := c.Kubectl(ctx, "rollout", "restart", "-n", "kube-system", "daemonset/fairlead-agent")
	if err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "rollout", "status", "-n", "kube-system", "daemonset/fairlead-agent", "--timeout=180s")
	return err
}
