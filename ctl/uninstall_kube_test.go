package ctl

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/migrate/takedown"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// uninstalling is a cluster without kubelets: the test acts as the nodes, and creates and ends their pods. test/e2e
// tests that nodes are restored.
type uninstalling struct {
	*fixture
	sets typedappsv1.DaemonSetInterface
	pods typedcorev1.PodInterface
}

// newUninstalling has two nodes, n1 and n2.
func newUninstalling(t *testing.T) *uninstalling {
	c := newFixture(t)
	u := &uninstalling{c, c.client.Kubernetes.AppsV1().DaemonSets("kube-system"), c.client.Kubernetes.CoreV1().Pods("kube-system")}
	t.Cleanup(c.removeFinalizers)
	t.Cleanup(func() { u.deleteSets(context.Background()) })
	u.deleteSets(t.Context())
	c.node("n1", corev1.ConditionTrue)
	c.node("n2", corev1.ConditionTrue)
	return u
}

func (u *uninstalling) deleteSets(ctx context.Context) {
	u.must(u.sets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// install creates the agents' DaemonSet, without pods.
func (u *uninstalling) install() {
	u.t.Helper()
	u.must(u.s.Apply(u.t.Context(), "../build/manifests/fairlead.yaml", "app.kubernetes.io/component in (rbac, agent)"))
}

func (u *uninstalling) pod(name, node, app string, s corev1.PodStatus) {
	u.t.Helper()
	p, err := u.pods.Create(u.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"app.kubernetes.io/name": app}}, Spec: corev1.PodSpec{NodeName: node,
		InitContainers: []corev1.Container{{Name: "uninstall", Image: "i"}},
		Containers:     []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	u.must(err)
	p.Status = s
	_, err = u.pods.UpdateStatus(u.t.Context(), p, metav1.UpdateOptions{})
	u.must(err)
}

func (u *uninstalling) end(name string) {
	u.t.Helper()
	u.must(u.pods.Delete(u.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// status is what the DaemonSet's controller would report.
func (u *uninstalling) status(n int32) {
	u.t.Helper()
	set := u.work()
	set.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: n, ObservedGeneration: 1000}
	_, err := u.sets.UpdateStatus(u.t.Context(), set, metav1.UpdateOptions{})
	u.must(err)
}

func (u *uninstalling) work() *appsv1.DaemonSet {
	u.t.Helper()
	set, err := u.sets.Get(u.t.Context(), "fairlead-uninstall", metav1.GetOptions{})
	u.must(err)
	return set
}

// has reports whether a DaemonSet exists.
func (u *uninstalling) has(name string) bool {
	u.t.Helper()
	_, err := u.sets.Get(u.t.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		u.must(err)
	}
	return err == nil
}

// started is the error of an uninstallation that has created the DaemonSet that restores nodes, while it has no pods
// yet.
const started = "0 of 0 nodes are not restored"

// stops runs the command, with limit as its timeout, until it ends with the error why. A stalled machine may get less
// far within the limit; the command may be run again at any time.
func (u *uninstalling) stops(limit, why string) (out string) {
	u.t.Helper()
	u.until(func() string {
		var code int
		if out, code = u.run("uninstall", "--yes", "--wait", limit); code != cli.ExitError {
			u.t.Fatalf("exit code %d:\n%s", code, out)
		}
		if !strings.Contains(out, why) {
			return why + " is not in\n" + out
		}
		return ""
	})
	u.t.Log("\n" + out)
	return out
}

// held reports whether the DaemonSet that does the work has no pods yet.
func held(set *appsv1.DaemonSet) bool {
	return set.Spec.Template.Spec.NodeSelector["fairlead.dev/when-agents-are-gone"] != ""
}

// ended is the status of a pod whose uninstallation has ended.
func ended(code int32, text string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "uninstall",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: text}}}}}
}

