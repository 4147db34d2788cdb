package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// guest is a Node that is not a node of the lab, and guestCIDR its podCIDR.
const guest, guestCIDR = "guest", "10.77.200.0/24"

// guestDuring creates the guest during a round of faults, or deletes an existing one. Agents receive the change during
// the round or afterwards, and both nodes then have a route to its pods or none. No guest is left.
func (c cluster) guestDuring(t *testing.T, r *rand.Rand, round func()) {
	t.Helper()
	comes := r.IntN(2) == 0
	if !comes {
		must(t, c.api.setGuest(t.Context(), true))
		c.routed(t, true)
		c.onRecord(t)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // the first fault has begun
			_ = c.api.setGuest(ctx, comes) // may fail now: retried below
		}
	}()
	round()
	cancel()
	<-done
	for _, there := range []bool{comes, false} {
		eventually(t, 20*time.Second, func() []string {
			if err := c.api.setGuest(t.Context(), there); err != nil {
				return []string{err.Error()}
			}
			return nil
		})
		c.routed(t, there)
	}
}

// setGuest creates or deletes the guest.
func (a *kubeAPI) setGuest(ctx context.Context, there bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	nodes := a.client.CoreV1().Nodes()
	if !there {
		err := nodes.Delete(ctx, guest, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: guest},
		Spec: corev1.NodeSpec{PodCIDR: guestCIDR, PodCIDRs: []string{guestCIDR}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.168.77.99"}, {Type: corev1.NodeInternalIP, Address: "fd77::99"}}}}
	_, err := nodes.Create(ctx, n, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// onRecord waits until the agents have recorded the guest: an agent that starts without the API uses the record.
func (c cluster) onRecord(t *testing.T) {
	t.Helper()
	for _, node := range c.Nodes() {
		eventually(t, 20*time.Second, func() []string {
			out, err := c.NodeExec(labtest.Within(t, time.Minute), node, "cat", inputs.LastKnownPath)
			if err != nil || !strings.Contains(out, guestCIDR) {
				return []string{fmt.Sprintf("the agent of %s has not put the Node %s on record: %v", node, guest, err)}
			}
			return nil
		})
	}
}

// routed waits until both nodes have a route to the guest, or none: longer than the 45 s after which client-go closes a
// connection without traffic.
func (c cluster) routed(t *testing.T, want bool) {
	t.Helper()
	for _, node := range c.Nodes() {
		eventually(t, 90*time.Second, func() []string {
			out, err := c.NodeExec(labtest.Within(t, time.Minute), node, "ip", "route", "show", "match", guestCIDR, "proto", "102")
			if err != nil || (out != "") != want {
				return []string{fmt.Sprintf("%s, the route to %s: %q, %v; want one: %v", node, guestCIDR, out, err, want)}
			}
			return nil
		})
	}
}
