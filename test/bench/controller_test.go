package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/scale"
)

// The measured cluster. Each pod has an address of an IPPool, and each Node has as many pods.
const (
	bigNodes, bigPods, bigPools = 5000, 20_000, 4
	nodesLost                   = 50 // deleted at the end: 200 addresses are reclaimed
)

// bigCluster is an API server with many objects, without nodes behind them.
type bigCluster struct {
	b       *testing.B
	s       *apitest.Server
	client  dynamic.Interface
	typed   *kubernetes.Clientset
	program string // fairlead-controller
	dir     string
}

// BenchmarkControllerMemory prints how much memory fairlead-controller uses (VmRSS, and its peak, VmHWM) in a cluster
// of 5,000 Nodes, 20,000 pods and 20,000 IPAllocations, all on a real API server, with all features enabled: while it
// assigns podCIDRs to all Nodes, some time later, as a standby that becomes leader, and while it reclaims addresses.
func BenchmarkControllerMemory(b *testing.B) {
	var shared apitest.Shared
	defer func() {
		if err := shared.Stop(); err != nil {
			b.Error(err)
		}
	}()
	for b.Loop() {
		c := newBigCluster(b, shared.Get(b))
		first := c.start()
		c.await(first, "all Nodes have podCIDRs", c.allNodesHavePodCIDRs)
		c.await(first, "the pools know their usage", func() (bool, error) { return c.used(bigPods) })
		c.say(first, "podCIDRs given to all Nodes")
		c.rest()
		c.say(first, "30 s later")
		first.Stop()
		second := c.start()
		c.await(second, "it has read everything", func() (bool, error) { return second.Ready(), nil })
		c.rest()
		c.say(second, "took over")
		c.loseNodes()
		c.await(second, "addresses of lost Nodes are released", func() (bool, error) {
			return c.used(bigPods - nodesLost*bigPods/bigNodes)
		})
		high := c.say(second, fmt.Sprintf("gave back addresses of %d deleted Nodes", nodesLost))
		b.ReportMetric(high, "MiB-high")
		second.Stop()
	}
}

func newBigCluster(b *testing.B, s *apitest.Server) *bigCluster {
	b.Helper()
	if err := s.Apply(b.Context(), "../../build/manifests/fairlead.yaml", "app.kubernetes.io/component=crds"); err != nil {
		b.Fatal(err)
	}
	config := &rest.Config{Host: s.URL, BearerToken: apitest.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()}}
	c := &bigCluster{b: b, s: s, dir: b.TempDir()}
	var err error
	if c.client, err = dynamic.NewForConfig(config); err != nil {
		b.Fatal(err)
	}
	if c.typed, err = kubernetes.NewForConfig(config); err != nil {
		b.Fatal(err)
	}
	c.program = filepath.Join(c.dir, "fairlead-controller")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", c.program, "../../cmd/fairlead-controller")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v\n%s", build, err, out)
	}
	took := c.fill()
	say("%d Nodes, %d pods, %d IPAllocations made in %s", bigNodes, bigPods, bigPods, took.Round(time.Second))
	return c
}

// fill creates the objects.
func (c *bigCluster) fill() time.Duration {
	c.b.Helper()
	x := &ipamBench{b: c.b, client: c.client}
	for i := range bigPools {
		x.create(fmt.Sprint("pool", i), fmt.Sprint(128+i))
	}
	store := allocation.NewKubernetes(c.client)
	took := together(20, bigNodes, func(_, i int) {
		if _, err := c.typed.CoreV1().Nodes().Create(c.b.Context(), bigNode(i), metav1.CreateOptions{}); err != nil {
			c.b.Error(err)
		}
	})
	return took + together(20, bigPods, func(_, i int) {
		p, err := c.typed.CoreV1().Pods("default").Create(c.b.Context(), bigPod(i), metav1.CreateOptions{})
		if err == nil {
			_, err = store.Create(c.b.Context(), bigAllocation(i, p))
		}
		if err != nil {
			c.b.Error(err)
		}
	})
}

