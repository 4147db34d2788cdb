package podcidr

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// agentClient is a client with the agent's RBAC rules.
func (c *realCluster) agentClient() clients {
	c.t.Helper()
	return c.clientOf("agent")
}

// clients are clients of one API server with one identity.
type clients struct {
	*kubernetes.Clientset
	objects dynamic.Interface
}

func (c *realCluster) clients(config *rest.Config) clients {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(config)
	c.must(err)
	objects, err := dynamic.NewForConfig(config)
	c.must(err)
	return clients{client, objects}
}

func (c clients) read(ctx context.Context) Facts { return Read(ctx, c, c.objects) }

// clientOf returns clients with the shipped RBAC rules of fairlead-WHO, once the API server applies them.
func (c *realCluster) clientOf(who string) clients {
	c.t.Helper()
	c.must(c.Apply(c.t.Context(), "../../build/manifests/fairlead.yaml",
		"app.kubernetes.io/component=rbac,app.kubernetes.io/name=fairlead-"+who))
	token, err := c.Token(c.t.Context(), "fairlead-"+who)
	c.must(err)
	out := c.clients(&rest.Config{Host: c.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.CA()}})
	start := time.Now()
	for _, may := range []authorizationv1.ResourceAttributes{ // from its ClusterRole, and from its Role
		{Verb: "create", Resource: "events"},
		{Verb: "get", Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system", Name: "fairlead-controller"}} {
		review := &authorizationv1.SelfSubjectAccessReview{}
		review.Spec.ResourceAttributes = &may
		for allowed := false; !allowed; time.Sleep(20 * time.Millisecond) {
			got, err := out.AuthorizationV1().SelfSubjectAccessReviews().Create(c.t.Context(), review, metav1.CreateOptions{})
			c.must(err)
			if allowed = got.Status.Allowed; !allowed && time.Since(start) > patience {
				c.t.Fatalf("fairlead-%s may not %+v: %+v", who, may, got.Status)
			}
		}
	}
	return out
}

func (c *realCluster) kcmPod(ready corev1.ConditionStatus, command ...string) {
	c.t.Helper()
	pods := c.Admin().CoreV1().Pods("kube-system")
	_, err := pods.Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kcm-cp1", Labels: map[string]string{"component": "kube-controller-manager"},
			Annotations: map[string]string{"kubernetes.io/config.source": "file"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i", Command: command}}}}, metav1.CreateOptions{})
	c.must(err)
	pod, err := pods.Get(c.t.Context(), "kcm-cp1", metav1.GetOptions{})
	c.must(err)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	if ready != corev1.ConditionTrue {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: "i", ImageID: "i",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	}
	_, err = pods.UpdateStatus(c.t.Context(), pod, metav1.UpdateOptions{})
	c.must(err)
	c.t.Cleanup(func() {
		c.must(pods.DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
			metav1.ListOptions{LabelSelector: kcmLabel}))
	})
}

func (c *realCluster) kubeadmConfig(config string) {
	c.t.Helper()
	maps := c.Admin().CoreV1().ConfigMaps("kube-system")
	_, err := maps.Create(c.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: kubeadmConfig},
		Data: map[string]string{"ClusterConfiguration": config}}, metav1.CreateOptions{})
	c.must(err)
	c.t.Cleanup(func() { c.must(maps.Delete(context.Background(), kubeadmConfig, metav1.DeleteOptions{})) })
}

// Each source of facts, read with the agent's RBAC rules.
func TestKubeRead(t *testing.T) {
	services := prefixes("10.96.0.0/16") // of the API server's ServiceCIDR
	for _, s := range []struct {
		name string
		set  func(*realCluster)
		want Facts
	}{
		{"nothing", func(*realCluster) {}, Facts{}},
		{"the command of a pod", func(c *realCluster) {
			c.kcmPod(corev1.ConditionTrue, "kube-controller-manager", "--allocate-node-cidrs=true", "--cluster-cidr=10.0.0.0/20",
				"--service-cluster-ip-range=10.96.0.0/16")
			c.kubeadmConfig(kubeadm4) // has lower precedence
		}, Facts{Ranges: []Range{rangeOf("10.0.0.0/20", 24)}, RangesFrom: "the command of Pod kube-system/kcm-cp1", LeftOut: services,
			Allocates: Yes, Runs: Yes, Manifest: kcmManifest, Kubeadm: true, PodSubnet: "10.244.0.0/16"}},
		{"a pod that crashes", func(c *realCluster) { c.kcmPod(corev1.ConditionFalse, "--allocate-node-cidrs=false") },
			Facts{Allocates: No, AllocatesNot: "its command has --allocate-node-cidrs=false", Runs: No,
				RunsNot: "Pod kube-system/kcm-cp1 waits: CrashLoopBackOff", Manifest: kcmManifest}},
		{"kubeadm", func(c *realCluster) { c.kubeadmConfig(kubeadm4) },
			Facts{Ranges: []Range{rangeOf("10.244.0.0/16", 26)}, RangesFrom: "ConfigMap kube-system/kubeadm-config",
				LeftOut: prefixes("10.96.0.0/12"), Allocates: Yes, Manifest: kcmManifest, Kubeadm: true, PodSubnet: "10.244.0.0/16"}},
		{"kubeadm without --pod-network-cidr", func(c *realCluster) { c.kubeadmConfig("networking: {serviceSubnet: 10.96.0.0/12}") },
			Facts{Allocates: No, AllocatesNot: "its command has no --allocate-node-cidrs", Manifest: kcmManifest, Kubeadm: true}},
		{"broken kubeadm-config", func(c *realCluster) { c.kubeadmConfig("networking: {podSubnet: all}") },
			Facts{Unread: []string{`ConfigMap kube-system/kubeadm-config could not be read: networking.podSubnet: "all" is not a CIDR`}}},
	} {
		t.Run(s.name, func(t *testing.T) {
			c := newRealCluster(t, Facts{}, nil)
			s.set(c)
			s.want.Services, s.want.ServicesFrom, s.want.Refused = services, "the ServiceCIDR objects", map[string]Refusal{}
			if got := c.agentClient().read(t.Context()); !reflect.DeepEqual(got, s.want) {
				t.Errorf("got\n%+v\nwant\n%+v", got, s.want)
			}
		})
	}
}

