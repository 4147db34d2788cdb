package kube

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// adminHere writes the administrator's kubeconfig to a node.
func (b *bed) adminHere(t *testing.T, node string) (kubeconfig string) {
	t.Helper()
	ctx := labtest.Within(t, 20*time.Second)
	text, err := b.NodeExec(ctx, "control-plane", "cat", b.plane.AdminKubeconfig())
	must(t, err)
	const path = "/run/admin.kubeconfig"
	_, err = b.NodeExec(ctx, node, "sh", "-c", `umask 077; printf %s "$1" >"$2"`, "sh", text, path)
	must(t, err)
	return path
}

// says runs fairleadctl on node1 until its exit code and its output are as expected.
func (b *bed) says(t *testing.T, kubeconfig string, code int, words []string, args ...string) {
	t.Helper()
	wait(t, 60*time.Second, func() string {
		out, got := b.fairleadctl(t, "node1", kubeconfig, args...)
		for _, w := range words {
			if got != code || !strings.Contains(out, w) {
				return strings.Join(args, " ") + ": want " + w + ":\n" + out
			}
		}
		return ""
	})
}

// On a node fairleadctl also queries the agent and Open vSwitch, and finds what is broken there.
func TestRootFairleadctlOnNode(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "c@node2")
	admin := b.adminHere(t, "node1")
	b.says(t, admin, 0, []string{"this node is node1", "agent         ready", "Open vSwitch  runs, bridge br-int", "; version 3.", "detached", "node2"}, "status")
	b.says(t, admin, 0, []string{"flows     ok", "mtu       ok", "ovs       ok", "uplink    ok", "leaks     ok", "versions  ok"}, "doctor")
	b.says(t, "/nonexistent", 0, []string{"flows     ok", "pod-cidr  not examined: only this node"}, "doctor", "--node-local")

	// The packet's path, each part on its node.
	b.says(t, admin, 0, []string{"from pod default/a", "output to the tunnel", "next: it goes to node node2"}, "trace", "a", "default/c")
	b.says(t, admin, 0, []string{"from the tunnel", "output to pod default/a", "this is its arrival from node node2"}, "trace", "c", "a")
	b.says(t, admin, 1, []string{"there is no pod default/none"}, "trace", "a", "none")
	b.says(t, admin, 0, []string{"from pod default/a"}, "trace", "a", "203.0.113.1")
	b.says(t, "/nonexistent", 0, []string{"from pod default/a"}, "trace", "a", "203.0.113.1")
	b.says(t, "/nonexistent", 1, []string{"pod default/c is not on this node, and the Kubernetes API cannot be read"}, "trace", "a", "c")
	b.says(t, admin, 0, []string{"detached: nothing was attached"}, "uplink", "status")

	// node2 receives no large packets: a veth accepts a VLAN tag beyond its MTU.
	ctx := labtest.Within(t, 3*time.Minute)
	mtu := func(bytes string) {
		_, err := b.NodeExec(context.Background(), "node2", "ip", "link", "set", "eth0", "mtu", bytes)
		must(t, err)
	}
	mtu("1400")
	t.Cleanup(func() { mtu("1500") })
	b.says(t, admin, 4, []string{"path-mtu", "the largest that arrives has 1404", "defaultMTU: 1354"}, "doctor", "mtu")
	mtu("1500")
	b.says(t, admin, 0, []string{"mtu    ok"}, "doctor", "mtu")

	// No agent repairs the flows, and no pods are added.
	must(t, b.AgentKill(ctx, "node1"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's context has ended
		defer cancel()
		must(t, b.AgentStart(ctx, "node1"))
		must(t, b.WaitReady(ctx, "node1"))
	})
	b.says(t, admin, 4, []string{"agent-away", "the agent does not answer at 127.0.0.1:"}, "doctor", "--node-local")
	_, err := b.NodeExec(ctx, "node1", "ovs-ofctl", "-O", "OpenFlow15", "add-flow", "br-int",
		"table=3,priority=9,ip,nw_dst=203.0.113.0/24,actions=drop")
	must(t, err)
	b.says(t, admin, 4, []string{"flows-differ", "not desired: ", "203.0.113.0/24", "unknown: missing flows"}, "doctor", "flows")
}
