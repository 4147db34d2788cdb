package inputs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube"
)

// memoryEnv makes the test binary a program that only watches the API server, with this kubeconfig, and prints its
// memory use. It is a separate process because the test has clients and objects of its own.
const memoryEnv = "FAIRLEAD_TEST_MEMORY_OF"

// Limits for 5,000 Nodes of realistic size. Measured: 5 MB of heap in all, and at most 30 MB more than a client that
// has read nothing, most of it garbage from decoding 285 MB of objects. An informer's store would keep 60 MB.
const (
	memoryNodes = 5000
	maxHeap     = 9 << 10  // kB, after a garbage collection
	maxGrowth   = 50 << 10 // kB of resident memory at the peak
)

func TestKubeMemory(t *testing.T) {
	c := newCluster(t)
	c.makeRealNodes(memoryNodes)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), memoryEnv+"="+c.kubeconfig)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	c.must(cmd.Run())
	c.clear()
	t.Log(strings.TrimSpace(out.String()))
	var nodes, before, peak, heap int
	_, err := fmt.Sscanf(out.String(), followed, &nodes, &before, &peak, &heap)
	c.must(err)
	if nodes != memoryNodes || peak-before > maxGrowth || heap > maxHeap {
		t.Errorf("want %d Nodes, at most %d kB more and %d kB of heap", memoryNodes, maxGrowth, maxHeap)
	}
}

// followed is the output of that program.
const followed = "%d Nodes, resident memory %d kB before, %d kB at the peak, heap %d kB\n"

func (c *cluster) makeRealNodes(n int) {
	c.t.Helper()
	var g errgroup.Group
	g.SetLimit(40)
	for i := range n {
		g.Go(func() error {
			_, err := c.Admin().CoreV1().Nodes().Create(c.t.Context(), realNode(i), metav1.CreateOptions{})
			return err
		})
	}
	c.must(g.Wait())
}

// realNode is as large as a kubelet's: about 10 kB.
func realNode(i int) *corev1.Node {
	cidr := fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("worker-%d.example.internal", i), Labels: map[string]string{},
			Annotations: map[string]string{"csi.volume.kubernetes.io/nodeid": strings.Repeat("x", 100)}},
		Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{}, Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.%d.%d.10", i/256, i%256)}}}}
	for j := range 12 {
		n.Labels[fmt.Sprintf("topology.example.com/label-%d", j)] = fmt.Sprintf("value-%d-%d", i, j)
		n.Status.Capacity[corev1.ResourceName(fmt.Sprintf("example.com/r%d", j))] = quantity.MustParse("12Gi")
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Status: corev1.ConditionTrue,
			Type: corev1.NodeConditionType(fmt.Sprintf("C%d", j)), Message: strings.Repeat("message ", 10)})
	}
	for j := range 50 {
		image := fmt.Sprintf("registry.example.com/some/path/image-%d", j)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 1 << 27,
			Names: []string{fmt.Sprintf("%s@sha256:%064x", image, i*j), fmt.Sprintf("%s:v1.%d", image, i)}})
	}
	return n
}

// followOnly is that program.
func followOnly(kubeconfig string) error {
	client, err := kube.New(api.AgentConfig{ClientConnection: api.ClientConnection{Kubeconfig: kubeconfig}}, "test")
	if err != nil {
		return err
	}
	before, err := memory("VmRSS")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := NewKubernetes(client, "me", filepath.Join(filepath.Dir(kubeconfig), "memory.json"), false, logr.Discard())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	for k.Snapshot().Unread {
		if ctx.Err() != nil {
			return fmt.Errorf("not reported within %s: %w", patience, k.Snapshot().Trouble)
		}
		time.Sleep(time.Millisecond)
	}
	cancel() // writes the file
	if err := <-ended; err != nil {
		return err
	}
	peak, err := memory("VmHWM")
	if err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	fmt.Printf(followed, len(k.Snapshot().Nodes), before, peak, m.HeapAlloc>>10)
	return nil
}

// memory returns a value of /proc/self/status, in kB.
func memory(name string) (int, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", name)
}
