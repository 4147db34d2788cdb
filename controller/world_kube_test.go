package controller

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// Heartbeats of Nodes are most of a large cluster's events, and trigger no pass; a fence does.
func TestKubeHeartbeatsCauseNoPass(t *testing.T) {
	c := newCluster(t)
	w := newWorld(c.options(c.admin))
	news := w.subscribe()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.follow(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	n := c.node("beating")
	patch := func(body string, sub ...string) {
		t.Helper()
		var err error
		n, err = c.s.Admin().CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, []byte(body),
			metav1.PatchOptions{}, sub...)
		if err != nil {
			t.Fatal(err)
		}
	}
	comes := func() {
		t.Helper()
		c.waits(func() string {
			obj, _, _ := w.nodes.GetByKey(n.Name)
			if known, ok := obj.(*corev1.Node); !w.synced() || !ok || known.ResourceVersion != n.ResourceVersion {
				return fmt.Sprintf("Node %s comes in version %s", n.Name, n.ResourceVersion)
			}
			return ""
		})
	}
	comes()
	for quiet := false; !quiet; { // from the initial list
		select {
		case <-news:
		case <-time.After(time.Second):
			quiet = true
		}
	}
	for i := range 20 {
		patch(fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": %q}]}}`,
			time.Unix(int64(i), 0).UTC().Format(time.RFC3339)), "status")
	}
	comes()
	select {
	case <-news:
		t.Error("heartbeats woke the controllers")
	case <-time.After(100 * time.Millisecond):
	}
	patch(fmt.Sprintf(`{"spec": {"taints": [{"key": %q, "effect": "NoExecute"}]}}`, reclaim.TaintOutOfService))
	select {
	case <-news:
	case <-time.After(patience):
		t.Error("a fence did not wake the controllers")
	}
}

// A timestamp in another format than Fairlead writes does not prevent a controller from becoming ready.
func TestKubeAllocationWithAnotherTime(t *testing.T) {
	c := newCluster(t)
	a := c.hold("10.83.0.7", "n", "c1", nil)
	t.Cleanup(func() {
		must(t, c.admin.Resource(api.AllocationResource).Delete(context.Background(), a.Name, metav1.DeleteOptions{}))
	})
	_, err := c.admin.Resource(api.AllocationResource).Patch(t.Context(), a.Name, types.MergePatchType,
		[]byte(`{"spec":{"phase":"Cooling","until":"2099-11-26T09:00:00Z"}}`), metav1.PatchOptions{})
	must(t, err)
	w := newWorld(c.options(c.admin))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.follow(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	c.waits(func() string {
		if obj, _, _ := w.allocations.GetByKey(a.Name); !w.synced() || obj == nil {
			return fmt.Sprintf("synced %t, and the allocation is %v", w.synced(), obj)
		}
		return ""
	})
}
