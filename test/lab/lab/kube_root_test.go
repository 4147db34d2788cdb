package lab

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// One lab with Kubernetes and without agents, for all tests that need none.
func TestRootKube(t *testing.T) {
	conntrack := machineConntrack(t)
	l := up(t, Options{Nodes: 2, Cluster: Kube})
	t.Run("nodes", func(t *testing.T) { nodesHavePodCIDRs(t, l) })
	t.Run("kubectl", func(t *testing.T) { kubectlWorks(t, l) })
	t.Run("pods", func(t *testing.T) { podsThroughTheAPI(t, l) })
	t.Run("manifests", func(t *testing.T) { applyAndDelete(t, l) })
	t.Run("events", func(t *testing.T) { failedAddIsAnEvent(t, l) })
	t.Run("parts", func(t *testing.T) { partsEndAndStart(t, l) })
	t.Run("flags", func(t *testing.T) { flagsAreKept(t, l) })
	t.Run("wipe", func(t *testing.T) { wipeForgetsAll(t, l) })
	if after := machineConntrack(t); after != conntrack {
		t.Errorf("conntrack's limits of the machine were %q, and are %q", conntrack, after)
	}
}

// machineConntrack is what kube-proxy would set for the whole machine without the lab's configuration.
func machineConntrack(t *testing.T) string {
	t.Helper()
	var out []string
	for _, name := range []string{"nf_conntrack_max", "nf_conntrack_tcp_timeout_established", "nf_conntrack_buckets"} {
		data, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		out = append(out, strings.TrimSpace(string(data)))
	}
	return strings.Join(out, " ")
}

// Every Node has one podCIDR of each family, from the cluster CIDRs and assigned to no other Node, and the node's
// addresses. The test polls: up waits only briefly for podCIDRs, since agents wait for them, and this lab has no
// agents.
func nodesHavePodCIDRs(t *testing.T, l *Lab) {
	var states []NodeState
	eventually(t, "two podCIDRs of each Node", func() bool {
		var err error
		states, err = l.NodeStates(t.Context())
		return err == nil && !slices.ContainsFunc(states, func(s NodeState) bool { return len(s.PodCIDRs) < 2 })
	})
	var seen []string
	for _, s := range states {
		if len(s.PodCIDRs) != 2 {
			t.Errorf("%s has the podCIDRs %v, want two", s.Node, s.PodCIDRs)
			continue
		}
		for i, in := range underlay.Dual.ClusterCIDRs() {
			cidr := netip.MustParsePrefix(s.PodCIDRs[i])
			if !in.Contains(cidr.Addr()) || slices.Contains(seen, cidr.String()) {
				t.Errorf("%s has the podCIDR %s, want one from %s of its own (others: %v)", s.Node, cidr, in, seen)
			}
			seen = append(seen, cidr.String())
		}
	}
	out, err := l.Kubectl(t.Context(), "get", "node", "node1", "-o", "jsonpath={.status.addresses[*].address}")
	if want := "192.168.77.11 fd77::11 node1"; err != nil || out != want {
		t.Errorf("node1 has the addresses %q, %v, want %q", out, err, want)
	}
}

func kubectlWorks(t *testing.T, l *Lab) {
	out, err := l.Kubectl(t.Context(), "get", "--raw", "/version")
	if err != nil || !strings.Contains(out, `"gitVersion": "v1.`) {
		t.Errorf("kubectl get --raw /version: %s, %v", out, err)
	}
	if _, err := l.Kubectl(t.Context(), "get", "pod", "unknown"); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("kubectl get pod unknown: %v", err)
	}
}

const hostPod = `apiVersion: v1
kind: Pod
metadata: {name: h}
spec: {nodeName: node2, hostNetwork: true, containers: [{name: main, image: none}]}
`

