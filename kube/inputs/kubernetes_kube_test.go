package inputs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// Objects of the API server are read as the same compact values as from a directory of the same manifests, with the
// shipped RBAC rules.
func TestKubeFollows(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.makeNode(1, func(n *corev1.Node) {
		n.Annotations = map[string]string{transportAddresses: "198.51.100.1"}
	})
	mine := c.makePod("mine", "me", map[string]string{"ipam.antrea.io/ippools": "pool1", "other": "x"})
	c.makePod("elsewhere", "node-1", nil)
	k := c.source()
	policy, err := c.Admin().NetworkingV1().NetworkPolicies("default").Create(t.Context(),
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}}, metav1.CreateOptions{})
	c.must(err)
	s := c.until(k, "all objects", func(s *Snapshot) bool {
		return len(s.Nodes) == 2 && len(s.Pods) == 1 && len(s.Namespaces) >= 4 && len(s.NetworkPolicies) == 1
	})
	c.until(k, "no trouble", untroubled)
	node := s.Nodes["node-1"]
	if node.Created.IsZero() || time.Since(node.Created) > time.Hour {
		t.Errorf("created %v, want a time just now", node.Created)
	}
	node.Created = time.Time{}
	if want := (Node{Name: "node-1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")},
		Addresses:       []netip.Addr{netip.MustParseAddr("192.0.0.1")},
		TunnelAddresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}}); !reflect.DeepEqual(node, want) {
		t.Errorf("the Node is %+v, want %+v", node, want)
	}
	if got, want := s.Pods["default/mine"], (Pod{Namespace: "default", Name: "mine", UID: string(mine.UID), NodeName: "me",
		Annotations: map[string]string{"ipam.antrea.io/ippools": "pool1"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("the Pod is %+v, want %+v", got, want)
	}
	if got, want := s.NetworkPolicies["NetworkPolicy default/deny"], (NetworkPolicy{APIVersion: "networking.k8s.io/v1",
		Kind: "NetworkPolicy", Namespace: "default", Name: "deny", UID: string(policy.UID)}); got != want {
		t.Errorf("the policy is %+v, want %+v", got, want)
	}
	if ns, ok := s.Namespaces["kube-system"]; !ok || ns.Name != "kube-system" {
		t.Errorf("the Namespaces are %v, want kube-system among them", s.Namespaces)
	}
	c.must(c.Admin().CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
	c.until(k, "a Node that goes", hasNodes("me"))
}

// An object that cannot be used keeps its last good value, even across a relist.
func TestKubeKeepsTheLastGood(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.makeNode(1)
	k := c.source()
	good := c.until(k, "both Nodes", hasNodes("me", "node-1")).Nodes["node-1"]
	annotate := func(value string) {
		t.Helper()
		c.must(c.patchNode("node-1", map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{transportAddresses: value}}}))
	}
	annotate("nonsense")
	s := c.until(k, "the problem", func(s *Snapshot) bool { return len(s.Problems) == 1 })
	if !strings.Contains(s.Problems[0], `Node node-1: annotation `+transportAddresses+`: "nonsense"`) {
		t.Errorf("the problem is %q", s.Problems[0])
	}
	if !reflect.DeepEqual(s.Nodes["node-1"], good) {
		t.Errorf("the Node is %+v, want the last good one %+v", s.Nodes["node-1"], good)
	}
	// Everything is read again, including the invalid one.
	c.must(c.Empty(t.Context()))
	c.makeNode(0)
	c.makeNode(1, func(n *corev1.Node) {
		n.Annotations = map[string]string{transportAddresses: "worse"}
	})
	c.grant()
	s = c.until(k, "the Nodes of another cluster", func(s *Snapshot) bool {
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0], "worse")
	})
	if !reflect.DeepEqual(s.Nodes["node-1"], good) {
		t.Errorf("after a relist the Node is %+v, want the last good one %+v", s.Nodes["node-1"], good)
	}
}

func (c *cluster) patchNode(name string, patch any, subresources ...string) error {
	c.t.Helper()
	data, err := json.Marshal(patch)
	c.must(err)
	_, err = c.Admin().CoreV1().Nodes().Patch(c.t.Context(), name, types.StrategicMergePatchType, data,
		metav1.PatchOptions{}, subresources...)
	return err
}

