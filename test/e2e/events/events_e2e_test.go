package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
)

// Cost of each event with tunnels, where the node's NIC is a port of Open vSwitch.
func TestE2EEventsBridge(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Minute)
	defer cancel()
	c := &busy{Cluster: cluster.Start(t, bed.Options{Name: "events"}, install.Bridge()...),
		victim: "node1", other: "node2", third: "node3"}
	defer c.keep(t)
	c.run(t)
	c.police(ctx, t)
	events := append([]event{reboot(), drain(), lose()}, harmless()...)
	events = append(events, rollingRestart(), death("ovs-vswitchd"), death("ovsdb-server"), replacement())
	c.happenAll(ctx, t, c.paths(ctx, t), events...)
	t.Run("addresses of the lost node", c.reclaimed)
}

// In mode steer the host does not depend on Open vSwitch: it loses nothing, even if Open vSwitch fails. Helm installs
// Fairlead here, upgrades it to another version and back, and uninstalls it.
func TestE2EEventsSteer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Minute)
	defer cancel()
	_, err := kubebin.GetHelm(ctx, os.Stderr) // the build takes minutes: do it before any stream starts
	cluster.Must(t, err)
	next, err := install.Next(ctx, t.TempDir())
	cluster.Must(t, err)
	c := &busy{Cluster: cluster.Bare(t, bed.Options{Name: "events", KubeProxy: bed.IPTables, Images: []string{next}}),
		victim: "node2", other: "node1", third: "node3"}
	defer c.keep(t)
	before := c.Traces(t)
	c.happenAll(ctx, t, c.hostPaths(t), event{"nothing, without Fairlead", nothing, onlyHost, nil}, helmInstall())
	c.run(t)
	c.police(ctx, t)
	steer := func(e event) event {
		e.free = onlyHost
		return e
	}
	c.happenAll(ctx, t, c.paths(ctx, t), append(harmless(), helmUpgrade(), helmRollback(), steer(death("ovs-vswitchd")),
		steer(death("ovsdb-server")), steer(replacement()))...)
	t.Run("addresses of the rebooted node", c.noneKept)
	c.happenAll(ctx, t, c.hostPaths(t), helmUninstall())
	c.AsBefore(t, before)
}

// Kinds of traffic that an event must not affect.
var (
	everything = []string{ofHost, ofPods}
	// onlyHost is for events in which pods start and end on nodes: on the userspace datapath that costs other pods a
	// packet now and then (docs/restarts.md). The table shows how many.
	onlyHost = []string{ofHost}
)

// harmless are events that cost no packet.
func harmless() []event {
	return []event{
		{"nothing", nothing, everything, nil},
		{"agent killed", func(ctx context.Context, c *busy) error {
			return c.killContainer(ctx, "fairlead-agent", "fairlead-agent")
		}, everything, nil},
		{"controllers killed", killControllers, everything, nil},
		{"kubelet killed", kill(bed.Kubelet), everything, nil},
		{"runtime killed", kill(bed.Runtime), everything, nil},
		{"API server killed, back after 5 s", killAPIServer, everything, nil},
	}
}

// rollingRestart replaces all agents, one node after the other.
func rollingRestart() event {
	return event{name: "rolling restart of the agents", free: everything, do: func(ctx context.Context, c *busy) error {
		_, err := c.Kubectl(ctx, "rollout", "restart", "-n", "kube-system", "daemonset/fairlead-agent")
		if err != nil {
			return err
		}
		return c.rolledOut(ctx)
	}}
}

// rolledOut waits until all agents and controllers are of the current version.
func (c *busy) rolledOut(ctx context.Context) error {
	for _, what := range []string{"daemonset/fairlead-agent", "deployment/fairlead-controller"} {
		_, err := c.Kubectl(ctx, "rollout", "status", "-n", "kube-system", what, "--timeout=180s")
		if err != nil {
			return err
		}
	}
	return nil
}

// reboot is a power failure of a node, and its next boot. Other nodes must not be affected.
func reboot() event {
	return event{name: "another node rebooted", free: onlyHost, do: func(ctx context.Context, c *busy) error {
		if err := c.Crash(ctx, c.third); err != nil {
			return err
		}
		return c.boot(ctx, c.third)
	}}
}

