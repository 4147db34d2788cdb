package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// shared is the API server of this package's tests: see TestMain.
var shared apitest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// agentClient is a client with the shipped RBAC rules, and its kubeconfig, which has the token in it.
func agentClient(t *testing.T) (*apitest.Server, *Client, string) {
	t.Helper()
	s := shared.Get(t)
	if err := s.Apply(t.Context(), "../build/manifests/fairlead.yaml",
		"app.kubernetes.io/component=rbac,app.kubernetes.io/name=fairlead-agent"); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeToken(t, s, kubeconfig)
	c, err := New(api.AgentConfig{ClientConnection: api.ClientConnection{Kubeconfig: kubeconfig}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); !mayList(t, c); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("the agent's account may not list Nodes")
		}
	}
	return s, c, kubeconfig
}

// mayList reports whether the API server lets the client list Nodes: its watch of roles lags a moment behind.
func mayList(t *testing.T, c *Client) bool {
	t.Helper()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}}}
	r, err := c.Kubernetes.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Allowed
}

func writeToken(t *testing.T, s *apitest.Server, kubeconfig string) {
	t.Helper()
	token, err := s.AgentToken(t.Context())
	if err == nil {
		err = os.WriteFile(kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}], users: [{name: u, user: {token: %q}}],
  contexts: [{name: c, context: {cluster: c, user: u}}]}`, s.URL, s.CA(), token), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func eventsAbout(t *testing.T, s *apitest.Server, object string) []corev1.Event {
	t.Helper()
	l, err := s.Admin().CoreV1().Events("").List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + object})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// The agent's account cannot change Nodes or Pods, evict Pods, or read Secrets.
func TestKubeAgentChangesNoNodeNorPod(t *testing.T) {
	s, _, _ := agentClient(t)
	may := func(a authorizationv1.ResourceAttributes) bool {
		t.Helper()
		r, err := s.Admin().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:kube-system:fairlead-agent",
				ResourceAttributes: &a}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.Allowed
	}
	if !may(authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}) {
		t.Fatal("the account may not list Nodes: the test is meaningless")
	}
	for _, resource := range []string{"nodes", "nodes/status", "nodes/proxy", "pods", "pods/status", "pods/eviction", "pods/exec", "secrets"} {
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection", "*"} {
			name, sub, _ := strings.Cut(resource, "/")
			if may(authorizationv1.ResourceAttributes{Verb: verb, Resource: name, Subresource: sub, Namespace: "kube-system"}) {
				t.Errorf("the agent may %s %s", verb, resource)
			}
		}
	}
	if may(authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: "kube-system"}) {
		t.Error("the agent may read Secrets")
	}
}

// A Warning is a single Event, however often and by however many agents it is written.
func TestKubeWarn(t *testing.T) {
	s, c, _ := agentClient(t)
	w := Warning{About: NodeReference("worker-7"), Reason: "NoPodCIDR", Message: "node worker-7 has no podCIDR"}
	warn := func(node string, w Warning) []corev1.Event {
		t.Helper()
		if err := c.Warn(t.Context(), node, w); err != nil {
			t.Fatal(err)
		}
		return eventsAbout(t, s, "worker-7")
	}
	first := warn("worker-7", w)
	if len(first) != 1 || first[0].Type != "Warning" || first[0].Reason != w.Reason || first[0].Message != w.Message ||
		first[0].Namespace != "default" || first[0].Source.Component != Component || first[0].Source.Host != "worker-7" {
		t.Fatalf("the Events are %+v", first)
	}
	time.Sleep(time.Until(first[0].LastTimestamp.Add(1100 * time.Millisecond))) // timestamps are in whole seconds
	again := warn("worker-7", w)
	if len(again) != 1 || !again[0].LastTimestamp.After(first[0].LastTimestamp.Time) {
		t.Errorf("the second time: %+v, want the same Event at a later time", again)
	}
	w.Once = true
	if once := warn("worker-8", w); len(once) != 1 || once[0].ResourceVersion != again[0].ResourceVersion {
		t.Errorf("by another agent, once: %+v, want it untouched", once)
	}
	w.Once, w.Message = false, strings.Repeat("ä", 2000)
	if other := warn("worker-7", w); len(other) != 1 || !strings.HasPrefix(other[0].Message, "ää") {
		t.Errorf("another message: %+v, want it in the same Event", other)
	}
	w.Reason = "Another"
	if other := warn("worker-7", w); len(other) != 2 {
		t.Errorf("another reason: %d Events, want another one", len(other))
	}
	var none *Client
	if err := none.Warn(t.Context(), "n", w); err != nil {
		t.Errorf("without a client: %v, want nothing done", err)
	}
}

// A token in the kubeconfig itself can be replaced while the agent runs.
func TestKubeTokenInKubeconfig(t *testing.T) {
	s, c, kubeconfig := agentClient(t)
	list := func() error {
		_, err := c.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(); err != nil {
		t.Fatal(err)
	}
	accounts := s.Admin().CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	if err := accounts.Delete(t.Context(), Component, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for list() == nil { // the server caches a valid token for some seconds
		if time.Now().After(deadline) {
			t.Fatal("the token of an account that is gone is still taken")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := s.Apply(t.Context(), "../build/manifests/fairlead.yaml",
		"app.kubernetes.io/component=rbac,app.kubernetes.io/name=fairlead-agent"); err != nil {
		t.Fatal(err)
	}
	writeToken(t, s, kubeconfig)
	for err := list(); err != nil; err = list() {
		if time.Now().After(deadline) {
			t.Fatalf("with a new token in the kubeconfig: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
