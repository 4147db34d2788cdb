package kube

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// agentPod gives node1 the environment of the agent's pod, without kube-proxy on the node: the ServiceAccount that the
// manifest creates, an API server address that does not answer, and the agent's config with another one. It returns a
// function that runs fairleadctl there.
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

// fairleadctl works in the agent's pod, as docs/install.md describes: with the rights of the agent, and with the API
// server of its config.
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
	// An API server that does not answer fails the checks that need it, but not those of the node.
	says(1, []string{"pod-cidr  check failed", "agent     ok", "ovs       ok", "mtu       ok"},
		"doctor", "--server=192.0.2.1", "--timeout=8s")
	// The agent may not run commands in other agents' Pods. Checks that time out are unknown as well, but only for a
	// while.
	wait(t, time.Minute, func() string {
		out, _ := fairleadctl("doctor")
		if _, more, found := strings.Cut(out, "unknown: reach, of other nodes"); !found || strings.Contains(more, "unknown") {
			return "there is something that the agent may not read:\n" + out
		}
		return ""
	})
}

// The commands that doctor prints for a dead Open vSwitch of the DaemonSet are kubectl's, and about this node's pod.
func TestRootRemediesForOVS(t *testing.T) {
	b := cluster(t)
	h, err := b.Host("node1")
	must(t, err)
	const dir, conf = "/run/no-ovs", "/etc/fairlead/no-ovs.conf"
	must(t, os.MkdirAll(h.Private(dir), 0o755))
	must(t, os.WriteFile(h.Private(dir+"/conf.db"), nil, 0o600))
	must(t, os.WriteFile(h.Private(conf), []byte("ovsRunDir: "+dir+"\n"), 0o600))
	t.Cleanup(func() { must(t, errors.Join(os.RemoveAll(h.Private(dir)), os.Remove(h.Private(conf)))) })
	out, err := b.NodeExec(labtest.Within(t, 40*time.Second), "node1", "sh", "-c",
		`export NODE_NAME=node1; fairleadctl --config="$1" doctor --node-local -o json || [ $? = 4 ]`, "sh", conf)
	must(t, err)
	var r struct {
		Findings []struct {
			Kind     string
			Remedies []report.Remedy
		}
	}
	must(t, json.Unmarshal([]byte(out), &r))
	var commands []string
	for _, f := range r.Findings {
		if f.Kind == "ovsdb-down" {
			commands = f.Remedies[0].Commands
		}
	}
	if len(commands) != 2 {
		t.Fatalf("no two commands for a dead ovsdb-server:\n%s", out)
	}
	for _, node := range []string{"node1", "node2"} {
		_, err := b.client.CoreV1().Pods("kube-system").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "ovs-" + node, Labels: map[string]string{"app.kubernetes.io/name": "fairlead-ovs"}},
			Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	t.Cleanup(func() {
		must(t, b.client.CoreV1().Pods("kube-system").DeleteCollection(context.Background(), metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=fairlead-ovs"}))
	})
	kubectl := func(command string) (string, error) {
		return b.NodeExec(labtest.Within(t, 40*time.Second), "control-plane", "env", "KUBECONFIG="+b.plane.AdminKubeconfig(),
			"KUBECACHEDIR=/run/lab/kubectl", "sh", "-c", `kubectl() { "$0" kubectl "$@"; }; eval "$1" 2>&1`, b.plane.Program, command)
	}
	if out, _ := kubectl(commands[0]); !strings.Contains(out, ":10250/") { // there is no kubelet
		t.Errorf("%s: the API server asks no kubelet for the log: %s", commands[0], out)
	}
	if out, err := kubectl(commands[1]); err != nil || !strings.Contains(out, `"ovs-node1" deleted`) || strings.Contains(out, "node2") {
		t.Errorf("%s: %v: %s", commands[1], err, out)
	}
}