func TestKubeUninstall(t *testing.T) {
	u := newUninstalling(t)
	if out, code := u.run("uninstall", "--yes"); code != cli.ExitError || !strings.Contains(out, "there is no DaemonSet kube-system/fairlead-agent") {
		t.Errorf("nothing is installed: exit code %d\n%s", code, out)
	}
	u.install()
	if out, code := u.run("uninstall"); code != cli.ExitUsage || !strings.Contains(out, "no terminal to ask for confirmation") {
		t.Errorf("it does not ask: exit code %d\n%s", code, out)
	}
	out, code := u.run("uninstall", "--yes", "--helm-release", "fairlead")
	if code != cli.ExitError || strings.Contains(out, "Run the command again") ||
		!strings.Contains(out, "does not belong to the Helm release fairlead: nothing was changed") {
		t.Errorf("a manifest was applied with the hooks: exit code %d\n%s", code, out)
	}
	u.pod("agent-1", "n1", "fairlead-agent", corev1.PodStatus{Phase: corev1.PodRunning})

	// An agent does not terminate: nothing else is started.
	if out = u.stops("3s", "to terminate (agent-1)"); !strings.Contains(out, "Run the command again") {
		t.Errorf("an agent is there:\n%s", out)
	}
	if !held(u.work()) {
		t.Error("nodes are restored while agents run")
	}
	for _, v := range u.work().Spec.Template.Spec.Volumes {
		if v.Projected != nil || v.ConfigMap != nil {
			t.Errorf("it has %s, which only the agent needs", v.Name)
		}
	}
	if u.has("fairlead-agent") {
		t.Error("the agents' DaemonSet is there")
	}
	u.end("agent-1")

	// One node is done, one is not: that one is named, with its pod's message.
	u.status(2)
	u.pod("u-1", "n1", "fairlead-uninstall", ended(0, ""))
	u.pod("u-2", "n2", "fairlead-uninstall", ended(1, "br-uplink is still there"))
	if out = u.stops("4s", "1 of 2 nodes are not restored (n2: br-uplink is still there)"); !strings.Contains(out, "n1: restored") {
		t.Errorf("a node is done:\n%s", out)
	}
	spec := u.work().Spec.Template.Spec
	if held(u.work()) || spec.InitContainers[0].Command[1] != "uninstall" ||
		!*spec.InitContainers[0].SecurityContext.Privileged || !spec.HostNetwork || len(spec.Tolerations) == 0 {
		t.Errorf("the DaemonSet is %+v", spec)
	}

	// All are done: the DaemonSet is deleted.
	u.end("u-2")
	u.pod("u-3", "n2", "fairlead-uninstall", ended(0, ""))
	go func() {
		for range 300 {
			if _, err := u.sets.Get(t.Context(), "fairlead-uninstall", metav1.GetOptions{}); apierrors.IsNotFound(err) {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		for _, name := range []string{"u-1", "u-3"} {
			if err := u.pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				t.Error(err)
			}
		}
	}()
	out, code = u.run("uninstall", "--yes", "--wait", "60s")
	t.Log("\n" + out)
	if code != 0 || !strings.Contains(out, "2 nodes are restored") {
		t.Errorf("all nodes are done: exit code %d\n%s", code, out)
	}
}

// An uninstallation has not completed, and Fairlead was installed again. What the old pods have done does not count for
// the next uninstallation.
func TestKubeUninstallOfThen(t *testing.T) {
	u := newUninstalling(t)
	u.install()
	u.stops("2s", started) // no agent runs
	u.pod("u-1", "n1", "fairlead-uninstall", ended(0, ""))
	u.pod("u-2", "n2", "fairlead-uninstall", ended(0, ""))
	u.status(2)
	then := u.work()
	if held(then) {
		t.Fatal("the uninstallation has not begun")
	}
	u.install()

	// The agents are kept as long as old pods exist.
	if u.stops("3s", "to terminate (u-1, u-2)"); !u.has("fairlead-agent") {
		t.Error("pods of then run, and the agents are deleted")
	}

	// The pod on n1 ends. n2 is dead, and its kubelet cannot end the other one.
	u.end("u-1")
	u.must(u.pods.Delete(t.Context(), "u-2", metav1.DeleteOptions{}))
	u.must(u.client.Kubernetes.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}))
	u.node("n2", corev1.ConditionUnknown)
	if out := u.stops("3s", "1 of 1 nodes are not restored (n2: the node does not answer"); strings.Contains(out, "restored\n") {
		t.Errorf("pods of then count as restored nodes:\n%s", out)
	}
	if set := u.work(); set.UID == then.UID || held(set) || u.has("fairlead-agent") {
		t.Errorf("the DaemonSet is that of then: %v, held: %v, agents are there: %v", set.UID == then.UID, held(set), u.has("fairlead-agent"))
	}
	u.end("u-2")
}