// boot boots a crashed node, and waits until the agent that this boot started is ready.
func (c *busy) boot(ctx context.Context, node string) error {
	begun := time.Now().Truncate(time.Second)
	if err := c.Boot(ctx, node); err != nil {
		return err
	}
	return await(ctx, "the agent on "+node, func() error {
		if err := c.ReadyOn(ctx, "fairlead-agent", node, ""); err != nil {
			return err
		}
		pod, err := c.PodOf(ctx, "fairlead-agent", node)
		if err != nil {
			return err
		}
		out, err := c.Kubectl(ctx, "get", "pod", "-n", "kube-system", pod, "-o", "jsonpath={.status.containerStatuses[0].state.running.startedAt}")
		if err != nil {
			return err
		}
		if started, err := time.Parse(time.RFC3339, out); err != nil || started.Before(begun) {
			return fmt.Errorf("it has not started since the boot: %q", out)
		}
		return nil
	})
}

// movable is a Deployment with a pod on each node.
const movable = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: movable}
spec:
  replicas: 3
  selector: {matchLabels: {app: movable}}
  template:
    metadata: {labels: {app: movable}, annotations: {ipam.antrea.io/ippools: vlan10}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway,
         labelSelector: {matchLabels: {app: movable}}}
      containers: [{name: main, image: "` + bed.TestImage + `", imagePullPolicy: Never, args: [serve]}]
`

// drain moves the pods of a node to the others.
func drain() event {
	// The pods have left the node: new ones have to be spread over all nodes before it is drained again.
	undo := func(ctx context.Context, c *busy) error {
		_, err := c.Kubectl(ctx, "delete", "deployment/movable", "--cascade=foreground", "--timeout=120s")
		return err
	}
	return event{name: "another node drained", free: onlyHost, undo: undo, do: func(ctx context.Context, c *busy) error {
		if _, err := c.KubectlStdin(ctx, []byte(movable), "apply", "-f", "-"); err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, "rollout", "status", "deployment/movable", "--timeout=120s"); err != nil {
			return err
		}
		out, err := c.Kubectl(ctx, "drain", c.third, "--ignore-daemonsets", "--timeout=90s")
		if err == nil && !strings.Contains(out, "movable-") {
			err = fmt.Errorf("no pod was evicted: %s", out)
		}
		if err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, "rollout", "status", "deployment/movable", "--timeout=120s"); err != nil {
			return err
		}
		_, err = c.Kubectl(ctx, "uncordon", c.third)
		return err
	}}
}

// death kills a daemon of Open vSwitch; its container restarts it.
func death(daemon string) event {
	return event{name: daemon + " killed", do: func(ctx context.Context, c *busy) error {
		pod, err := c.PodOf(ctx, "fairlead-ovs", c.victim)
		if err != nil {
			return err
		}
		_, err = c.Kubectl(ctx, "exec", "-n", "kube-system", pod, "-c", "fairlead-ovs", "--",
			"sh", "-c", "kill -KILL $(cat /run/openvswitch/"+daemon+".pid)")
		return err
	}}
}

// replacement replaces Open vSwitch's pod on one node, as an upgrade of it does.
func replacement() event {
	return event{name: "fairlead-ovs replaced", do: func(ctx context.Context, c *busy) error {
		pod, err := c.PodOf(ctx, "fairlead-ovs", c.victim)
		if err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, "delete", "pod", "-n", "kube-system", pod); err != nil {
			return err
		}
		return await(ctx, "the new pod of fairlead-ovs", func() error { return c.ReadyOn(ctx, "fairlead-ovs", c.victim, "") })
	}}
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
	pod, err := c.PodOf(ctx, set, c.victim)
	if err != nil {
		return err
	}
	id := func() (string, error) {
		out, err := c.Kubectl(ctx, "get", "pod", "-n", "kube-system", pod, "-o",
			`jsonpath={.status.containerStatuses[?(@.name=="`+container+`")].containerID}`)
		_, id, _ := strings.Cut(out, "://") // after the runtime
		return id, err
	}
	before, err := id()
	if err != nil {
		return err
	}
	if err := c.KillContainer(ctx, c.victim, before); err != nil {
		return err
	}
	return await(ctx, "the next container "+container, func() error {
		if after, err := id(); err != nil || after == before {
			return errors.Join(err, errors.New("it has not begun"))
		}
		return c.ReadyOn(ctx, set, c.victim, "")
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
		if err := c.Kill(ctx, c.victim, d); err != nil {
			return err
		}
		return errors.Join(c.Start(ctx, c.victim, d), c.WaitReady(ctx))
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
