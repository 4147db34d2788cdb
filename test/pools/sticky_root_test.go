package pools

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller"
	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// controls runs a fairlead-controller until the test ends, or until stop is called.
func (b *bed) controls(t *testing.T) (stop func()) {
	t.Helper()
	cfg, err := b.plane.Config()
	must(t, err)
	client, err := dynamic.NewForConfig(cfg)
	must(t, err)
	port, err := apitest.FreePort()
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	intervals := api.DefaultIntervals().Controller
	intervals.Pass, intervals.LeaseRetry = 50*time.Millisecond, 100*time.Millisecond
	ended := make(chan error, 1)
	go func() {
		ended <- controller.Run(ctx, controller.Options{Client: client, Kubernetes: b.client, Log: logr.Discard(),
			Intervals: intervals,
			Config:    api.ControllerConfig{APIAddress: netip.MustParseAddr("127.0.0.1"), APIPort: port}})
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			must(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return stop
}

// workload is a StatefulSet or a Deployment whose pods run on a node.
func workload(kind, name, node string, replicas int, more string, annotations ...string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: %s
metadata: {name: %[2]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  %[4]s
  template:
    metadata: {labels: {app: %[2]s}, annotations: {%[5]s}}
    spec: {nodeName: %[6]s, terminationGracePeriodSeconds: 1, containers: [{name: main, image: none}]}
`, kind, name, replicas, more, strings.Join(annotations, ", "), node)
}

// background leaves the pods of a workload to the garbage collection, as kubectl does.
func background() metav1.DeleteOptions {
	policy := metav1.DeletePropagationBackground
	return metav1.DeleteOptions{PropagationPolicy: &policy}
}

// ending deletes a workload at the end of the test, with its pods and reservations, and then the pools: a pool in use
// cannot be deleted.
func (b *bed) ending(t *testing.T, remove func(context.Context, metav1.DeleteOptions) error, pools ...string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		defer b.controls(t)()
		if err := remove(ctx, background()); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		if err := b.deletePods(ctx, "default"); err != nil {
			t.Error(err)
		}
		if err := b.WaitPods(ctx); err != nil {
			t.Error(err)
		}
		if err := deleteAll(ctx, b.ipallocations); err != nil {
			t.Error(err)
		}
		wait(t, time.Minute, func() string { // until the pools' status reports no use
			for _, p := range pools {
				if err := b.ippools.Delete(ctx, p, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Sprintf("IPPool %s is there: %v", p, err)
				}
			}
			return ""
		})
	})
}

// settled waits until pods other than before run on a node, and returns the addresses of each.
func (b *bed) settled(t *testing.T, node string, before map[string]string, pods ...string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, p := range pods {
		wait(t, 90*time.Second, func() string {
			rec := b.record(t, p)
			if rec.State != sandbox.Running || rec.Node != node || rec.ContainerID == before[p] {
				return fmt.Sprintf("%s is %s on %s (%s): %s", p, rec.State, rec.Node, rec.ContainerID, rec.LastError)
			}
			out[p] = rec.IPs
			return ""
		})
	}
	return out
}

func (b *bed) containers(t *testing.T, pods ...string) map[string]string {
	out := map[string]string{}
	for _, p := range pods {
		out[p] = b.record(t, p).ContainerID
	}
	return out
}

// A StatefulSet's pods keep their addresses when they are deleted in any order or moved to another node, with the
// controller or without; scaling down frees addresses.
func TestRootStickySet(t *testing.T) {
	b := cluster(t)
	stop := b.controls(t)
	b.apply(t, poolYAML("st", 4, 10, "170", "179"), poolYAML("st6", 6, 10, "1700", "170f"))
	const ippools = `ipam.antrea.io/ippools: "st,st6"`
	b.apply(t, workload("StatefulSet", "st", "node1", 3, "podManagementPolicy: Parallel", ippools))
	sets := b.client.AppsV1().StatefulSets("default")
	b.ending(t, func(ctx context.Context, o metav1.DeleteOptions) error { return sets.Delete(ctx, "st", o) }, "st", "st6")
	pods := []string{"st-0", "st-1", "st-2"}
	// That they are one block is tested in package controller: here agents may be faster.
	first := b.settled(t, "node1", nil, pods...)
	same := func(when string, now map[string][]string) {
		t.Helper()
		for p, got := range now {
			if !slices.Equal(got, first[p]) {
				t.Errorf("%s: %s has %v, want %v", when, p, got, first[p])
			}
		}
	}
	was := b.containers(t, pods...)
	for _, p := range []string{"st-2", "st-0", "st-1"} {
		must(t, b.client.CoreV1().Pods("default").Delete(t.Context(), p, metav1.DeleteOptions{}))
	}
	same("deleted", b.settled(t, "node1", was, pods...))
	stop()
	was = b.containers(t, pods...)
	b.apply(t, workload("StatefulSet", "st", "node2", 3, "podManagementPolicy: Parallel", ippools))
	same("on another node, without a controller", b.settled(t, "node2", was, pods...))
	b.noneTwice(t)
	b.controls(t)
	_, err := sets.Patch(t.Context(), "st", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}, "scale")
	must(t, err)
	wait(t, 40*time.Second, func() string {
		var kept []string
		for _, a := range b.allocations(t) {
			if a.Spec.Reservation != nil {
				kept = append(kept, a.Spec.Address)
			}
		}
		if slices.Sort(kept); !slices.Equal(kept, first["st-0"]) {
			return fmt.Sprintf("kept are %v, want those of st-0", kept)
		}
		return ""
	})
}

// The one pod of a Deployment keeps its address and its MAC when it is recreated, also on another node. A second one
// waits for the first, and reports why; so does one whose predecessor's node is down.
func TestRootStickyDeployment(t *testing.T) {
	b := cluster(t)
	b.controls(t)
	b.apply(t, poolYAML("one", 4, 10, "180", "189"))
	annotations := []string{"ipam.antrea.io/ippools: one", "ipam.fairlead.dev/sticky: mac"}
	const surge = "strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}"
	b.apply(t, workload("Deployment", "gw", "node1", 1, surge, annotations...))
	deployments := b.client.AppsV1().Deployments("default")
	b.ending(t, func(ctx context.Context, o metav1.DeleteOptions) error { return deployments.Delete(ctx, "gw", o) }, "one")
	patch := func(change string) {
		t.Helper()
		_, err := deployments.Patch(t.Context(), "gw", types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{})
		must(t, err)
	}
	first := b.podOf(t, "gw", "")
	addr, mac := b.running(t, first)[0], b.macOf(t, first)
	b.kept(t, addr, mac)
	patch(`{"spec":{"template":{"metadata":{"annotations":{"x":"1"}}}}}`)
	second := b.podOf(t, "gw", first)
	b.event(t, second, "AddressAllocationFailed", "pod default/"+first+" on node node1",
		"two pods cannot share an address. Set replicas: 1, and strategy.type: Recreate")
	if rec := b.record(t, first); rec.State != sandbox.Running {
		t.Errorf("the first is %s", rec.State)
	}
	// As the message suggests.
	patch(`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`)
	if got := b.running(t, second); len(got) != 1 || got[0] != addr || b.macOf(t, second) != mac {
		t.Errorf("the second has %v, %s, want %s, %s", got, b.macOf(t, second), addr, mac)
	}
	// Its node is down: the agent is dead, and the Pod is removed externally.
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), "node1"))
	patch(`{"spec":{"template":{"spec":{"nodeName":"node2"}}}}`)
	pods := b.client.CoreV1().Pods("default")
	wait(t, time.Minute, func() string { // before that its ReplicaSet would create another one, on node1
		p, err := pods.Get(t.Context(), second, metav1.GetOptions{})
		must(t, err)
		if p.DeletionTimestamp == nil {
			return second + " is not terminating"
		}
		return ""
	})
	must(t, pods.Delete(t.Context(), second, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	third := b.podOf(t, "gw", second)
	b.event(t, third, "AddressAllocationFailed", "If node node1 is permanently down: kubectl delete node node1",
		"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	b.restart(t)
	if got := b.running(t, third); got[0] != addr || b.macOf(t, third) != mac {
		t.Errorf("on node2 it has %v, %s, want %s, %s", got, b.macOf(t, third), addr, mac)
	}
	b.kept(t, addr, mac)
	b.noneTwice(t)
}

// podOf waits for the pod of a Deployment other than before, and returns its name.
func (b *bed) podOf(t *testing.T, app, before string) (name string) {
	t.Helper()
	wait(t, 40*time.Second, func() string {
		list, err := b.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
		must(t, err)
		for _, p := range list.Items {
			if p.Name != before && p.DeletionTimestamp == nil {
				name = p.Name
				return ""
			}
		}
		return fmt.Sprintf("no pod of %s but %q", app, before)
	})
	return name
}

func (b *bed) macOf(t *testing.T, pod string) string {
	t.Helper()
	out, err := b.PodExec(labtest.Within(t, 20*time.Second), "default/"+pod, "ip", "-br", "link", "show", "eth0")
	must(t, err)
	return strings.Fields(out)[2]
}

// kept waits for the reservation of an address with a MAC.
func (b *bed) kept(t *testing.T, addr netip.Addr, mac string) {
	t.Helper()
	wait(t, 20*time.Second, func() string {
		for _, a := range b.allocations(t) {
			r := a.Spec.Reservation
			switch {
			case a.Spec.Address != addr.String():
			case r == nil || r.Kind != api.KindDeployment || r.Name != "gw" || r.MAC != mac:
				return fmt.Sprintf("%s is reserved for %+v, want gw and %s", addr, r, mac)
			default:
				return ""
			}
		}
		return fmt.Sprintf("no pod holds %s", addr)
	})
}
