package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/uml/kernel"
)

// buildAll builds lab, agent and plugin for one test, and the guest's kernel, which takes minutes unless it is cached.
// It returns the path of lab. The test needs no root.
func buildAll(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", ".", "../../cmd/fairlead-agent", "../../cmd/fairlead")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building lab, agent and plugin: %v\n%s", err, out)
	}
	if _, err := kernel.Get(t.Context(), os.Stderr); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "lab")
}

func script(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// inUML runs lab --uml with args and returns stdout and the exit code.
func inUML(t *testing.T, bin string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append([]string{"--uml"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("lab %s, stderr:\n%s", strings.Join(args, " "), stderr.String())
		}
	})
	return string(out), cmd.ProcessState.ExitCode()
}

func TestRootScriptsInUML(t *testing.T) {
	bin, dir := buildAll(t), t.TempDir()
	const text = "echo $1 on $(uname -r); command -v lab; lab --uml -- true; exit 5\n"
	for name, path := range map[string]string{
		"no interpreter": script(t, text, 0o755),
		"not executable": script(t, text, 0o644),
		"an interpreter": script(t, "#!/bin/bash\n"+text, 0o755),
		"shebang, 0644":  script(t, "#!/bin/sh\n"+text, 0o644),
	} {
		out, code := inUML(t, bin, "--", path, "word")
		if !strings.HasPrefix(out, "word on ") || !strings.Contains(out, "-fairlead\n") || !strings.Contains(out, bin+"\n") || code != 5 {
			t.Errorf("%s: exit code %d, output %q", name, code, out)
		}
	}
	if out, code := inUML(t, bin, "--write", dir, "--", "sh", "-c", "echo kept >"+dir+"/file"); code != 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "file")); string(data) != "kept\n" {
		t.Errorf("the file that was to be kept: %q, %v", data, err)
	}
	if _, code := inUML(t, bin, "--uml-timeout", "1s", "--", "sleep", "60"); code != 1 {
		t.Errorf("a time-out: exit code %d, want 1", code)
	}
}

// A complete cluster in the guest: etcd, a real API server, two nodes whose agents use it, and a ping between pods on
// different nodes through the kernel's datapath.
func TestRootKubernetesInUML(t *testing.T) {
	bin := buildAll(t)
	program, err := kubebin.Get(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := filepath.Abs("../demo/pods.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Log("Kubernetes:", program)
	out, code := inUML(t, bin, "--mem", "3072", "--", script(t, `set -e
lab up --cluster kube --timeout 5m
lab apply --wait 2m -f `+pods+`
lab kubectl get nodes -o name
lab pod default/a -- ping -c3 -i0.2 -w30 $(lab kubectl get pod c -o 'jsonpath={.status.podIP}')
lab node node1 -- ovs-dpctl show
`, 0o755))
	for _, want := range []string{"node/node2", "system@ovs-system", "genev_sys_6081", " 0% packet loss"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, want 0 and %q in\n%s", code, want, out)
		}
	}
}