// bigNode is a Node without podCIDR.
func bigNode(i int) *corev1.Node {
	n := scale.Node(i)
	n.Spec = corev1.NodeSpec{}
	return n
}

func bigPod(i int) *corev1.Pod { return scale.Pod(i, scale.NodeName(i%bigNodes)) }

// bigAllocation is the allocation that the pod's node would have created.
func bigAllocation(i int, p *corev1.Pod) api.IPAllocation {
	each := bigPods / bigPools
	addr := netip.AddrFrom4([4]byte{10, byte(128 + i/each), byte(1 + i%each/250), byte(i % each % 250)})
	a := api.IPAllocation{Spec: api.IPAllocationSpec{Address: addr.String(), Pool: fmt.Sprint("pool", i/each),
		Phase: api.PhaseAllocated, Owner: api.AllocationOwner{PodUID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
			ContainerID: strings.Repeat(fmt.Sprintf("%08x", i), 8), IfName: "eth0", Network: "fairlead", Node: p.Spec.NodeName,
			Netns: "/var/run/netns/cni-" + string(p.UID), BootID: "4c6ef9a7-2a5d-4b83-9a3f-5b0d4a3b8c11"}}}
	a.Name = allocation.Name("", addr)
	return a
}

// start starts a controller.
func (c *bigCluster) start() *scale.Controller {
	c.b.Helper()
	p, err := scale.StartController(c.s, c.program, c.dir)
	if err != nil {
		c.b.Fatal(err)
	}
	c.b.Cleanup(p.Stop)
	return p
}

// await waits, for minutes if needed, until is returns true.
func (c *bigCluster) await(p *scale.Controller, what string, is func() (bool, error)) {
	c.b.Helper()
	ctx, cancel := context.WithTimeout(c.b.Context(), 15*time.Minute)
	defer cancel()
	for {
		done, err := is()
		if err != nil {
			c.b.Fatal(err)
		}
		if done {
			return
		}
		select {
		case <-ctx.Done():
			c.b.Fatalf("not within 15 minutes: %s. The end of the controller's log:\n%s", what, p.LogTail())
		case <-time.After(time.Second):
		}
	}
}

// rest lets it run for a while.
func (c *bigCluster) rest() {
	select {
	case <-c.b.Context().Done():
	case <-time.After(30 * time.Second):
	}
}

func (c *bigCluster) allNodesHavePodCIDRs() (bool, error) {
	list, err := c.typed.CoreV1().Nodes().List(c.b.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return false, err
	}
	for _, n := range list.Items {
		if len(n.Spec.PodCIDRs) == 0 {
			return false, nil
		}
	}
	return true, nil
}

// used reports whether the pools' status counts this many addresses.
func (c *bigCluster) used(want int64) (bool, error) {
	list, err := c.client.Resource(api.PoolResource).List(c.b.Context(), metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	sum := int64(0)
	for i := range list.Items {
		used, _, err := unstructured.NestedInt64(list.Items[i].Object, "status", "usage", "used")
		if err != nil {
			return false, err
		}
		sum += used
	}
	return sum == want, nil
}

// loseNodes deletes Nodes with their pods: no DEL releases the pods' addresses.
func (c *bigCluster) loseNodes() {
	together(10, bigPods, func(_, i int) {
		if i%bigNodes >= nodesLost {
			return
		}
		now := int64(0)
		if err := c.typed.CoreV1().Pods("default").Delete(c.b.Context(), fmt.Sprint("pod", i),
			metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			c.b.Error(err)
		}
	})
	together(10, nodesLost, func(_, i int) {
		if err := c.typed.CoreV1().Nodes().Delete(c.b.Context(), scale.NodeName(i), metav1.DeleteOptions{}); err != nil {
			c.b.Error(err)
		}
	})
}

// say prints the memory of p, and returns the peak in MiB.
func (c *bigCluster) say(p *scale.Controller, when string) (high float64) {
	c.b.Helper()
	now, high, err := scale.Memory(p.PID)
	if err != nil {
		c.b.Fatal(err)
	}
	say("fairlead-controller: %5.1f MiB, at most %5.1f MiB so far: %s", now, high, when)
	return high
}
