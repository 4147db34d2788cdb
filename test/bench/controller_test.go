package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
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
)

// The cluster whose controller is measured. Each pod has an address of an IPPool, as many pods on each Node.
const (
	bigNodes, bigPods, bigPools = 5000, 20_000, 4
	nodesLost                   = 50 // deleted at the end: 200 addresses are given back
)

// bigCluster is an API server with many objects that nobody runs.
type bigCluster struct {
	b       *testing.B
	s       *apitest.Server
	client  dynamic.Interface
	typed   *kubernetes.Clientset
	program string // fairlead-controller
	dir     string
}

// BenchmarkControllerMemory prints how much memory fairlead-controller takes (VmRSS, and its highest, VmHWM) in a
// cluster of 5,000 Nodes, 20,000 pods and 20,000 IPAllocations, all on a real API server, with all it can do switched
// on: while it gives podCIDRs to all Nodes, some time later, as one that takes over, and while it gives back addresses.
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
		first.stop()
		second := c.start()
		c.await(second, "it has read everything", func() (bool, error) { return c.ready(second), nil })
		c.rest()
		c.say(second, "took over")
		c.loseNodes()
		c.await(second, "addresses of lost Nodes are given back", func() (bool, error) {
			return c.used(bigPods - nodesLost*bigPods/bigNodes)
		})
		high := c.say(second, fmt.Sprintf("gave back addresses of %d deleted Nodes", nodesLost))
		b.ReportMetric(high, "MiB-high")
		second.stop()
	}
}

func newBigCluster(b *testing.B, s *apitest.Server) *bigCluster {
	b.Helper()
	const crds = "-l app.kubernetes.io/component=crds"
	for _, args := range []string{"apply -f ../../build/manifests/fairlead.yaml " + crds,
		"wait --for=condition=Established --timeout=60s crds " + crds} {
		if err := s.Kubectl(b.Context(), strings.Fields(args)...); err != nil {
			b.Fatal(err)
		}
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

// fill makes the objects.
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

// bigNode is a Node as a kubelet keeps it, with conditions, labels and the names of 50 images.
func bigNode(i int) *corev1.Node {
	name := fmt.Sprint("node", i)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"topology.kubernetes.io/zone": fmt.Sprint("zone", i%3)}}}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.16.%d.%d", i/250, i%250+1)},
		{Type: corev1.NodeHostName, Address: name}}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure, corev1.NodeReady} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse,
			Reason: "KubeletHasNo" + string(t), Message: "kubelet has no " + string(t), LastHeartbeatTime: metav1.Now(),
			LastTransitionTime: metav1.Now()})
	}
	n.Status.Conditions[3].Status = corev1.ConditionTrue
	for k := range 50 {
		image := fmt.Sprintf("registry.example.com/team-%d/some-application", k)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 100e6,
			Names: []string{image + "@sha256:" + strings.Repeat("0123456789abcdef", 4), image + ":v1.2.3"}})
	}
	n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", OSImage: "Debian GNU/Linux 12 (bookworm)",
		ContainerRuntimeVersion: "containerd://2.4.2", Architecture: "amd64", OperatingSystem: "linux"}
	return n
}

func bigPod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod", i), Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{NodeName: fmt.Sprint("node", i%bigNodes), Containers: []corev1.Container{{
			Name: "main", Image: "registry.example.com/team-1/some-application:v1.2.3", Args: []string{"serve", "--port=8080"}}}}}
}

// bigAllocation is what the pod's node would have made for it.
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

// controllerProcess is a fairlead-controller that runs.
type controllerProcess struct {
	cmd *exec.Cmd
	log string
	url string
}

// start starts a controller.
func (c *bigCluster) start() *controllerProcess {
	c.b.Helper()
	port, err := freePort()
	if err != nil {
		c.b.Fatal(err)
	}
	token, kubeconfig, config := filepath.Join(c.dir, "token"), filepath.Join(c.dir, "kubeconfig"), filepath.Join(c.dir, "controller.conf")
	err = errors.Join(os.WriteFile(token, []byte(apitest.AdminToken), 0o600),
		apitest.Kubeconfig(kubeconfig, c.s.URL, c.s.CA(), token),
		os.WriteFile(config, fmt.Appendf(nil, "apiPort: %d\nclientConnection: {kubeconfig: %q}\nreclaim: {gracePeriod: 10s, coolingPeriod: 0s}\n"+
			"nodeIPAM: {enableNodeIPAM: true, clusterCIDRs: [10.0.0.0/10]}\n", port, kubeconfig), 0o600))
	if err != nil {
		c.b.Fatal(err)
	}
	p := &controllerProcess{log: filepath.Join(c.dir, "log"), url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	log, err := os.Create(p.log)
	if err != nil {
		c.b.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(c.program, "--config", config)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		c.b.Fatal(err)
	}
	c.b.Cleanup(p.stop)
	return p
}

func (p *controllerProcess) stop() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// await waits, for minutes if it must, until is says so.
func (c *bigCluster) await(p *controllerProcess, what string, is func() (bool, error)) {
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
			log, _ := os.ReadFile(p.log)
			c.b.Fatalf("not within 15 minutes: %s. The end of the controller's log:\n%s", what, log[max(0, len(log)-3000):])
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

func (c *bigCluster) ready(p *controllerProcess) bool {
	r, err := http.Get(p.url + "/readyz")
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
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

// used reports whether the pools' status counts so many addresses.
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

// loseNodes deletes Nodes with their pods: nobody gives the pods' addresses back.
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
		if err := c.typed.CoreV1().Nodes().Delete(c.b.Context(), fmt.Sprint("node", i), metav1.DeleteOptions{}); err != nil {
			c.b.Error(err)
		}
	})
}

// say prints what p has of memory, and returns the highest in MiB.
func (c *bigCluster) say(p *controllerProcess, when string) (high float64) {
	c.b.Helper()
	now, high, err := memory(p.cmd.Process.Pid)
	if err != nil {
		c.b.Fatal(err)
	}
	say("fairlead-controller: %5.1f MiB, at most %5.1f MiB so far: %s", now, high, when)
	return high
}

// memory is what a process has in memory now and had at most, in MiB: proc_pid_status(5).
func memory(pid int) (now, high float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	field := func(name string) float64 {
		match := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(status)
		if match == nil {
			err = fmt.Errorf("no %s in the status of process %d", name, pid)
			return 0
		}
		kib, _ := strconv.Atoi(string(match[1])) // digits
		return float64(kib) / 1024
	}
	return field("VmRSS"), field("VmHWM"), err
}
