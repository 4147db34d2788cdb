package functions

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// Fairlead's containers have the privileges listed in docs/image.md, and these suffice to install plugins in a
// directory that another user owns, and to return the NIC to the host on a node where no agent runs.
func TestE2EPrivileges(t *testing.T) {
	const node = "node1"
	c := cluster.Bare(t, bed.Options{Name: "privileges", Nodes: 1})
	if _, err := c.NodeExec(t.Context(), node, "chown", "1000:1000", "/opt/cni/bin"); err != nil {
		t.Fatal(err)
	}
	c.Install(t, install.Bridge()...)
	datapath := uint64(1 << 12) // NET_ADMIN
	if c.Datapath() == vswitch.Netdev {
		datapath |= 1<<13 | 1<<27 // NET_RAW, MKNOD
	}
	for _, of := range []struct {
		set, container string
		caps           uint64
	}{{"fairlead-ovs", "fairlead-ovs", datapath}, {"fairlead-ovs", "guard", 0}} {
		pod, err := c.PodOf(t.Context(), of.set, node)
		cluster.Must(t, err)
		exec := func(script string) (string, error) {
			return c.Kubectl(t.Context(), "exec", "-n", "kube-system", pod, "-c", of.container, "--", "sh", "-c", script)
		}
		out, err := exec("grep CapPrm /proc/self/status")
		if want := fmt.Sprintf("CapPrm:\t%016x\n", of.caps); err != nil || out != want {
			t.Errorf("%s has %q, want %q, %v", of.container, out, want, err)
		}
		for _, script := range []string{"touch /etc/new", "ls /var/run/secrets"} {
			if out, err := exec(script); err == nil {
				t.Errorf("%s: %s succeeds: %s", of.container, script, out)
			}
		}
	}
	has(t, c, "br-uplink")

	// All pods leave the node, the agent's first.
	agents := func(patch string) {
		c.Run(t, "patch", "daemonset/fairlead-agent", "-n", "kube-system", "-p",
			`{"spec":{"template":{"spec":{"nodeSelector":{"no":`+patch+`}}}}}`)
	}
	agents(`"where"`)
	cluster.Eventually(t, func() error {
		out, err := c.Kubectl(t.Context(), "get", "pods", "-n", "kube-system", "-o", "name", "-l", "app.kubernetes.io/name=fairlead-agent")
		if err == nil && out != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	})
	pod, err := c.PodOf(t.Context(), "fairlead-ovs", node)
	cluster.Must(t, err)
	c.Run(t, "delete", "pod", "-n", "kube-system", pod, "--wait=false") // the API server may lose the node
	has(t, c, "eth0")
	agents("null")
	has(t, c, "br-uplink")
	c.AwaitReady(t)
}

// has waits until a device has the addresses of node1.
func has(t *testing.T, c *cluster.Cluster, device string) {
	t.Helper()
	cluster.Eventually(t, func() error {
		out, err := c.NodeExec(t.Context(), "node1", "ip", "-o", "addr", "show", "dev", device)
		for _, a := range c.Underlay().NodeAddrs(1) {
			if err == nil && !strings.Contains(out, " "+a.String()+" ") {
				err = fmt.Errorf("%s does not have %s: %s", device, a, out)
			}
		}
		return err
	})
}
