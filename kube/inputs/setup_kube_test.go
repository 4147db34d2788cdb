package inputs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// shared is the API server of this package's tests: see TestMain.
var shared apitest.Shared

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(memoryEnv); kubeconfig != "" {
		if err := followOnly(kubeconfig); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// cluster is the API server of one test, with only fairlead-agent's RBAC rules in it, and the agent's kubeconfig.
type cluster struct {
	*apitest.Server
	t          *testing.T
	dir        string
	kubeconfig string
	tokenFile  string
}

// patience bounds each wait; a busy machine is slow.
const patience = time.Minute

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{Server: shared.Get(t), t: t, dir: dir,
		kubeconfig: filepath.Join(dir, "kubeconfig"), tokenFile: filepath.Join(dir, "token")}
	c.clear()
	c.grant()
	c.must(apitest.Kubeconfig(c.kubeconfig, c.URL, c.CA(), c.tokenFile))
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// grant applies the shipped RBAC rules, and writes a token.
func (c *cluster) grant() {
	c.t.Helper()
	c.must(c.Apply(c.t.Context(), "../../build/manifests/fairlead.yaml",
		"app.kubernetes.io/component=rbac,app.kubernetes.io/name=fairlead-agent"))
	token, err := c.AgentToken(c.t.Context())
	c.must(err)
	c.must(os.WriteFile(c.tokenFile, []byte(token), 0o600))
}

func (c *cluster) clear() {
	c.t.Helper()
	ctx, all := c.t.Context(), metav1.ListOptions{}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	c.must(c.Admin().CoreV1().Nodes().DeleteCollection(ctx, now, all))
	c.must(c.Admin().CoreV1().Pods("default").DeleteCollection(ctx, now, all))
	c.must(c.Admin().NetworkingV1().NetworkPolicies("default").DeleteCollection(ctx, now, all))
}

// source starts a Source on node "me".
func (c *cluster) source(also ...func(*Kubernetes)) *Kubernetes {
	c.t.Helper()
	return c.sourceThatLogs(false, testr.New(c.t), also...)
}

func (c *cluster) sourceOf(bridging bool) *Kubernetes {
	c.t.Helper()
	return c.sourceThatLogs(bridging, testr.New(c.t))
}

// short are intervals for fast tests.
func short() api.InputIntervals {
	return api.InputIntervals{RetryFirst: 50 * time.Millisecond, RetryMost: 400 * time.Millisecond,
		StartGrace: 500 * time.Millisecond, Save: 50 * time.Millisecond, SavePeers: 200 * time.Millisecond,
		Reread:             time.Second,
		OtherPoliciesFirst: 100 * time.Millisecond, OtherPolicies: time.Second}
}

func (c *cluster) sourceThatLogs(bridging bool, log logr.Logger, also ...func(*Kubernetes)) *Kubernetes {
	c.t.Helper()
	client, err := kube.New(api.AgentConfig{ClientConnection: api.ClientConnection{Kubeconfig: c.kubeconfig}}, "test")
	c.must(err)
	k := NewKubernetes(client, "me", filepath.Join(c.dir, "last.json"), bridging, log)
	k.Intervals = short()
	k.FollowServices()
	for _, follow := range also {
		follow(k)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			c.must(err)
		case <-time.After(patience):
			c.t.Error("Run did not end with its context")
		}
	})
	return k
}

// until waits until the snapshot satisfies ok, and returns it.
func (c *cluster) until(k *Kubernetes, what string, ok func(*Snapshot) bool) *Snapshot {
	c.t.Helper()
	start := time.Now()
	for {
		s := k.Snapshot()
		if ok(s) {
			c.t.Logf("%s: after %s", what, time.Since(start).Round(time.Millisecond))
			return s
		}
		if time.Since(start) > patience {
			c.t.Fatalf("%s: not within %s. The snapshot is %+v", what, patience, s)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *cluster) makeNode(i int, change ...func(*corev1.Node)) {
	c.t.Helper()
	cidr := fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
		Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.%d.%d", i/256, i%256)}}}}
	for _, f := range change {
		f(n)
	}
	_, err := c.Admin().CoreV1().Nodes().Create(c.t.Context(), n, metav1.CreateOptions{})
	c.must(err)
}

func nodeName(i int) string {
	if i == 0 {
		return "me"
	}
	return fmt.Sprintf("node-%d", i)
}

func (c *cluster) makePod(name, node string, annotations map[string]string) *corev1.Pod {
	c.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	p, err := c.Admin().CoreV1().Pods("default").Create(c.t.Context(), p, metav1.CreateOptions{})
	c.must(err)
	return p
}

func hasNodes(want ...string) func(*Snapshot) bool {
	set := map[string]bool{}
	for _, n := range want {
		set[n] = true
	}
	return func(s *Snapshot) bool {
		have := map[string]bool{}
		for n := range s.Nodes {
			have[n] = true
		}
		return !s.Unread && reflect.DeepEqual(have, set)
	}
}

func troubled(s *Snapshot) bool   { return s.Trouble != nil }
func untroubled(s *Snapshot) bool { return s.Trouble == nil }