// fairlead-controller, with its RBAC rules, detects whether kube-controller-manager is configured to assign podCIDRs.
func TestKubeOtherAllocator(t *testing.T) {
	for command, want := range map[string]string{
		"--allocate-node-cidrs=true":  "kube-controller-manager, whose Pod kube-system/kcm-cp1 has --allocate-node-cidrs",
		"--allocate-node-cidrs=false": "", "--cluster-cidr=10.0.0.0/20": "", "": ""} {
		t.Run(command, func(t *testing.T) {
			c := newRealCluster(t, Facts{}, nil)
			if command != "" {
				c.kcmPod(corev1.ConditionTrue, "kube-controller-manager", command)
			}
			if who, err := OtherAllocator(t.Context(), c.clientOf("controller")); who != want || err != nil {
				t.Errorf("got %q, %v", who, err)
			}
		})
	}
}

// A kube-controller-manager that is not a pod is detected by its Lease.
func TestKubeReadLease(t *testing.T) {
	c := newRealCluster(t, Facts{}, nil)
	leases := c.Admin().CoordinationV1().Leases("kube-system")
	for _, l := range []struct {
		age  time.Duration
		want Answer
	}{{time.Second, Yes}, {time.Hour, No}} {
		renewed := metav1.NewMicroTime(time.Now().Add(-l.age))
		_, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: kcmLease},
			Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}, metav1.CreateOptions{})
		c.must(err)
		if f := c.agentClient().read(t.Context()); f.Runs != l.want || (f.Runs == No) != strings.Contains(f.RunsNot, "has not been renewed") {
			t.Errorf("a Lease of %s ago: %v, %s", l.age, f.Runs, f.RunsNot)
		}
		c.must(leases.Delete(t.Context(), kcmLease, metav1.DeleteOptions{}))
	}
}

// The Events of the real allocator are found, and the message has the numbers, although only the Nodes indicate the
// range.
func TestKubeReadEvents(t *testing.T) {
	c := newRealCluster(t, allocatorWith(rangeOf("10.244.0.0/23", 24)), cut("10.244.0.0/23", 24, 2, 1))
	c.must(c.start())
	var f Facts
	for start := time.Now(); len(f.Refused) == 0; time.Sleep(100 * time.Millisecond) {
		if f = c.agentClient().read(t.Context()); time.Since(start) > patience {
			t.Fatal("no CIDRNotAvailable Event is found")
		}
	}
	d := Diagnose("worker-3", c.nodes(), f, time.Now())
	if d == nil || d.Kind != Exhausted || !strings.Contains(d.Message(), "Widen --cluster-cidr to 10.244.0.0/22 (4 nodes)") ||
		!strings.Contains(d.Message(), "the shape of the Nodes' podCIDRs") || len(d.Seen) != 1 {
		t.Errorf("got %+v", d)
	}
}

// Without any permissions, or without a server, everything is unknown, and reported.
func TestKubeReadForbidden(t *testing.T) {
	c := newRealCluster(t, Facts{}, nil)
	client := c.agentClient()
	const rbac = ".v1.rbac.authorization.k8s.io"
	for _, kind := range []string{"clusterrolebindings", "clusterroles"} {
		c.must(c.Objects().Remove(t.Context(), kind+rbac, "", "fairlead-agent"))
	}
	for _, kind := range []string{"rolebindings", "roles"} {
		c.must(c.Objects().Remove(t.Context(), kind+rbac, "kube-system", "fairlead-agent"))
	}
	var f Facts
	for start := time.Now(); len(f.Unread) < 6 && time.Since(start) < patience; time.Sleep(100 * time.Millisecond) {
		f = client.read(t.Context()) // the API server applies RBAC changes within a second
	}
	for _, what := range []string{"the Pods of kube-controller-manager", "kubeadm-config", "Lease", "ServiceCIDRs", "Events", "PodCIDRRanges"} {
		if unread := strings.Join(f.Unread, "\n"); !strings.Contains(unread, what) || !strings.Contains(unread, "forbidden") {
			t.Errorf("%s: not reported in\n%s", what, unread)
		}
	}
	d := Diagnose("b", nodeMap(node(1, "a", "10.244.0.0/24"), node(2, "b")), f, time.Now())
	if d == nil || d.Kind != NotGiven || !strings.Contains(d.Message(), "ConfigMap kube-system/kubeadm-config could not be read: forbidden") {
		t.Errorf("got %+v", d)
	}
	if f := c.clients(&rest.Config{Host: "https://127.0.0.1:1"}).read(t.Context()); len(f.Unread) != 6 {
		t.Errorf("no answer: %+v", f)
	}
}