// The kubelet updates each Node's status every few minutes, and labels and annotations change for other reasons: none
// of that wakes the loop.
func TestKubeHeartbeatsDoNotWake(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.makeNode(1)
	k := c.source()
	c.until(k, "both Nodes", hasNodes("me", "node-1"))
	quiet(t, k)
	before := k.Snapshot()
	for i := range 10 {
		at := metav1.NewTime(time.Now().Add(time.Duration(i) * time.Second))
		c.must(c.patchNode("node-1", map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: at}}}}, "status"))
		c.must(c.patchNode("me", map[string]any{"metadata": map[string]any{"labels": map[string]any{"x": fmt.Sprint(i)}}}))
	}
	c.makePod("p", "me", nil) // a Pod is read only when it is needed
	c.until(k, "the Pod", func(s *Snapshot) bool { return len(s.Pods) == 1 })
	select {
	case <-k.Changed():
		t.Error("a heartbeat, a label or a Pod is reported as a change")
	case <-time.After(4 * quietTime):
	}
	if !reflect.DeepEqual(k.Snapshot().Nodes, before.Nodes) {
		t.Errorf("the Nodes are %v, want %v", k.Snapshot().Nodes, before.Nodes)
	}
	c.must(c.patchNode("node-1", map[string]any{"status": map[string]any{"addresses": []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.99"}}}}, "status"))
	select {
	case <-k.Changed():
	case <-time.After(patience):
		t.Error("another address of a Node is not reported")
	}
}

// quiet waits until there are no more changes from the start.
func quiet(t *testing.T, k *Kubernetes) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case <-k.Changed():
		case <-time.After(10 * quietTime):
			return
		case <-deadline:
			t.Fatal("changes do not end")
		}
	}
}

// While the API server is down, existing state stays in effect and the outage is reported; then the server is watched
// again, with its new state.
func TestKubeServerKilled(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.makeNode(1)
	k := c.source()
	before := c.until(k, "both Nodes", hasNodes("me", "node-1"))
	c.KillAPI()
	s := c.until(k, "trouble", troubled)
	if !reflect.DeepEqual(s.Nodes, before.Nodes) {
		t.Errorf("the Nodes are %v, want them as before: %v", s.Nodes, before.Nodes)
	}
	for _, want := range []string{c.URL, "connection refused", "stays in effect"} {
		if !strings.Contains(s.Trouble.Error(), want) {
			t.Errorf("the trouble is %q, want %q in it", s.Trouble, want)
		}
	}
	c.retries(k, 2) // the first failure is that of an open connection: the trouble changes, which is reported
	quiet(t, k)
	c.retries(k, 4)
	select {
	case <-k.Changed():
		t.Errorf("a retry is reported as a change")
	default:
	}
	c.must(c.StartAPI(t.Context()))
	c.must(c.Admin().CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
	c.makeNode(2)
	c.until(k, "the changes since", hasNodes("me", "node-2"))
	c.until(k, "no trouble", untroubled)
}

// retries waits until so many more requests of each kind of objects have failed.
func (c *cluster) retries(k *Kubernetes, times int64) {
	c.t.Helper()
	before := k.Failures()
	c.until(k, "retries", func(*Snapshot) bool {
		for name, n := range k.Failures() {
			if n < before[name]+times {
				return false
			}
		}
		return true
	})
}

// A suspended server, with all connections open, is detected by HTTP/2 pings. client-go's intervals are 30 s and 15 s;
// they are shorter here.
func TestKubeServerHangs(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "3")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "2")
	c := newCluster(t)
	c.makeNode(0)
	k := c.source()
	c.until(k, "the Node", hasNodes("me"))
	c.must(c.Freeze())
	defer c.Thaw()
	if _, _, err := k.Pod(t.Context(), "default", "unknown", "1"); err == nil {
		t.Error("an unknown Pod is found")
	} else if !strings.Contains(err.Error(), "timeout") {
		t.Errorf("got %v, want a timeout", err)
	}
	c.until(k, "trouble", troubled)
	c.must(c.Thaw())
	c.until(k, "no trouble", untroubled)
	c.makeNode(1)
	c.until(k, "a new Node", hasNodes("me", "node-1"))
}

