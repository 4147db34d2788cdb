package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

const goodKubeconfig = `{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}], users: [{name: u, user: {token: t}}],
  contexts: [{name: c, context: {cluster: c, user: u}}]}`

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each reason for having no connection to the API server has a message with a remedy.
func TestNewErrors(t *testing.T) {
	good := writeFile(t, goodKubeconfig)
	for _, c := range []struct {
		name, kubeconfig, override string
		inPod                      bool
		want                       string
	}{
		{"nothing set", "", "", false, "Set it to a kubeconfig file; an agent may set manifestsDir"},
		{"a pod without a ServiceAccount", "", "", true, "the ServiceAccount of this pod"},
		{"absent", "/nonexistent/kubeconfig", "", false, "clientConnection.kubeconfig: stat /nonexistent/kubeconfig"},
		{"not YAML", writeFile(t, "a: ["), "", false, "clientConnection.kubeconfig "},
		{"empty", writeFile(t, ""), "", false, "clientConnection.kubeconfig "},
		{"a CA that is absent", writeFile(t, strings.Replace(goodKubeconfig, `6443"`,
			`6443", certificate-authority: /nonexistent/ca`, 1)), "", false, "/nonexistent/ca"},
		{"an override that is no address", good, "https://a b", false, "want a host, host:port or URL"},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", "")
		t.Setenv("KUBERNETES_SERVICE_PORT", "")
		if c.inPod {
			t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
			t.Setenv("KUBERNETES_SERVICE_PORT", "443")
		}
		_, err := New(api.AgentConfig{KubeAPIServerOverride: c.override,
			ClientConnection: api.ClientConnection{Kubeconfig: c.kubeconfig}}, "test")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
}

// Every form that Antrea accepts as kubeAPIServerOverride leads to the same server.
func TestOverride(t *testing.T) {
	kubeconfig := writeFile(t, goodKubeconfig)
	for override, want := range map[string]string{
		"":                             "https://192.0.2.1:6443",
		"192.0.2.2":                    "https://192.0.2.2",
		"api.example.com:6443":         "https://api.example.com:6443",
		"https://192.0.2.2:6443":       "https://192.0.2.2:6443",
		"https://api.example.com/base": "https://api.example.com/base",
		"[2001:db8::1]:6443":           "https://[2001:db8::1]:6443",
		"2001:db8::1":                  "https://[2001:db8::1]",
	} {
		c, err := New(api.AgentConfig{KubeAPIServerOverride: override,
			ClientConnection: api.ClientConnection{Kubeconfig: kubeconfig}}, "test")
		if err != nil || c.Server != want {
			t.Errorf("%q: got %v, %v, want the server %s", override, c, err, want)
		}
	}
}

func TestClientConnection(t *testing.T) {
	c := api.ClientConnection{Kubeconfig: writeFile(t, goodKubeconfig)}
	got, err := restConfig("", c, "fairlead-agent/1.2")
	if err != nil {
		t.Fatal(err)
	}
	if got.QPS != 50 || got.Burst != 100 || got.ContentType != "application/vnd.kubernetes.protobuf" ||
		got.UserAgent != "fairlead-agent/1.2" {
		t.Errorf("unset: %+v", got)
	}
	c.QPS, c.Burst, c.ContentType, c.AcceptContentTypes = 7, 8, "application/json", "application/json"
	if got, err = restConfig("", c, "fairlead-agent/1.2"); err != nil {
		t.Fatal(err)
	}
	if got.QPS != 7 || got.Burst != 8 || got.ContentType != "application/json" || got.AcceptContentTypes != "application/json" {
		t.Errorf("set: %+v", got)
	}
}
