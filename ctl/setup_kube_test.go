package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller"
	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/migrate/takedown"
	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

var (
	// shared is the API server of this package's tests, binDir the directory of the programs that labs run: see
	// TestMain.
	shared apitest.Shared
	binDir string
)

// withServer runs the tests, and stops the API server that they share.
type withServer struct{ *testing.M }

func (m withServer) Run() int {
	code := m.M.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func TestMain(m *testing.M) { labtest.Main(withServer{m}, &binDir) }

// patience is the timeout for something that takes a second or two on an idle machine.
const patience = time.Minute

// fixture is an API server with Fairlead's CRDs and nothing else of Fairlead, and a kubeconfig of its administrator.
type fixture struct {
	t          *testing.T
	s          *apitest.Server
	client     *kube.Client
	kubeconfig string
	token      string // file
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	s := shared.Get(t)
	c := &fixture{t: t, s: s, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), token: filepath.Join(t.TempDir(), "token")}
	c.must(s.Apply(t.Context(), "../build/manifests/fairlead.yaml", "app.kubernetes.io/component=crds"))
	c.must(s.Objects().Clear(t.Context(), "ippools.v1beta1.crd.antrea.io", "ipallocations.v1alpha1.ipam.fairlead.dev",
		"podcidrranges.v1alpha1.ipam.fairlead.dev", "podcidrclaims.v1alpha1.ipam.fairlead.dev", "nodes", "pods",
		"statefulsets.v1.apps", "networkpolicies.v1.networking.k8s.io", "events"))
	for _, name := range []string{"fairlead-controller", "kube-controller-manager"} {
		err := s.Admin().CoordinationV1().Leases("kube-system").Delete(t.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	var err error
	c.client, err = kube.ForConfig(&rest.Config{Host: s.URL, BearerToken: apitest.AdminToken, QPS: 1000, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()}})
	c.must(err)
	c.letIn(apitest.AdminToken)
	return c
}

func (c *fixture) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// letIn switches the kubeconfig to another user.
func (c *fixture) letIn(token string) {
	c.t.Helper()
	c.must(os.WriteFile(c.token, []byte(token), 0o600))
	c.must(apitest.Kubeconfig(c.kubeconfig, c.s.URL, c.s.CA(), c.token))
}

// run runs a fairleadctl command against the cluster only: not as on a node, whatever else runs on this machine.
func (c *fixture) run(args ...string) (string, int) {
	c.t.Helper()
	conf := filepath.Join(c.t.TempDir(), "agent.conf")
	c.must(os.WriteFile(conf, []byte("cniSocket: /nonexistent/fairlead/cni.sock\n"), 0o600))
	return run(c.t, append(args, "--kubeconfig", c.kubeconfig, "--config", conf)...)
}

// kinds runs a command with -o json and returns the kinds of its findings.
func (c *fixture) kinds(args ...string) (kinds []string, code int) {
	c.t.Helper()
	out, code := c.run(append(args, "-o", "json")...)
	var r struct{ Findings []struct{ Kind string } }
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		c.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	for _, f := range r.Findings {
		kinds = append(kinds, f.Kind)
	}
	return kinds, code
}

// node creates a Node, Ready or not, with the given podCIDRs.
func (c *fixture) node(name string, ready corev1.ConditionStatus, podCIDRs ...string) *corev1.Node {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
	if len(podCIDRs) > 0 {
		n.Spec.PodCIDR = podCIDRs[0]
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.Now(),
		Message: "the test says so"}}
	made, err := c.client.Kubernetes.CoreV1().Nodes().Create(c.t.Context(), n, metav1.CreateOptions{})
	c.must(err)
	made.Status, made.ResourceVersion = n.Status, "" // a controller may have assigned a podCIDR meanwhile
	made, err = c.client.Kubernetes.CoreV1().Nodes().UpdateStatus(c.t.Context(), made, metav1.UpdateOptions{})
	c.must(err)
	return made
}