// After etcd was emptied the server would accept the old watches and send nothing, whether its resource versions have
// overtaken the old ones or not, and whether it streams the initial list in a watch (Kubernetes 1.34 and later) or
// lists first.
func TestKubeOtherHistory(t *testing.T) {
	for _, v := range []struct{ longer, lists bool }{{}, {longer: true}, {longer: true, lists: true}} {
		t.Run(fmt.Sprintf("%+v", v), func(t *testing.T) {
			c, longer := newCluster(t), v.longer
			if v.lists {
				c.restartWith("--feature-gates=WatchList=false")
			}
			door := c.door()
			// A rejected token would make the agent read everything again.
			c.must(os.WriteFile(c.tokenFile, []byte(apitest.AdminToken), 0o600))
			for i := range 5 {
				c.makeNode(i)
			}
			k := c.source()
			c.until(k, "five Nodes", func(s *Snapshot) bool { return len(s.Nodes) == 5 })
			old := c.version()
			// Watches that the server ends are resumed where they were.
			c.must(c.EndAPI())
			door.shut()
			s := c.until(k, "trouble", func(s *Snapshot) bool { return troubled(s) && s.Away })
			if s.Outages == 0 || !s.Replaced.IsZero() {
				t.Errorf("%d outages, replaced %s, before the server is back", s.Outages, s.Replaced)
			}
			c.must(c.Empty(t.Context()))
			c.makeNode(7)
			for longer && c.version() <= old {
				c.makePod("p", "elsewhere", nil)
				now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
				c.must(c.Admin().CoreV1().Pods("default").Delete(t.Context(), "p", now))
			}
			if !longer && c.version() > old {
				t.Fatalf("the new history has reached %d, the old one %d: make it longer", c.version(), old)
			}
			door.open()
			c.until(k, "the other cluster's Nodes", hasNodes("node-7"))
			if s = c.until(k, "no trouble", untroubled); s.Away || s.Replaced.IsZero() {
				t.Errorf("away %t, replaced %s, after another history was read", s.Away, s.Replaced)
			}
			if !strings.Contains(s.Replaced.String(), " m=") {
				t.Errorf("replaced %s: if the clock is set back, it is in the future", s.Replaced)
			}
		})
	}
}

