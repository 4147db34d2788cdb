package kube

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// agentPod makes of node1 what a pod of the agent sees, without kube-proxy on the node: the ServiceAccount that the
// manifest creates, an address of the API server that does not answer, and the agent's config with another one. It
// returns a function that runs fairleadctl there.
func (b *bed) agentPod(t *testing.T) (fairleadctl func(args ...string) (string, int)) {
	t.Helper()
	h, err := b.Host("node1")
	must(t, err)
	const account, conf = "/run/secrets/kubernetes.io/serviceaccount", "/etc/fairlead/pod.conf"
	must(t, os.MkdirAll(h.Private(account), 0o755))
	token, err := os.ReadFile(h.Private("/etc/fairlead/token"))
	must(t, err)
	ca, err := b.plane.CA()
	must(t, err)
	text, err := os.ReadFile(h.Private("/etc/fairlead/agent.conf"))
	must(t, err)
	config := map[string]any{}
	must(t, yaml.Unmarshal(text, &config))
	delete(config, "clientConnection")
	config["kubeAPIServerOverride"] = b.plane.URL()
	text, err = yaml.Marshal(config)
	must(t, err)
	files := map[string][]byte{filepath.Join(account, "token"): token, filepath.Join(account, "ca.crt"): ca, conf: text}
	for path, data := range files {
		must(t, os.WriteFile(h.Private(path), data, 0o600))
	}
	t.Cleanup(func() {
		must(t, errors.Join(os.RemoveAll(h.Private("/run/secrets")), os.Remove(h.Private(conf))))
	})
	return func(args ...string) (string, int) {
		args = append([]string{"env", "-u", "KUBECONFIG", "HOME=/nonexistent", "KUBERNETES_SERVICE_HOST=192.0.2.1",
			"KUBERNETES_SERVICE_PORT=443", "fairleadctl", "--config=" + conf}, args...)
		out, err := b.NodeExec(labtest.Within(t, 40*time.Second), "node1", args...)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return out, exit.ExitCode()
		}
		must(t, err)
		return out, 0
	}
}

// fairleadctl works in the agent's pod, as docs/install.md tells to run it: with the rights of the agent, and with the
// API server of its config.
func TestRootFairleadctlInAgentPod(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "c@node2")
	fairleadctl := b.agentPod(t)
	says := func(code int, words []string, args ...string) {
		t.Helper()
		wait(t, 60*time.Second, func() string {
			out, got := fairleadctl(args...)
			for _, w := range words {
				if got != code || !strings.Contains(out, w) {
					return strings.Join(args, " ") + ": want " + w + ":\n" + out
				}
			}
			return ""
		})
	}
	says(0, []string{"pod-cidr  ok", "pools     ok", "leaks     ok", "policies  ok", "agent     ok", "uplink    ok",
		"mtu       ok", "No problems were found."}, "doctor")
	says(0, []string{"output to the tunnel", "next: it goes to node node2"}, "trace", "a", "default/c")
	says(0, []string{"this node is node1", "node2"}, "status")
	// An API server that does not answer is no reason to call the node dead.
	says(1, []string{"pod-cidr  check failed", "agent     ok", "ovs       ok", "mtu       ok"},
		"doctor", "--server=192.0.2.1", "--timeout=8s")
	if out, _ := fairleadctl("doctor"); strings.Contains(out, "unknown") {
		t.Errorf("there is something that the agent may not read:\n%s", out)
	}
}
