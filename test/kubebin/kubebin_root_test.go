package kubebin

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The program is there, is the parts that it is asked to be, and says the version that go.mod requires. It needs no
// root, but the first build takes minutes, which is not for the tests without root.
func TestRootPartsSayTheirVersion(t *testing.T) {
	program, err := Get(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	module, err := Find(source)
	if err != nil {
		t.Fatal(err)
	}
	_, version, err := read(module)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"} {
		out, err := exec.CommandContext(t.Context(), program, part, "--version").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "Kubernetes "+version {
			t.Errorf("%s --version: %v, %s, want Kubernetes %s", part, err, out, version)
		}
	}
	out, err := exec.CommandContext(t.Context(), program, "kubectl", "version", "--client").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Client Version: "+version) {
		t.Errorf("kubectl version: %v, %s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), program, "etcd", "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "etcd Version: 3.") {
		t.Errorf("etcd --version: %v, %s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), program, "kube-nothing").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "usage: kubeparts PART") {
		t.Errorf("an unknown part: %v, %s", err, out)
	}
}
