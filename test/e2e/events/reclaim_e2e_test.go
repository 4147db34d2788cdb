package events

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
)

// graceOfLost must pass before an address of a deleted Node is reclaimed (docs/reclaim.md). kube-controller-manager
// needs 40 to 60 seconds more to delete the Pods; on a machine that is not busy an address is free within 2 minutes.
const graceOfLost = 30 * time.Second

// lost is a node that is gone for good.
type lost struct {
	node  string
	at    time.Time
	addrs []string // IPPool addresses of its pods
}

// lose is a power failure of a node, whose Node is then deleted.
func lose() event {
	return event{name: "another node lost, its Node deleted", free: onlyHost,
		do: func(ctx context.Context, c *busy) error {
			err := await(ctx, "addresses of "+c.third, func() error {
				addrs, err := c.allocated(ctx, c.third)
				if err == nil && len(addrs) < 2 {
					err = fmt.Errorf("there is only %v", addrs)
				}
				return err
			})
			if err != nil {
				return err
			}
			if err := c.Crash(ctx, c.third); err != nil {
				return err
			}
			// Until now its agent may have released some, such as those of the previous boot.
			c.lost = lost{node: c.third, at: time.Now()}
			if c.lost.addrs, err = c.allocated(ctx, c.third); err != nil {
				return err
			}
			if len(c.lost.addrs) == 0 {
				return fmt.Errorf("%s had no address when it was lost", c.third)
			}
			_, err = c.Kubectl(ctx, "delete", "node", c.third)
			return err
		},
		undo: func(ctx context.Context, c *busy) error { return c.boot(ctx, c.third) }}
}

// reclaimed waits until the addresses of the lost node are reclaimed, and checks when, by the timestamps of the Events,
// which are in whole seconds.
func (c *busy) reclaimed(t *testing.T) {
	t.Helper()
	for _, addr := range c.lost.addrs {
		cluster.Eventually(t, func() error {
			events, err := c.API.CoreV1().Events("").List(t.Context(), metav1.ListOptions{
				FieldSelector: "reason=" + api.EventAddressReclaimed})
			if err != nil {
				return err
			}
			for _, e := range events.Items {
				after := e.LastTimestamp.Sub(c.lost.at)
				if !strings.Contains(e.Message, "address "+addr+" ") || !strings.Contains(e.Message, "on node "+c.lost.node) ||
					after <= -time.Second { // of an earlier attempt: the node had the address when it was lost
					continue
				}
				t.Logf("%s was reclaimed %.0f s after its node was lost", addr, after.Seconds())
				if after < graceOfLost-time.Second {
					t.Errorf("the grace period of docs/reclaim.md is %s", graceOfLost)
				}
				return nil
			}
			return fmt.Errorf("no Event says that %s of %s was reclaimed\n%s", addr, c.lost.node, c.traceOf(t.Context(), addr))
		})
	}
	if left, err := c.allocated(t.Context(), c.lost.node); err != nil || len(left) > 0 {
		t.Errorf("the node that was lost still has %v, %v", left, err)
	}
}

// allocated are the addresses of IPPools that pods of a node have.
func (c *busy) allocated(ctx context.Context, node string) ([]string, error) {
	out, err := c.Kubectl(ctx, "get", "ipallocations", "--field-selector=spec.owner.node="+node,
		"-o", `jsonpath={range .items[?(@.spec.phase=="Allocated")]}{.spec.address} {end}`)
	return strings.Fields(out), err
}

// traceOf returns what the cluster records of an address: its IPAllocation, and the controllers' log.
func (c *busy) traceOf(ctx context.Context, addr string) string {
	var out []string
	for _, args := range [][]string{
		{"get", "ipallocations", "-o", "wide"},
		{"logs", "-n", "kube-system", "-l", "app.kubernetes.io/name=fairlead-controller", "--tail=-1", "--prefix"},
	} {
		text, err := c.Kubectl(ctx, args...)
		for line := range strings.Lines(text) {
			if strings.Contains(line, addr) || strings.Contains(line, "reclaim") || strings.Contains(line, "leader") {
				out = append(out, line)
			}
		}
		if err != nil {
			out = append(out, err.Error())
		}
	}
	return strings.Join(out, "")
}
