package kube

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// The cluster CIDR is exhausted, and node2 has no podCIDR. Its agent exits with one message and one Event, and the
// remedy in the message works.
func TestRootClusterCIDRUsedUp(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "c@node2")
	b.keepKCM(t)
	must(t, b.AgentStop(labtest.Within(t, 20*time.Second), "node2"))
	must(t, b.client.CoreV1().Nodes().Delete(t.Context(), "node2", metav1.DeleteOptions{}))
	// node1 has all of it.
	b.clusterCIDR(t, strings.Join(b.node(t, "node1").Spec.PodCIDRs, ","))
	must(t, b.RegisterNodes(t.Context()))
	for range 2 { // as kubelet would: there is still one Event
		must(t, b.AgentStart(t.Context(), "node2"))
		wait(t, time.Minute, func() string {
			if s, err := b.AgentState(t.Context(), "node2"); err != nil || s.Exit == nil || *s.Exit != 78 {
				return fmt.Sprintf("node2's agent is %s, %v, want exit code 78", s, err)
			}
			return ""
		})
	}
	message := b.event(t, "node2", "PodCIDRUnusable")
	for _, want := range []string{"node node2 has no podCIDR: cluster CIDR", "holds 1 node, and 2 exist (1 has one, 1 waits)",
		"A longer node mask does not help: one /24 fills the range", "from the command of Pod"} {
		if !strings.Contains(message, want) {
			t.Errorf("no %q in the Event:\n%s", want, message)
		}
	}
	if log := b.log(t, "node2"); !strings.Contains(log, "fairlead-agent: "+message[:60]) {
		t.Errorf("the agent's last words are others than the Event's %q:\n%s", message, log)
	}
	b.doctorSays(t, 4, "range-exhausted (problem 1)")
	remedy := regexp.MustCompile(`Widen --cluster-cidr to (\S+) \(2 nodes\)`).FindStringSubmatch(message)
	if remedy == nil {
		t.Fatalf("no remedy in %s", message)
	}
	b.clusterCIDR(t, remedy[1])
	b.podCIDRs(t, "node2")
	must(t, b.AgentStart(t.Context(), "node2"))
	must(t, b.WaitReady(labtest.Within(t, time.Minute), "node2"))
	b.addPods(t, "d@node2")
	b.ping(t, "d", "a", 20*time.Second)
}

// A Node is deleted and recreated with another podCIDR while its agent and pods run: the node and its peers apply it,
// the pod outside podCIDR is reported everywhere, and the reported remedy works.
func TestRootPodCIDRChanged(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "c@node2")
	b.keepKCM(t)
	other := strings.NewReplacer("10.77.0.", "10.77.99.", "10.77.1.", "10.77.99.", "10.77.2.", "10.77.99.", "10.77.3.", "10.77.99.",
		"fd77:0:0:100:", "fd77:0:0:199:", "fd77:0:0:101:", "fd77:0:0:199:", "fd77:0:0:102:", "fd77:0:0:199:",
		"fd77:0:0:103:", "fd77:0:0:199:")
	var podCIDRs []string
	for _, p := range b.node(t, "node2").Spec.PodCIDRs {
		podCIDRs = append(podCIDRs, other.Replace(p))
	}
	b.makeAgain(t, "node2", podCIDRs)
	b.routed(t, podCIDRs[0], true)
	if message := b.event(t, "node2", "PodCIDRChanged"); !strings.Contains(message, "(default/c)") {
		t.Errorf("the Event does not name the pod: %s", message)
	}
	b.measures(t, "node2", "fairlead_pods_outside_podcidr 1")
	b.doctorSays(t, 3, "kubectl -n default delete pod c")
	must(t, b.client.CoreV1().Pods("default").Delete(t.Context(), "c", metav1.DeleteOptions{}))
	must(t, b.WaitPods(labtest.Within(t, 40*time.Second)))
	b.addPods(t, "d@node2")
	b.ping(t, "d", "a", 20*time.Second)
	b.ping(t, "a", "d", 20*time.Second)
	b.doctorSays(t, 0, "No problems")
}

// Two nodes have the same podCIDR while both agents run: both refuse new pods, both Nodes have the Event, running pods
// are not affected. Then the doctor's remedy: node2's Node is recreated while kube-controller-manager is stopped.
func TestRootDuplicatePodCIDR(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.keepKCM(t)
	stop := b.steady(t, "a", "b", 0)
	b.makeAgain(t, "node2", b.node(t, "node1").Spec.PodCIDRs)
	const sentence = "nodes node1, node2 have the same podCIDR"
	for _, node := range b.Nodes() {
		wait(t, time.Minute, func() string {
			if s, err := b.AgentState(t.Context(), node); err != nil || s.Ready || !strings.Contains(s.Reason, sentence) {
				return fmt.Sprintf("%s is %s, %v; want it not ready: %s", node, s, err, sentence)
			}
			return ""
		})
		if message := b.event(t, node, "PodCIDRUnusable"); !strings.Contains(message, sentence) {
			t.Errorf("the Event of %s is %s", node, message)
		}
	}
	_, err := b.Apply("test", []byte(podYAML("e", "node1")+"---\n"+podYAML("f", "node2")))
	must(t, err)
	for _, pod := range []string{"e", "f"} {
		wait(t, time.Minute, func() string {
			states, err := b.PodStates()
			i := slices.IndexFunc(states, func(s lab.PodState) bool { return s.Pod == "default/"+pod })
			if err != nil || i < 0 || !strings.Contains(states[i].LastError, sentence) {
				return fmt.Sprintf("pod %s is not refused: %v", pod, err)
			}
			return ""
		})
	}
	b.doctorSays(t, 4, "kubectl delete node node2")
	must(t, b.plane.Stop(t.Context(), controlplane.KCM))
	must(t, b.client.CoreV1().Nodes().Delete(t.Context(), "node2", metav1.DeleteOptions{}))
	must(t, b.plane.Start(t.Context(), controlplane.KCM, nil))
	must(t, b.RegisterNodes(t.Context()))
	b.podCIDRs(t, "node2")
	for _, node := range b.Nodes() {
		must(t, b.WaitReady(labtest.Within(t, time.Minute), node))
	}
	must(t, b.WaitPods(labtest.Within(t, time.Minute))) // e and f have been given their addresses
	if err := b.client.CoreV1().Pods("default").Delete(t.Context(), "c", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		must(t, err)
	}
	must(t, b.WaitPods(labtest.Within(t, time.Minute)))
	b.ping(t, "e", "f", 20*time.Second)
	b.doctorSays(t, 0, "No problems")
	begun := time.Now()
	wait(t, 10*time.Second, func() string { // for steady to have some pings to count
		if left := 2*time.Second - time.Since(begun); left > 0 {
			return left.String() + " are left"
		}
		return ""
	})
	stop()
}