// A Pod created through the API runs, its status reports it, and it is removed when it is deleted.
func podsThroughTheAPI(t *testing.T, l *Lab) {
	if _, err := l.Apply("test", []byte(hostPod)); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitPods(labtest.Within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	out, err := l.Kubectl(t.Context(), "get", "pod", "h", "-o",
		`jsonpath={.status.phase} {.status.podIPs[*].ip} {.status.hostIP} {.status.conditions[?(@.type=="Ready")].status}`)
	if want := "Running 192.168.77.12 fd77::12 192.168.77.12 True"; err != nil || out != want {
		t.Errorf("the pod's status is %q, %v, want %q", out, err, want)
	}
	changes, err := l.Delete("test", []byte(hostPod))
	if err != nil || len(changes) != 1 || changes[0].String() != "pod/h deleted" {
		t.Errorf("delete: %v, %v", changes, err)
	}
	eventually(t, "the pod is gone", func() bool {
		pods, err := l.PodStates()
		return err == nil && len(pods) == 0
	})
	if changes, err = l.Delete("test", []byte(hostPod)); err != nil || len(changes) != 1 || changes[0].What != "not found" {
		t.Errorf("delete of what is gone: %v, %v", changes, err)
	}
}

const deployment = `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: web}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web}
  spec:
    replicas: 0
    selector: {matchLabels: {app: web}}
    template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: none}]}}
`

// Apply and Delete report each object as kubectl does, for other kinds, objects without a namespace, and Lists as well.
// An invalid object is an error that names the file, and does not keep other objects from being applied.
func applyAndDelete(t *testing.T, l *Lab) {
	say := func(do func(string, []byte) ([]manifest.Change, error), text, want string) {
		t.Helper()
		changes, err := do("test", []byte(text))
		var got []string
		for _, c := range changes {
			got = append(got, c.String())
		}
		if said := strings.Join(got, ", "); err != nil || said != want {
			t.Errorf("%q, %v; want %q", said, err, want)
		}
	}
	say(l.Apply, deployment, "namespace/web created, deployment.apps/web created")
	say(l.Apply, deployment, "namespace/web unchanged, deployment.apps/web unchanged")
	say(l.Apply, strings.Replace(deployment, "main", "other", 1), "namespace/web unchanged, deployment.apps/web configured")
	client, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	d, err := client.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || len(d.Spec.Template.Spec.Containers) != 1 || d.Spec.Template.Spec.Containers[0].Name != "other" {
		t.Errorf("the Deployment is %+v, %v; want one container, other", d, err)
	}
	for text, want := range map[string]string{
		"kind: Pod\nmetadata: {name: a}\n":                                         "no apiVersion",
		"apiVersion: v1\nkind: Pot\nmetadata: {name: a}":                           "v1 has no kind Pot",
		"apiVersion: x.y/v1\nkind: X\nmetadata: {name: a}":                         "the resources of x.y/v1",
		strings.Replace(hostPod, "nodeName", "nodename", 1) + "---\n" + deployment: "nodename",
	} {
		if _, err := l.Apply("bad.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "bad.yaml") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("apply of a wrong manifest: %v; want %q", err, want)
		}
	}
	say(l.Apply, deployment, "namespace/web unchanged, deployment.apps/web unchanged") // applied despite the error
	say(l.Delete, deployment, "namespace/web deleted, deployment.apps/web deleted")
	eventually(t, "the Deployment is gone", func() bool {
		_, err := client.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	_, rest, _ := strings.Cut(deployment, "\n- apiVersion")
	say(l.Delete, "apiVersion: v1\nkind: List\nitems:\n- apiVersion"+rest, "deployment.apps/web not found")
}

// Errors of a pod's network are shown where users look for them. There is no agent here, so no CNI configuration.
func failedAddIsAnEvent(t *testing.T, l *Lab) {
	pod := strings.Replace(hostPod, "hostNetwork: true, ", "", 1)
	if _, err := l.Apply("test", []byte(pod)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "describe shows why the pod does not run", func() bool {
		out, err := l.Kubectl(t.Context(), "describe", "pod", "h")
		return err == nil && strings.Contains(out, "FailedCreatePodSandBox") &&
			strings.Contains(out, sandbox.ErrNoNetwork.Error())
	})
	if _, err := l.Delete("test", []byte(pod)); err != nil {
		t.Error(err)
	}
	if err := l.WaitPods(labtest.Within(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
}

// Each component can be killed, stalled and started, and its state is reported.
func partsEndAndStart(t *testing.T, l *Lab) {
	p, err := l.Plane()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range controlplane.Parts() {
		before := p.PID(part)
		if err := p.Start(t.Context(), part, nil); err == nil || !strings.Contains(err.Error(), "is already running") {
			t.Errorf("%s, a second start: %v", part, err)
		}
		if err := p.Pause(part); err != nil {
			t.Fatal(err)
		}
		// A paused etcd still passes the check: the kernel accepts connections to its socket. The others stop serving
		// some time after the signal.
		if part != controlplane.Etcd {
			eventually(t, string(part)+" does not serve while it hangs", func() bool { return problem(t, l, part) != "" })
		}
		if err := p.Resume(part); err != nil {
			t.Fatal(err)
		}
		eventually(t, string(part)+" serves when it goes on", func() bool { return problem(t, l, part) == "" })
		if err := p.Pause(part); err != nil { // a stalled component can be killed, too
			t.Fatal(err)
		}
		if err := p.Kill(labtest.Within(t, 10*time.Second), part); err != nil {
			t.Fatal(err)
		}
		if got := problem(t, l, part); !strings.Contains(got, "does not run") {
			t.Errorf("%s was killed, and: %q", part, got)
		}
		if part == controlplane.APIServer {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if err := l.WaitPods(ctx); err == nil || !strings.Contains(err.Error(), "listing the Pods") {
				t.Errorf("without an API server the Pods count as settled: %v", err)
			}
			cancel()
		}
		if err := p.Start(labtest.Within(t, time.Minute), part, nil); err != nil {
			t.Fatal(err)
		}
		if pid := p.PID(part); pid == 0 || pid == before {
			t.Errorf("%s has pid %d, had %d", part, pid, before)
		}
	}
	nodesHavePodCIDRs(t, l)
}

func problem(t *testing.T, l *Lab, part controlplane.Part) string {
	t.Helper()
	states, err := l.PartStates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		if s.Part == part {
			return s.Problem
		}
	}
	t.Fatalf("no part %s in %v", part, states)
	return ""
}

// A flag set at a restart is in effect, and at the next start too. It applies to a Node that is added later.
func flagsAreKept(t *testing.T, l *Lab) {
	p, err := l.Plane()
	if err != nil {
		t.Fatal(err)
	}
	set, err := controlplane.ParseFlags([]string{"--node-cidr-mask-size-ipv4=26", "profiling-"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(labtest.Within(t, time.Minute), controlplane.KCM, set); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(labtest.Within(t, time.Minute), controlplane.KCM, nil); err != nil {
		t.Fatal(err)
	}
	client, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	guest := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "guest"}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), guest, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a Node gets a podCIDR of 26 bits", func() bool {
		n, err := client.CoreV1().Nodes().Get(t.Context(), "guest", metav1.GetOptions{})
		return err == nil && strings.HasSuffix(n.Spec.PodCIDR, "/26")
	})
}

// After a wipe only the Nodes exist again, as new objects.
func wipeForgetsAll(t *testing.T, l *Lab) {
	client, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	uid := func() types.UID {
		n, err := client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.UID
	}
	if _, err := l.Apply("test", []byte(hostPod)); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitPods(labtest.Within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	before := uid()
	if err := l.Wipe(labtest.Within(t, 2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if uid() == before {
		t.Error("node1 is still the same object")
	}
	if out, err := l.Kubectl(t.Context(), "get", "nodes", "-o", "name"); err != nil || out != "node/node1\nnode/node2\n" {
		t.Errorf("nodes: %q, %v", out, err)
	}
	eventually(t, "the unknown pod is removed", func() bool {
		records, err := l.Records().List()
		return err == nil && len(records) == 0
	})
}

// IPv6 only: all addresses, and those of Services, are IPv6.
func TestRootKubeIPv6(t *testing.T) {
	l := up(t, Options{Nodes: 1, Cluster: Kube, IPFamily: underlay.IPv6, KubeProxy: "iptables"})
	eventually(t, "node1 has a podCIDR and an address of IPv6", func() bool {
		out, err := l.Kubectl(t.Context(), "get", "node", "node1", "-o", "jsonpath={.spec.podCIDRs}{.status.addresses[0].address}")
		return err == nil && out == `["fd77:0:0:100::/64"]fd77::11`
	})
	eventually(t, "kube-proxy has the Service of the API", func() bool {
		out, err := l.NodeExec(t.Context(), "node1", "ip6tables-save", "-t", "nat")
		return err == nil && strings.Contains(out, "fd96::1")
	})
}

// An up that is interrupted while some or all of the control plane's components are running leaves nothing behind.
func TestRootKubeUpInterrupted(t *testing.T) {
	needRoot(t)
	for at, after := range map[string]time.Duration{"control-plane: apiserver": 200 * time.Millisecond,
		"control-plane: kcm": 200 * time.Millisecond, "nodes join the cluster": 0} { // the last step may be short
		ctx, cancel := context.WithCancel(t.Context())
		dir := filepath.Join(t.TempDir(), "lab")
		o := Options{Nodes: 1, Dir: dir, BinDir: binDir, NoAgent: true, Cluster: Kube}
		o.Progress = func(step string) {
			if step == at && after == 0 {
				cancel()
			} else if step == at {
				time.AfterFunc(after, cancel)
			}
		}
		_, err := Up(ctx, o)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "interrupted") {
			t.Errorf("%s: %v", at, err)
		}
		labWatch{dir: dir}.checkGone(t)
	}
}

// A flag that a component does not support is reported with the component's own message, and nothing is left.
func TestRootKubeWrongFlag(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "lab")
	_, err := Up(t.Context(), Options{Nodes: 1, Dir: dir, BinDir: binDir, NoAgent: true, Cluster: Kube,
		Set: []string{"apiserver.no-such-flag=1"}})
	if err == nil || !strings.Contains(err.Error(), "waiting for kube-apiserver: it has ended") ||
		!strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("up: %v", err)
	}
	labWatch{dir: dir}.checkGone(t)
}
