package ctl

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

func TestKubeStatus(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	c.pool("p")
	c.node("up", corev1.ConditionTrue, "10.79.0.0/24")
	c.runs("up", "v1.36.3", "containerd://1.6.20")
	c.node("down", corev1.ConditionFalse, "10.79.1.0/24")
	c.hold("10.2.0.10", c.pod("a", "up", "10.2.0.10"))
	agent, err := c.client.Kubernetes.CoreV1().Pods("kube-system").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "fairlead-agent-x", Labels: map[string]string{"app.kubernetes.io/name": "fairlead-agent"}},
		Spec: corev1.PodSpec{NodeName: "up", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	c.must(err)
	agent.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: "i", ImageID: "i", RestartCount: 3,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 78}}}}
	_, err = c.client.Kubernetes.CoreV1().Pods("kube-system").UpdateStatus(t.Context(), agent, metav1.UpdateOptions{})
	c.must(err)
	c.must(c.client.Warn(t.Context(), "up", kube.Warning{About: kube.NodeReference("up"), Reason: "PodCIDRUnusable", Message: "so it is"}))
	out, code := c.run("status")
	for _, part := range []string{"not found: there is no Lease", "not ready: CrashLoopBackOff, ended with exit code 78", "10.79.0.0/24",
		"PodCIDRUnusable: so it is", "Kubernetes  1.36.3   1      tested\n", "containerd  1.6.20   1      tested; no fixes since 2025-08-23\n",
		"not checked yet", "not examined: a node's agent"} {
		if !strings.Contains(out, part) || code != 0 {
			t.Errorf("exit code %d, and %q is not in\n%s", code, part, out)
		}
	}
	c.startController(api.NodeIPAM{})
	c.until(func() string {
		out, _ = c.run("status")
		if !strings.Contains(out, "fairlead-controller  leader ") || !strings.Contains(out, "Ready  1     10") {
			return out
		}
		return ""
	})
	t.Log("\n" + out)
	c.letIn("unknown")
	if out, code := c.run("status"); code != cli.ExitError || !strings.Contains(out, "still valid?") {
		t.Errorf("not let in: exit code %d\n%s", code, out)
	}
}

// Runs all checks; those that did not run are listed.
func TestKubeDoctorAll(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	c.node("up", corev1.ConditionTrue, "10.79.0.0/24")
	c.runs("up", "v1.36.3", "cri-o://1.34.0")
	if kinds, code := c.kinds("doctor"); code != 0 || len(kinds) > 0 {
		t.Errorf("all is well: %v, exit code %d", kinds, code)
	}
	c.runs("up", "v1.31.9", "containerd://1.5.1")
	if kinds, code := c.kinds("doctor"); code != exitWarning || strings.Join(kinds, " ") != "version-too-old version-too-old" {
		t.Errorf("versions that are too old: %v, exit code %d", kinds, code)
	}
	if out, _ := c.run("doctor", "versions"); !strings.Contains(out, "Kubernetes 1.31.9 is too old: Fairlead supports 1.32 and newer") {
		t.Errorf("doctor versions:\n%s", out)
	}
	c.runs("up", "v1.36.3", "containerd://1.6.20")
	c.pool("p")
	c.apply(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: default}, spec: {podSelector: {matchLabels: {app: none}}}}`)
	kinds, code := c.kinds("doctor")
	if got := strings.Join(kinds, " "); code != exitWarning || got != "controller-away policies-select-nothing" {
		t.Errorf("got %s, exit code %d", got, code)
	}
	out, _ := c.run("doctor")
	t.Log("\n" + out)
	for _, part := range []string{"pod-cidr  ok", "leaks     ok", "mtu       not examined: this machine is not a node of the cluster", "NetworkPolicy default/deny"} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
	c.must(c.s.Objects().Remove(t.Context(), apitest.Definitions, "", "ippools.crd.antrea.io"))
	c.until(func() string { // the API server still serves the kind for a moment after its definition is deleted
		out, code := c.run("doctor", "pools")
		if code != cli.ExitError || !strings.Contains(out, "kubectl apply -f build/manifests/fairlead.yaml -l app.kubernetes.io/component=crds") {
			return fmt.Sprintf("without the kind: exit code %d\n%s", code, out)
		}
		return ""
	})
}