// An etcd that was restored from a backup, and has since had more changes than before: everything that was changed
// after the backup is read again, of each kind, although the versions are not lower.
func TestKubeRestoredBackup(t *testing.T) {
	c := newCluster(t)
	door := c.door()
	c.must(os.WriteFile(c.tokenFile, []byte(apitest.AdminToken), 0o600))
	c.makeNode(1)
	c.makeNode(2)
	c.makePod("p", "me", map[string]string{api.AnnotationPools: "before"})
	restore, err := c.Backup()
	c.must(err)
	admin, ctx := c.Admin().CoreV1(), t.Context()
	past := func(version int) { // so that a new server does not report a too old version either
		for c.version() <= version {
			c.makePod("x", "elsewhere", nil)
			c.must(admin.Pods("default").Delete(ctx, "x", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		}
	}
	past(c.version() + 100)
	_, err = admin.Pods("default").Patch(ctx, "p", types.MergePatchType,
		[]byte(`{"metadata": {"annotations": {"`+api.AnnotationPools+`": "after"}}}`), metav1.PatchOptions{})
	c.must(err)
	c.must(admin.Nodes().Delete(ctx, "node-2", metav1.DeleteOptions{}))
	_, err = admin.Nodes().Patch(ctx, "node-1", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`),
		metav1.PatchOptions{})
	c.must(err)
	k := c.source()
	c.until(k, "the state after the backup", func(s *Snapshot) bool {
		return len(s.Nodes) == 1 && s.Pods["default/p"].Annotations[api.AnnotationPools] == "after"
	})
	old := c.version()
	c.must(c.EndAPI()) // watches that the server ends are resumed where they were
	door.shut()
	c.until(k, "trouble", func(s *Snapshot) bool { return troubled(s) && s.Away })
	c.must(restore(ctx))
	past(old)
	door.open()
	s := c.until(k, "the state of the backup", func(s *Snapshot) bool {
		return len(s.Nodes) == 2 && s.Pods["default/p"].Annotations[api.AnnotationPools] == "before"
	})
	if s.Replaced.IsZero() {
		t.Error("nothing says that the data was replaced")
	}
}

// restartWith starts the API server with more arguments until the test ends.
func (c *cluster) restartWith(args ...string) {
	c.t.Helper()
	restart := func(args []string) {
		c.KillAPI()
		c.Args = args
		c.must(c.StartAPI(context.WithoutCancel(c.t.Context())))
	}
	restart(args)
	c.t.Cleanup(func() { restart(nil) })
}

// version is the API server's current resource version.
func (c *cluster) version() int {
	c.t.Helper()
	l, err := c.Admin().CoreV1().Namespaces().List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	v, err := strconv.Atoi(l.ResourceVersion)
	c.must(err)
	return v
}

// An overloaded API server, or a load balancer without a backend, responds with errors: nothing is lost.
func TestKubeAnswersErrors(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	broken := c.brokenProxy()
	k := c.source()
	c.until(k, "the Node", hasNodes("me"))
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusServiceUnavailable} {
		broken(status)
		s := c.until(k, fmt.Sprintf("trouble with status %d", status), troubled)
		t.Log(s.Trouble)
		if len(s.Nodes) != 1 {
			t.Errorf("%d: the Nodes are %v, want the one that was read", status, s.Nodes)
		}
		if _, _, err := k.Pod(t.Context(), "default", "p", "u"); err == nil {
			t.Errorf("%d: a Pod that can't be asked for is answered for", status)
		}
		broken(0)
		c.until(k, "no trouble", untroubled)
	}
}

// A Pod whose ADD precedes its watch event is read from the API server.
func TestKubePodAskedFor(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	k := c.source()
	c.until(k, "the Node", hasNodes("me"))
	pod := c.makePod("late", "elsewhere", map[string]string{"ipam.antrea.io/ippools": "pool1"})
	p, ns, err := k.Pod(t.Context(), "default", "late", string(pod.UID))
	if err != nil || p.Annotations["ipam.antrea.io/ippools"] != "pool1" || ns.Name != "default" {
		t.Errorf("got %+v, %+v, %v, want the Pod with its annotation", p, ns, err)
	}
	p, ns, err = k.Pod(t.Context(), "default", "unknown", "uid")
	if err != nil || p.Name != "" || ns.Name != "default" {
		t.Errorf("a Pod that does not exist: %+v, %+v, %v, want none and no error", p, ns, err)
	}
	// A StatefulSet recreates a Pod of the same name.
	c.makePod("same", "me", nil)
	c.until(k, "the Pod and its Namespace", func(s *Snapshot) bool {
		return s.Pods["default/same"].Name != "" && s.Namespaces["default"].Name != ""
	})
	c.KillAPI()
	if _, _, err := k.Pod(t.Context(), "default", "same", "another"); err == nil {
		t.Error("a Pod of another UID than the one that was seen is answered for")
	}
	if _, _, err := k.Pod(t.Context(), "default", "same", ""); err != nil {
		t.Errorf("a Pod that was seen: %v", err)
	}
	c.must(c.StartAPI(t.Context()))
}

// Without permissions nothing is lost, and the trouble says what is missing.
func TestKubeForbidden(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	k := c.source()
	c.until(k, "the Node", hasNodes("me"))
	c.must(c.Admin().RbacV1().ClusterRoleBindings().Delete(t.Context(), "fairlead-agent", metav1.DeleteOptions{}))
	c.KillAPI() // permissions are checked when a watch starts
	c.must(c.StartAPI(t.Context()))
	s := c.until(k, "trouble", func(s *Snapshot) bool {
		return s.Trouble != nil && strings.Contains(s.Trouble.Error(), "forbidden")
	})
	t.Log(s.Trouble)
	if len(s.Nodes) != 1 {
		t.Errorf("the Nodes are %v, want the one that was read", s.Nodes)
	}
	if _, _, err := k.Pod(t.Context(), "default", "p", "u"); err == nil {
		t.Error("a Pod that may not be read is answered for")
	} else {
		t.Log(err)
	}
	c.grant()
	c.until(k, "no trouble", untroubled)
}

// A replaced token file is used; the previous token is no longer valid.
func TestKubeTokenRotation(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	k := c.source()
	c.until(k, "the Node", hasNodes("me"))
	c.must(c.Admin().CoreV1().ServiceAccounts("kube-system").Delete(t.Context(), "fairlead-agent", metav1.DeleteOptions{}))
	c.KillAPI() // so that no watch continues with the old one
	c.must(c.StartAPI(t.Context()))
	s := c.until(k, "trouble", func(s *Snapshot) bool {
		return s.Trouble != nil && strings.Contains(s.Trouble.Error(), "nauthorized")
	})
	t.Log(s.Trouble)
	c.grant()
	c.makeNode(1)
	c.until(k, "a new Node", hasNodes("me", "node-1"))
	c.until(k, "no trouble", untroubled)
}

// An agent that starts while the server is unreachable continues with the last known objects.
func TestKubeStartWhileUnreachable(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	c.makeNode(1)
	pod := c.makePod("known", "me", map[string]string{"ipam.antrea.io/pod-ips": "10.9.9.9"})
	first := c.source()
	before := c.until(first, "all objects", func(s *Snapshot) bool {
		return len(s.Nodes) == 2 && len(s.Pods) == 1 && len(s.Namespaces) >= 4
	})
	file := filepath.Join(c.dir, "last.json")
	c.until(first, "the file", func(*Snapshot) bool {
		s, _, err := lastKnown{path: file, node: "me"}.read()
		return err == nil && reflect.DeepEqual(s.Nodes, before.Nodes) && len(s.Pods) == 1 &&
			len(s.Namespaces) == len(before.Namespaces)
	})
	c.KillAPI()

	k := c.source()
	if s := k.Snapshot(); !s.Unread {
		t.Errorf("before the server could answer: %+v, want it unread", s)
	}
	s := c.until(k, "what was known", hasNodes("me", "node-1"))
	if !reflect.DeepEqual(s.Nodes, before.Nodes) || !reflect.DeepEqual(s.Pods, before.Pods) ||
		!reflect.DeepEqual(s.Namespaces, before.Namespaces) {
		t.Errorf("got %+v, want what was known: %+v", s, before)
	}
	if s.Trouble == nil || !strings.Contains(s.Trouble.Error(), "The state saved") {
		t.Errorf("the trouble is %v, want it to say that this is old", s.Trouble)
	}
	if p, _, err := k.Pod(t.Context(), "default", "known", string(pod.UID)); err != nil || len(p.Annotations) != 1 {
		t.Errorf("the Pod that was known: %+v, %v", p, err)
	}
	c.must(os.WriteFile(file, []byte(`{"Node": "me", "Nodes"`), 0o600))
	refused := make(chan struct{})
	torn := c.sourceThatLogs(false, funcr.New(func(_, args string) {
		if strings.Contains(args, "there are no saved inputs") {
			close(refused)
		}
	}, funcr.Options{}))
	select {
	case <-refused:
	case <-time.After(patience):
		t.Error("a torn file is not logged")
	}
	if s := c.until(torn, "trouble", troubled); !s.Unread {
		t.Errorf("with a torn file: %+v, want it unread and the trouble reported", s)
	}
	c.must(c.StartAPI(t.Context()))
	c.must(c.Admin().CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
	for _, k := range []*Kubernetes{first, k, torn} {
		c.until(k, "what is now", hasNodes("me"))
		c.until(k, "no trouble", untroubled)
	}
}

// Policies of kinds that CRDs define are found, too.
func TestKubeOtherPolicies(t *testing.T) {
	c := newCluster(t)
	c.must(c.ApplyManifest(t.Context(), []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusternetworkpolicies.crd.antrea.io}
spec:
  group: crd.antrea.io
  scope: Cluster
  names: {kind: ClusterNetworkPolicy, plural: clusternetworkpolicies, singular: clusternetworkpolicy}
  versions:
  - {name: v1beta1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`), ""))
	c.must(c.ApplyManifest(t.Context(),
		[]byte(`{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: deny}}`), ""))
	k := c.source()
	s := c.until(k, "the policy", func(s *Snapshot) bool { return len(s.NetworkPolicies) == 1 })
	if p := s.NetworkPolicies["ClusterNetworkPolicy.crd.antrea.io deny"]; p.UID == "" || p.Namespace != "" {
		t.Errorf("the policies are %+v, want the cluster-wide deny", s.NetworkPolicies)
	}
	c.must(c.Objects().Remove(t.Context(), apitest.Definitions, "", "clusternetworkpolicies.crd.antrea.io"))
}