// Installing Fairlead again withdraws an uninstallation: the controller may delete it, but only one that has begun and
// exists beside agents.
func TestKubeUninstallWithdrawn(t *testing.T) {
	u := newUninstalling(t)
	u.install()
	token, err := u.s.Token(t.Context(), "fairlead-controller")
	u.must(err)
	account, err := kube.ForConfig(&rest.Config{Host: u.s.URL, BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: u.s.CA()}})
	u.must(err)
	u.until(func() string { // the API server's watch of roles lags
		if _, err := takedown.Withdraw(t.Context(), account.Kubernetes); err != nil {
			return err.Error()
		}
		return ""
	})
	withdraw := func(what string, want bool) {
		t.Helper()
		was, err := takedown.Withdraw(t.Context(), account.Kubernetes)
		if err != nil || was != want {
			t.Errorf("%s: withdrawn: %v, %v; want %v", what, was, err, want)
		}
	}
	withdraw("none has begun", false)
	u.pod("agent-1", "n1", "fairlead-agent", corev1.PodStatus{Phase: corev1.PodRunning})
	u.stops("2s", "to terminate (agent-1)")
	u.install()
	withdraw("it has no pods yet", false)
	u.end("agent-1")
	u.stops("2s", started)
	withdraw("it goes on", false)
	if held(u.work()) {
		t.Error("it has not begun")
	}
	u.install()
	withdraw("the agents are back", true)
	if u.has("fairlead-uninstall") || !u.has("fairlead-agent") {
		t.Error("it is still there, or the agents are not")
	}

	// A running controller withdraws it by itself.
	u.stops("2s", started)
	u.install()
	u.startController(api.NodeIPAM{})
	u.until(func() string {
		if u.has("fairlead-uninstall") {
			return "the controller withdraws it"
		}
		return ""
	})
}

// A user who may not read what the wait for the nodes needs gets an error before the agents are deleted.
func TestKubeUninstallWithoutRights(t *testing.T) {
	u := newUninstalling(t)
	u.install()
	u.apply(`{apiVersion: v1, kind: ServiceAccount, metadata: {name: operator, namespace: kube-system}}`)
	u.apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: operator, namespace: kube-system}, rules: [
		{apiGroups: [apps], resources: [daemonsets], verbs: ["*"]}, {apiGroups: [""], resources: [pods], verbs: [list]}]}`)
	u.apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: operator, namespace: kube-system},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: operator},
		subjects: [{kind: ServiceAccount, name: operator, namespace: kube-system}]}`)
	token, err := u.s.Token(t.Context(), "operator")
	u.must(err)
	u.letIn(token)
	u.until(func() string { // the API server's watch of roles lags
		out, code := u.run("uninstall", "--yes", "--wait", "3s")
		switch {
		case code == 0:
			t.Fatal(out)
		case !strings.Contains(out, "cannot list resource \"nodes\""):
			return out
		case !strings.Contains(out, "nothing was changed") || strings.Contains(out, "Run the command again"):
			t.Errorf("it does not say that nothing was done:\n%s", out)
		}
		return ""
	})
	if !u.has("fairlead-agent") || u.has("fairlead-uninstall") {
		t.Error("the agents were deleted")
	}
}

// The commands of docs/install.md that delete the pools complete, although no controller is left to remove their
// finalizers.
func TestKubeUninstallPools(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(func() {
		c.must(c.s.Apply(context.Background(), "../build/manifests/fairlead.yaml", "app.kubernetes.io/component=crds"))
	})
	c.apply(`{apiVersion: crd.antrea.io/v1beta1, kind: IPPool, metadata: {name: p, finalizers: [` + api.PoolFinalizer + `]}, spec: {
		ipRanges: [{start: 192.0.2.10, end: 192.0.2.20}], subnetInfo: {gateway: 192.0.2.1, prefixLength: 24}}}`)
	c.hold("192.0.2.10", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "u"},
		Spec: corev1.PodSpec{NodeName: "n1"}})
	text, err := os.ReadFile("../docs/install.md")
	c.must(err)
	_, after, found := strings.Cut(string(text), "To delete these as well")
	_, after, _ = strings.Cut(after, "\n\n")
	commands, _, _ := strings.Cut(after, "\n\n")
	if !found || strings.Count(commands, "kubectl delete") != 2 {
		t.Fatalf("docs/install.md has no such commands: %s", commands)
	}
	bin := t.TempDir()
	c.must(os.WriteFile(filepath.Join(bin, "kubectl"), []byte("#!/bin/sh\nexec "+strings.Join(c.s.KubectlCommand(), " ")+" \"$@\"\n"), 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", commands)
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s\n%s", commands, out)
	c.must(err)
	_, err = c.s.Objects().Resource(apitest.Definitions).Get(t.Context(), "ippools.crd.antrea.io", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the definition of IPPools is there: %v", err)
	}
}
