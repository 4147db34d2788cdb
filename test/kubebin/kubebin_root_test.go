package kubebin

import (
	"cmp"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The program exists, runs each component by its name, and reports the version that go.mod requires. It needs no root,
// but the first build takes minutes, which is too long for the tests without root.
func TestRootPartsSayTheirVersion(t *testing.T) {
	program, err := Get(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	module, err := Find(source)
	if err != nil {
		t.Fatal(err)
	}
	_, version, err := read(module, cmp.Or(kubernetes("", nil).goMod, "go.mod"), []string{"."})
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

// The suite has the tests of the network and their framework, of the same version, and CoreDNS has the plugins in a
// cluster's configuration. "make conformance" runs it: only that needs these programs.
func TestE2ESuiteAndDNS(t *testing.T) {
	suite, err := GetSuite(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), suite.Tests, "-list-tests").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	count := func(want ...string) (n int) {
		for line := range strings.Lines(string(out)) {
			if !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(line, w) }) {
				n++
			}
		}
		return n
	}
	if n := count("[sig-network]", "[Conformance]"); n != 47 {
		t.Errorf("%d tests of the network's conformance, want 47", n)
	}
	if n := count("[Feature:IPv6DualStack]"); n != 23 {
		t.Errorf("%d tests of dual stack, want 23", n)
	}
	out, err = exec.CommandContext(t.Context(), suite.Agnhost, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "netexec") {
		t.Errorf("agnhost: %v, %s", err, out)
	}
	coredns, err := GetCoreDNS(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	out, err = exec.CommandContext(t.Context(), coredns, "-plugins").CombinedOutput()
	for _, plugin := range []string{"cache", "errors", "health", "kubernetes", "loadbalance", "ready"} {
		if !strings.Contains(string(out), plugin+"\n") {
			t.Errorf("CoreDNS has no %s: %v, %s", plugin, err, out)
		}
	}
}
