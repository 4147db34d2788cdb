package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/traces"
)

// Traces reads the state of all nodes, once all their addresses are usable. Changes by kubelet and kube-proxy are
// ignored.
func (c *Cluster) Traces(t testing.TB) map[string]traces.Node {
	t.Helper()
	all := map[string]traces.Node{}
	for _, node := range c.Nodes() {
		Eventually(t, func() error {
			out, err := c.NodeExec(t.Context(), node, "ip", "-6", "-o", "addr")
			if err == nil && strings.Contains(out, "tentative") {
				err = errors.New(out)
			}
			return err
		})
		n, err := traces.Read(t.Context(), c.Host(node), "KUBE-")
		Must(t, err)
		all[node] = n
	}
	return all
}

// AsBefore waits until every node is as before.
func (c *Cluster) AsBefore(t testing.TB, before map[string]traces.Node) {
	t.Helper()
	Eventually(t, func() error {
		for node, now := range c.Traces(t) {
			if d := before[node].Differences(now); len(d) > 0 {
				return fmt.Errorf("%s is not as it was:\n%s", node, strings.Join(d, "\n"))
			}
		}
		return nil
	})
}
