package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// The verdict is in the exit code, on a real API server: healthy, a warning, a
// node that does not serve pods, and a server that does not let in.
func TestKubeDoctorExitCodes(t *testing.T) {
	s := shared.Get(t)
	dir := t.TempDir()
	kubeconfig, token := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
	letIn := func(as string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(as), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := apitest.Kubeconfig(kubeconfig, s.URL, s.CA(), token); err != nil {
			t.Fatal(err)
		}
	}
	letIn(apitest.AdminToken)
	for _, step := range []struct {
		node, podCIDR string
		code          int
		kinds         string
	}{
		{"a", "10.244.0.0/24", 0, ""},
		{"v6", "fd00::/64", exitWarning, "wrong-family"}, // the API server has IPv4 Services
		{"b", "10.244.0.0/24", exitFailing, "duplicate wrong-family"},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: step.node},
			Spec: corev1.NodeSpec{PodCIDR: step.podCIDR, PodCIDRs: []string{step.podCIDR}}}
		if _, err := s.Admin().CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		text, code := run(t, "doctor", "pod-cidr", "--kubeconfig", kubeconfig)
		if code != step.code || !strings.Contains(text, step.podCIDR) {
			t.Errorf("with node %s: exit code %d, want %d\n%s", step.node, code, step.code, text)
		}
		out, code := run(t, "doctor", "pod-cidr", "--kubeconfig", kubeconfig, "-o", "json")
		var report struct{ Problems []struct{ Kind string } }
		if err := json.Unmarshal([]byte(out), &report); err != nil || code != step.code {
			t.Fatalf("-o json: %v, exit code %d\n%s", err, code, out)
		}
		var kinds []string
		for _, p := range report.Problems {
			kinds = append(kinds, p.Kind)
		}
		if got := strings.Join(kinds, " "); got != step.kinds {
			t.Errorf("with node %s: problems %q, want %q", step.node, got, step.kinds)
		}
	}
	letIn("nobody")
	if out, code := run(t, "doctor", "pod-cidr", "--kubeconfig", kubeconfig); code != exitError || !strings.Contains(out, "listing Nodes") {
		t.Errorf("not let in: exit code %d\n%s", code, out)
	}
}