// measures waits until a node's agent has a metric with its value, which may be updated after the corresponding Event.
func (b *bed) measures(t *testing.T, node, series string) {
	t.Helper()
	wait(t, time.Minute, func() string {
		out, err := b.NodeExec(labtest.Within(t, 20*time.Second), node, "curl", "-s", "http://127.0.0.1:10350/metrics")
		if err != nil || !strings.Contains(out, "\n"+series+"\n") {
			return fmt.Sprintf("the agent of %s does not measure %s: %v", node, series, err)
		}
		return ""
	})
}

// keepKCM restores the flags of kube-controller-manager when the test has ended.
func (b *bed) keepKCM(t *testing.T) {
	t.Helper()
	before, err := b.plane.ClusterCIDR()
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() { // node2 may still be broken by the test
			if err := b.forgetNode(ctx, "node2"); err != nil {
				t.Error(err)
			}
		}
		if err := b.RegisterNodes(ctx); err != nil {
			t.Error(err)
		}
		if err := b.plane.Restart(ctx, controlplane.KCM, controlplane.Flags{"cluster-cidr": before}); err != nil {
			t.Error(err)
		}
	})
}

func (b *bed) clusterCIDR(t *testing.T, cidrs string) {
	t.Helper()
	must(t, b.plane.Restart(labtest.Within(t, time.Minute), controlplane.KCM, controlplane.Flags{"cluster-cidr": cidrs}))
}

// makeAgain deletes a Node and recreates it with other podCIDRs.
func (b *bed) makeAgain(t *testing.T, name string, podCIDRs []string) {
	t.Helper()
	n := b.node(t, name)
	must(t, b.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	n.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: n.Labels}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDRs[0], podCIDRs
	_, err := b.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
	must(t, err)
}

func (b *bed) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := b.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return n
}

// podCIDRs waits until the node has an assigned podCIDR.
func (b *bed) podCIDRs(t *testing.T, name string) {
	t.Helper()
	wait(t, time.Minute, func() string {
		if len(b.node(t, name).Spec.PodCIDRs) == 0 {
			return name + " has no podCIDR"
		}
		return ""
	})
}

// event waits for the one Warning Event of the reason on the Node, until its message has all parts, and returns that.
// Another agent may write the same Event.
func (b *bed) event(t *testing.T, node, reason string, parts ...string) (message string) {
	t.Helper()
	wait(t, time.Minute, func() string {
		list, err := b.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node + ",type=Warning,reason=" + reason})
		if err != nil || len(list.Items) == 0 {
			return fmt.Sprintf("no Event %s on Node %s: %v", reason, node, err)
		}
		if len(list.Items) > 1 {
			t.Fatalf("%d Events %s on Node %s, want one: %v", len(list.Items), reason, node, list.Items)
		}
		message = list.Items[0].Message
		for _, p := range parts {
			if !strings.Contains(message, p) {
				return fmt.Sprintf("%q is not in the Event %s on Node %s: %q", p, reason, node, message)
			}
		}
		return ""
	})
	b.forgetEvents(t)
	return message
}

// forgetEvents removes all Events at the end of the test.
func (b *bed) forgetEvents(t *testing.T) {
	t.Cleanup(func() {
		err := b.client.CoreV1().Events("default").DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
	})
}

// doctorSays runs fairleadctl's doctor and expects its verdict, the exit code, and a text in its report.
func (b *bed) doctorSays(t *testing.T, want int, text string) {
	t.Helper()
	wait(t, 20*time.Second, func() string {
		out, code := b.fairleadctl(t, underlay.ControlPlane, b.plane.AdminKubeconfig(), "doctor", "pod-cidr")
		if code != want || !strings.Contains(out, text) {
			return fmt.Sprintf("the doctor's exit code is %d, want %d and %q:\n%s", code, want, text, out)
		}
		return ""
	})
}

// fairleadctl runs it on a host and returns its output and its exit code.
func (b *bed) fairleadctl(t *testing.T, host, kubeconfig string, args ...string) (out string, code int) {
	t.Helper()
	out, err := b.NodeExec(labtest.Within(t, 40*time.Second), host, append([]string{"env", "KUBECONFIG=" + kubeconfig, "fairleadctl"}, args...)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return out, exit.ExitCode()
	}
	must(t, err)
	return out, 0
}
