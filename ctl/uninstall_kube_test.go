package ctl

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/internal/cli"
)

// There are no kubelets: the test takes the part of two nodes, and creates and ends their pods. That nodes are restored
// is tested in test/e2e.
func TestKubeUninstall(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	sets, pods := c.client.Kubernetes.AppsV1().DaemonSets("kube-system"), c.client.Kubernetes.CoreV1().Pods("kube-system")
	if out, code := c.run("uninstall", "--yes"); code != cli.ExitError || !strings.Contains(out, "there is no DaemonSet kube-system/fairlead-agent") {
		t.Errorf("nothing is installed: exit code %d\n%s", code, out)
	}
	c.must(c.s.Kubectl(t.Context(), "apply", "-f", "../build/manifests/fairlead.yaml", "-l", "app.kubernetes.io/component in (rbac, agent)"))
	if out, code := c.run("uninstall"); code != cli.ExitUsage || !strings.Contains(out, "no terminal to ask for confirmation") {
		t.Errorf("it does not ask: exit code %d\n%s", code, out)
	}
	out, code := c.run("uninstall", "--yes", "--helm-release", "fairlead")
	if code != cli.ExitError || !strings.Contains(out, "does not belong to the Helm release fairlead: nothing was changed") {
		t.Errorf("a manifest was applied with the hooks: exit code %d\n%s", code, out)
	}
	c.node("n1", corev1.ConditionTrue)
	c.node("n2", corev1.ConditionTrue)
	pod := func(name, node, app string, s corev1.PodStatus) {
		t.Helper()
		p, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": app}}, Spec: corev1.PodSpec{NodeName: node,
			InitContainers: []corev1.Container{{Name: "uninstall", Image: "i"}},
			Containers:     []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
		c.must(err)
		p.Status = s
		_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		c.must(err)
	}
	end := func(name string) {
		t.Helper()
		c.must(pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
	ended := func(code int32, text string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "uninstall",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: text}}}}}
	}
	pod("agent-1", "n1", "fairlead-agent", corev1.PodStatus{Phase: corev1.PodRunning})

	// An agent does not end: nothing else is started.
	out, code = c.run("uninstall", "--yes", "--wait", "3s")
	if code != cli.ExitError || !strings.Contains(out, "to terminate (agent-1)") || !strings.Contains(out, "Run the command again") {
		t.Errorf("an agent is there: exit code %d\n%s", code, out)
	}
	waits, err := sets.Get(t.Context(), "fairlead-uninstall", metav1.GetOptions{})
	c.must(err)
	if waits.Spec.Template.Spec.NodeSelector["fairlead.dev/when-agents-are-gone"] == "" {
		t.Error("nodes are restored while agents run")
	}
	if _, err := sets.Get(t.Context(), "fairlead-agent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the agents' DaemonSet is there: %v", err)
	}
	end("agent-1")

	// One node is done, one is not: it is named, with its pod's message.
	status := func(n int32) {
		t.Helper()
		set, err := sets.Get(t.Context(), "fairlead-uninstall", metav1.GetOptions{})
		c.must(err)
		set.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: n, ObservedGeneration: 1000}
		_, err = sets.UpdateStatus(t.Context(), set, metav1.UpdateOptions{})
		c.must(err)
	}
	status(2)
	pod("u-1", "n1", "fairlead-uninstall", ended(0, ""))
	pod("u-2", "n2", "fairlead-uninstall", ended(1, "br-uplink is still there"))
	out, code = c.run("uninstall", "--yes", "--wait", "4s")
	t.Log("\n" + out)
	if code != cli.ExitError || !strings.Contains(out, "n1: restored") || !strings.Contains(out, "1 of 2 nodes are not restored (n2: br-uplink is still there)") {
		t.Errorf("a node is not done: exit code %d\n%s", code, out)
	}
	going, err := sets.Get(t.Context(), "fairlead-uninstall", metav1.GetOptions{})
	c.must(err)
	spec := going.Spec.Template.Spec
	if spec.NodeSelector["fairlead.dev/when-agents-are-gone"] != "" || spec.InitContainers[0].Command[1] != "uninstall" ||
		!*spec.InitContainers[0].SecurityContext.Privileged || !spec.HostNetwork || len(spec.Tolerations) == 0 {
		t.Errorf("the DaemonSet is %+v", spec)
	}

	// All are done: the DaemonSet is deleted.
	end("u-2")
	pod("u-3", "n2", "fairlead-uninstall", ended(0, ""))
	go func() {
		for range 100 {
			if _, err := sets.Get(t.Context(), "fairlead-uninstall", metav1.GetOptions{}); apierrors.IsNotFound(err) {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		for _, name := range []string{"u-1", "u-3"} {
			if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				t.Error(err)
			}
		}
	}()
	out, code = c.run("uninstall", "--yes", "--wait", "60s")
	t.Log("\n" + out)
	if code != 0 || !strings.Contains(out, "2 nodes are restored") {
		t.Errorf("all nodes are done: exit code %d\n%s", code, out)
	}
}
