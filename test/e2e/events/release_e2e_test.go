package events

import (
	"context"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
)

// A cluster with an earlier release is upgraded to this version by Helm, rolled back, and upgraded again: "make
// e2e-upgrade". Running pods keep their addresses, and under each version others are created and deleted.
func TestE2EUpgradeFromRelease(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	commit := os.Getenv("FAIRLEAD_TEST_FROM")
	if commit == "" {
		t.Skip("SKIPPED, NOT TESTED: FAIRLEAD_TEST_FROM names no commit (make e2e-upgrade)")
	}
	from, err := install.GetEarlier(ctx, commit)
	cluster.Must(t, err)
	c := &busy{Cluster: cluster.Bare(t, bed.Options{Name: "upgrade", Images: []string{from.Image}}),
		victim: "node1", other: "node2", third: "node3"}
	defer c.keep(t)
	here, err := install.Chart()
	cluster.Must(t, err)
	helm := func(earlier bool, args ...string) func(context.Context, *busy) error {
		return func(ctx context.Context, c *busy) error {
			if _, err := install.Helm(ctx, c.Bed, args...); err != nil {
				return err
			}
			if err := c.rolledOut(ctx); err != nil {
				return err
			}
			if err := c.WaitReady(ctx); err != nil {
				return err
			}
			return c.awaitAgents(ctx, from.Tag, earlier)
		}
	}
	values := func(tag string) []string { return install.Sets(c.Bed, append(install.Bridge(), "image.tag="+tag)...) }
	back := func(ctx context.Context, c *busy) error {
		if err := helm(true, "rollback", release)(ctx, c); err != nil {
			return err
		}
		return readable(ctx, c)
	}
	forth := helm(false, append([]string{"upgrade", release, here}, values("")...)...)
	cluster.Must(t, helm(true, append([]string{"install", release, from.Chart}, values(from.Tag)...)...)(ctx, c))
	c.run(t)
	before := c.addresses(ctx, t)
	comeAndGo := func(version string) event {
		return event{name: "pods come and go, with " + version, free: onlyHost, do: comeAndGo}
	}
	upgrade := event{name: "helm upgrade to this version", do: forth, undo: back, free: everything}
	rollback := event{name: "helm rollback to " + from.Tag, do: back, undo: forth, free: onlyHost}
	again := event{name: "helm upgrade again", do: forth, undo: back, free: everything}
	// The versions differ in Open vSwitch, too.
	ovs := event{name: "fairlead-ovs replaced by this version", do: replacement().do}
	ovsBack := event{name: "fairlead-ovs replaced by " + from.Tag, do: func(ctx context.Context, c *busy) error {
		if err := replacement().do(ctx, c); err != nil { // of this version: it restores the NIC and writes the journal
			return err
		}
		return readable(ctx, c)
	}}
	c.happenAll(ctx, t, c.paths(ctx, t), event{name: "nothing, with " + from.Tag, do: nothing, free: everything},
		comeAndGo(from.Tag), upgrade, comeAndGo("this version"), ovs,
		rollback, comeAndGo(from.Tag+" again"), ovsBack, again)
	if after := c.addresses(ctx, t); !maps.Equal(before, after) {
		t.Errorf("addresses were %v, and are %v", before, after)
	}
}

// readable does what docs/upgrade.md says after a rollback: a34be2f reads a journal once, and none with fields that it
// does not know.
func readable(ctx context.Context, c *busy) error {
	for _, node := range c.Nodes() {
		_, err := c.NodeExec(ctx, node, "sh", "-ec", `rm -f /run/fairlead/var/lib/fairlead/uplink.json
sed -i '/^ "\(sum\|seq\|failed\|tries\|retryAt\)": /d' /var/lib/fairlead/uplink.json`)
		if err != nil {
			return err
		}
	}
	return rollingRestart().do(ctx, c)
}

// addresses returns the addresses of all running pods by name.
func (c *busy) addresses(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	pods, err := c.API.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	cluster.Must(t, err)
	out := map[string]string{}
	for _, p := range pods.Items {
		out[p.Name] = fmt.Sprint(p.Status.PodIPs)
	}
	return out
}

// comeAndGo creates a pod of each kind on each node and deletes them.
func comeAndGo(ctx context.Context, c *busy) error {
	sets := map[string]string{"new": "", "new10": "ipam.antrea.io/ippools: vlan10"}
	for name, annotations := range sets {
		if _, err := c.KubectlStdin(ctx, fmt.Appendf(nil, onEachNode, name, annotations), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	for name := range sets {
		if _, err := c.Kubectl(ctx, "rollout", "status", "daemonset/"+name, "--timeout=180s"); err != nil {
			return err
		}
	}
	for name := range sets {
		if _, err := c.Kubectl(ctx, "delete", "daemonset", name, "--cascade=foreground", "--timeout=180s"); err != nil {
			return err
		}
	}
	return nil
}
