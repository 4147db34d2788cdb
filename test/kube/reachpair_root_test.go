package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeletexec "github.com/fairlead-cni/fairlead/test/lab/kubelet/exec"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// By commands in the agents' Pods, fairleadctl reports from outside the nodes whether pods of two nodes reach each
// other, and which direction does not work. A dead agent is not such a fault.
func TestRootReach(t *testing.T) {
	b := cluster(t)
	b.forgetEvents(t)
	b.agentPods(t)
	b.configured(t)
	says := func(host string, code int, words []string, args ...string) string {
		t.Helper()
		var out string
		took := wait(t, labtest.Patience(t, 40*time.Second), func() string {
			var got int
			out, got = b.fairleadctl(t, host, b.kubeconfigAt(t, host), args...)
			for _, w := range words {
				if flat := strings.Join(strings.Fields(out), " "); got != code || !strings.Contains(flat, w) {
					return fmt.Sprintf("exit code %d, want %d, and %q in\n%s", got, code, w, out)
				}
			}
			return ""
		})
		t.Logf("on %s, after %s: %v\n%s", host, took, args, out)
		return out
	}
	outside := underlay.ControlPlane
	pair := []string{"reach", "node1", "node2"}
	pass := func(from, to string) []string {
		return []string{from + " " + to + " IPv4 pass", from + " " + to + " IPv6 pass"}
	}
	well := append(pass("node1", "node2"), pass("node2", "node1")...)
	says(outside, 0, well, pair...)
	says("node1", 0, well, pair...)
	says(outside, 0, []string{"ready 1/1 0 node2"}, "status")
	says(outside, 0, []string{"reach ok"}, "doctor", "reach")

	b.nft(t, "add table bridge lost")
	t.Cleanup(func() {
		_, _ = b.NodeExec(context.Background(), underlay.Hub, "nft", "delete", "table", "bridge", "lost")
	})
	b.nft(t, "add chain bridge lost drops { type filter hook forward priority 0; }")
	b.nft(t, "add rule bridge lost drops ip saddr 192.168.77.11 ip daddr 192.168.77.12 udp dport 6081 drop")
	fails := append(pass("node2", "node1"), "node1 node2 IPv4 do not pass", "node1 node2 IPv6 do not pass", "pods-between",
		"no IPv4 packets pass from pods on node1 to pods on node2: they leave node node1 through eth0, and do not arrive at any interface of node node2",
		"something between the nodes drops them (geneve, udp port 6081), although it passes ping",
		"The same: from node1 to node2 in IPv6", "node node2: no packets from node node1 arrive", "node node1: node node2 is heard, and reports that it does not hear this node")
	says(outside, 4, fails, pair...)
	says("node2", 4, fails, pair...)
	says(outside, 0, []string{"ready 0/1, not: node2 0", "ready 0/1, not: node1 0", "Node node2: PodsNotReached"}, "status")
	says(outside, 4, []string{"reach 1 finding, see below", "Problem 1: reach: pods-between no IPv4 packets pass from pods on node1 to pods on node2",
		"The same: from node1 to node2 in IPv6", "node node2: no packets"}, "doctor", "reach")
	b.nft(t, "delete table bridge lost")
	says(outside, 0, well, pair...)

	must(t, b.AgentKill(labtest.Within(t, 20*time.Second), "node2"))
	says(outside, 0, []string{"ready 0/1, 1 away 0", "which nodes' pods are reached from node2: the agent does not answer at 127.0.0.1"}, "status")
	says(outside, 3, append(well, "pods-agent-away", "the agent of node node2 does not answer; its node does"), pair...)
	says("node1", 0, []string{"reach ok"}, "doctor", "reach", "--node-local")
	says("node1", 1, []string{"the agent does not forward packets to a node nowhere"}, "reach", "--node-local", "nowhere")
	must(t, b.AgentStart(labtest.Within(t, 20*time.Second), "node2"))
	says(outside, 0, well, pair...)
}

func (b *bed) nft(t *testing.T, command string) {
	t.Helper()
	argv := append([]string{"nft"}, strings.Fields(command)...)
	_, err := b.NodeExec(labtest.Within(t, 10*time.Second), underlay.Hub, argv...)
	must(t, err)
}

// kubeconfigAt is the administrator's kubeconfig on a host.
func (b *bed) kubeconfigAt(t *testing.T, host string) string {
	if host == underlay.ControlPlane {
		return b.plane.AdminKubeconfig()
	}
	return b.adminHere(t, host)
}

// configured creates the ConfigMap from which fairleadctl knows that agents probe, with the defaults.
func (b *bed) configured(t *testing.T) {
	t.Helper()
	_, err := b.client.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "fairlead-config"}, Data: map[string]string{"agent.conf": ""}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, b.client.CoreV1().ConfigMaps("kube-system").Delete(ctx, "fairlead-config", metav1.DeleteOptions{}))
	})
}

// agentPods creates Pods for the agents, which run as processes of the lab, and fakes the kubelets that run commands in
// them.
func (b *bed) agentPods(t *testing.T) {
	t.Helper()
	const port = 10250
	pods := b.client.CoreV1().Pods("kube-system")
	for _, node := range b.Nodes() {
		h, err := b.Host(node)
		must(t, err)
		var listener net.Listener
		must(t, h.Do(func() (err error) { listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }))
		t.Cleanup(func() { listener.Close() })
		go func() {
			_ = kubeletexec.Serve(listener, func(_ kubeletexec.Container, command []string, stdout, stderr io.Writer) error {
				cmd := b.NodeCommand(t.Context(), node, command...)
				cmd.Stdout, cmd.Stderr = stdout, stderr
				return cmd.Run()
			})
		}()
		_, err = b.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
			fmt.Appendf(nil, `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, port), metav1.PatchOptions{}, "status")
		must(t, err)
		name := "fairlead-agent-" + node
		_, err = pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": "fairlead-agent"}}, Spec: corev1.PodSpec{NodeName: node,
			HostNetwork: true, Containers: []corev1.Container{{Name: "fairlead-agent", Image: "none"}}}}, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			must(t, pods.Delete(ctx, name, metav1.DeleteOptions{}))
		})
		wait(t, 20*time.Second, func() string {
			if p, err := pods.Get(t.Context(), name, metav1.GetOptions{}); err != nil || p.Status.Phase != corev1.PodRunning {
				return fmt.Sprintf("%v, %v", p.Status.Phase, err)
			}
			return ""
		})
	}
}