// runs sets the software versions in a Node's status.
func (c *fixture) runs(node, kubelet, runtime string) {
	c.t.Helper()
	patch := fmt.Sprintf(`{"status": {"nodeInfo": {"kubeletVersion": %q, "containerRuntimeVersion": %q}}}`, kubelet, runtime)
	_, err := c.client.Kubernetes.CoreV1().Nodes().Patch(c.t.Context(), node, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status")
	c.must(err)
}

// pod creates a running Pod on a node with addresses.
func (c *fixture) pod(name, node string, ips ...string) *corev1.Pod {
	c.t.Helper()
	pods := c.client.Kubernetes.CoreV1().Pods("default")
	p, err := pods.Create(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	c.must(err)
	p.Status.Phase = corev1.PodRunning
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		p.Status.PodIP = ips[0]
	}
	p, err = pods.UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{})
	c.must(err)
	return p
}

func (c *fixture) deletePod(name string) {
	c.t.Helper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	c.must(c.client.Kubernetes.CoreV1().Pods("default").Delete(c.t.Context(), name, now))
}

// pool creates the IPPool 10.2.0.10-10.2.0.19 in VLAN 5.
func (c *fixture) pool(name string) {
	c.t.Helper()
	c.apply(fmt.Sprintf(`{apiVersion: crd.antrea.io/v1beta1, kind: IPPool, metadata: {name: %s}, spec: {
		subnetInfo: {gateway: 10.2.0.1, prefixLength: 24, vlan: 5}, ipRanges: [{start: 10.2.0.10, end: 10.2.0.19}]}}`, name))
}

func (c *fixture) apply(manifest string) {
	c.t.Helper()
	c.must(c.s.ApplyManifest(c.t.Context(), []byte(manifest), ""))
}

func (c *fixture) store() *allocation.Kubernetes { return allocation.NewKubernetes(c.client.Dynamic) }

// hold creates the allocation of an address for a pod.
func (c *fixture) hold(address string, p *corev1.Pod) api.IPAllocation {
	c.t.Helper()
	return c.allocation(address, api.IPAllocationSpec{Phase: api.PhaseAllocated, Owner: api.AllocationOwner{
		PodUID: string(p.UID), Namespace: p.Namespace, Name: p.Name, ContainerID: "c-" + p.Name, IfName: "eth0",
		Node: p.Spec.NodeName}})
}

func (c *fixture) allocation(address string, s api.IPAllocationSpec) api.IPAllocation {
	c.t.Helper()
	s.Address, s.Pool = address, "p"
	a, err := c.store().Create(c.t.Context(), api.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", netip.MustParseAddr(address))}, Spec: s})
	c.must(err)
	return a
}

// startController runs a fairlead-controller until the test, or stop, ends it.
func (c *fixture) startController(n api.NodeIPAM) (stop func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	intervals := api.DefaultIntervals().Controller
	intervals.Pass, intervals.LeaseRetry = 50*time.Millisecond, 100*time.Millisecond
	intervals.Withdraw = 100 * time.Millisecond
	done := make(chan error, 1)
	go func() {
		done <- controller.Run(ctx, controller.Options{Client: c.client.Dynamic, Kubernetes: c.client.Kubernetes,
			Intervals: intervals,
			OtherAllocator: func(ctx context.Context) (string, error) {
				return podcidr.OtherAllocator(ctx, c.client.Kubernetes)
			},
			Withdraw: func(ctx context.Context) (bool, error) { return takedown.Withdraw(ctx, c.client.Kubernetes) },
			Log:      logr.Discard(), Config: api.ControllerConfig{APIAddress: netip.MustParseAddr("127.0.0.1"), NodeIPAM: n}})
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	}
	c.t.Cleanup(stop)
	return stop
}

// until polls until f returns "".
func (c *fixture) until(f func() (missing string)) {
	c.t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		missing := f()
		if missing == "" {
			return
		}
		if time.Since(start) > patience {
			c.t.Fatalf("not after %s: %s", patience, missing)
		}
	}
}

// removeFinalizers removes the finalizers of pools, so that the next test finds none.
func (c *fixture) removeFinalizers() {
	list, err := c.client.Dynamic.Resource(api.PoolResource).List(context.Background(), metav1.ListOptions{})
	if apierrors.IsNotFound(err) { // the test has removed the CRD
		return
	}
	c.must(err)
	for _, p := range list.Items {
		c.must(patchFinalizers(c, p))
	}
}

func patchFinalizers(c *fixture, p unstructured.Unstructured) error {
	_, err := c.client.Dynamic.Resource(api.PoolResource).Patch(context.Background(), p.GetName(), types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	return err
}
