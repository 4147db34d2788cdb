package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
)

// helmUpgrade upgrades agents and controllers to another version of the image. Meanwhile the third node has two power
// failures, each while its own agent is being replaced. The result is that of any other upgrade.
func helmUpgrade() event {
	return event{name: "helm upgrade to another version, another node rebooted twice meanwhile", free: everything,
		undo: rollbackByHelm, do: func(ctx context.Context, c *busy) error {
			both, bothCtx := errgroup.WithContext(ctx)
			both.Go(func() error { return c.helmWithChart(bothCtx, "upgrade", "image.tag="+install.NextTag) })
			both.Go(func() error { return c.rebootWhileReplaced(bothCtx) })
			if err := both.Wait(); err != nil {
				return err
			}
			if err := c.awaitVersion(ctx, true); err != nil {
				return err
			}
			if err := c.WaitReady(ctx); err != nil {
				return err
			}
			return c.podsAreBack(ctx, c.third)
		}}
}

// rebootWhileReplaced reboots the third node while its old agent terminates, so that the next boot begins without an
// agent; and again when the new agent has started during that boot, but is not ready.
func (c *busy) rebootWhileReplaced(ctx context.Context) error {
	if err := c.awaitAgent(ctx, "ends", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }, nil); err != nil {
		return err
	}
	if err := c.Crash(ctx, c.third); err != nil {
		return err
	}
	err := c.awaitAgent(ctx, "starts", nextStarts, func() error { return c.Boot(ctx, c.third) })
	if err != nil {
		return err
	}
	if err := c.Crash(ctx, c.third); err != nil {
		return err
	}
	return c.boot(ctx, c.third)
}

// nextStarts reports whether the agent of a pod is of the other version, runs, and is not ready.
func nextStarts(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && strings.HasSuffix(p.Spec.Containers[0].Image, ":"+install.NextTag) &&
		slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Running != nil && !s.Ready
		})
}

// awaitAgent calls do, unless it is nil, and waits for a state of the agent's pod on the third node, however brief.
func (c *busy) awaitAgent(ctx context.Context, what string, is func(*corev1.Pod) bool, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.Patience)
	defer cancel()
	changes, err := c.API.CoreV1().Pods("kube-system").Watch(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=fairlead-agent", FieldSelector: "spec.nodeName=" + c.third})
	if err != nil {
		return err
	}
	defer changes.Stop()
	if do != nil {
		if err := do(); err != nil {
			return err
		}
	}
	for e := range changes.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok && is(pod) {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("the watch ended before the agent on %s %s", c.third, what), ctx.Err())
}

// podsAreBack waits until the pods of a node that was rebooted answer another node at all their addresses. Then it
// checks that no two pods of the cluster have the same address.
func (c *busy) podsAreBack(ctx context.Context, node string) error {
	var addrs []string
	err := await(ctx, "the pods of "+node, func() (err error) {
		if addrs, err = c.podAddrs(ctx, node); err != nil {
			return err
		}
		get := append([]string{bed.Tool, "get"}, cluster.URLs("8080", addrs...)...)
		_, err = c.NodeExec(ctx, c.victim, get...)
		return err
	})
	if err != nil {
		return err
	}
	return c.eachAddressOnce(ctx, node, addrs)
}

// podAddrs are the addresses that the pods of run have on a node.
func (c *busy) podAddrs(ctx context.Context, node string) ([]string, error) {
	pods, err := c.API.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	addrs := cluster.Addrs(pods.Items...)
	if len(pods.Items) != 4 || len(addrs) != 6 {
		return nil, fmt.Errorf("%d pods have %v, want 4 with 6 addresses", len(pods.Items), addrs)
	}
	return addrs, nil
}

// noneKept waits until the third node holds no IPPool addresses other than those of its pods: none is left of an
// earlier boot.
func (c *busy) noneKept(t *testing.T) {
	t.Helper()
	cluster.Eventually(t, func() error {
		addrs, err := c.podAddrs(t.Context(), c.third)
		if err != nil {
			return err
		}
		given, err := c.allocated(t.Context(), c.third)
		if err == nil && (len(given) != 2 || !slices.Contains(addrs, given[0]) || !slices.Contains(addrs, given[1])) {
			err = fmt.Errorf("allocated are %v; its pods have %v", given, addrs)
		}
		return err
	})
}

// eachAddressOnce inspects the network namespaces of all pods, except the node's own, which CRI-O pins for hostNetwork
// pods. It returns an error if an address is in two of them, or if one of these is in none on the node of.
func (c *busy) eachAddressOnce(ctx context.Context, of string, these []string) error {
	at := map[string]string{} // node, by address
	for _, node := range c.Nodes() {
		out, err := c.NodeExec(ctx, node, "sh", "-ec",
			"cd /run/netns; for n in *; do [ $n -ef /proc/self/ns/net ] || ip -n $n -brief addr show up scope global; done")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			for _, prefix := range strings.Fields(line)[2:] { // after interface and state
				addr, _, _ := strings.Cut(prefix, "/")
				if first, is := at[addr]; is {
					return fmt.Errorf("%s is in a pod on %s and in one on %s", addr, first, node)
				}
				at[addr] = node
			}
		}
	}
	for _, addr := range these {
		if at[addr] != of {
			return fmt.Errorf("%s, of a pod on %s, is in none there", addr, of)
		}
	}
	return nil
}
