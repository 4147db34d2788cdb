package crash

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// TestRootRandomFaults with Kubernetes: every round also has a fault of the API. Once the API is back, everything that
// was created and deleted meanwhile is applied on both nodes.
func TestRootRandomAPIFaults(t *testing.T) {
	ovstest.UserspaceOnly(t, "Kubernetes is too much for a guest's one processor")
	c := upIn(t, lab.Kube)
	faults := c.apiFaults()
	c.schedules(t, func(r *rand.Rand) (first, more []fault) { return faults, append(c.faults(r), faults...) })
}

// apiFaults are faults of the API server, and of the network to it, at any time. All of them end with heal.
func (c cluster) apiFaults() []fault {
	type do = func(t *testing.T)
	kill := func(part controlplane.Part) do {
		return func(t *testing.T) { must(t, c.api.plane.Kill(labtest.Within(t, time.Minute), part)) }
	}
	pause := func(part controlplane.Part) do {
		return func(t *testing.T) { must(t, c.api.plane.Pause(part)) }
	}
	cut := func(from, verdict string) do {
		return func(t *testing.T) {
			c.api.nft(t, "table inet cut { chain in { type filter hook input priority -10; iifname eth0 "+from+
				" tcp dport 6443 "+verdict+"; }; }")
		}
	}
	return []fault{
		{name: "API server killed", begin: kill(controlplane.APIServer)},
		{name: "API server stopped", begin: func(*testing.T) {
			if pid := c.api.plane.PID(controlplane.APIServer); pid != 0 {
				unix.Kill(pid, unix.SIGTERM) // its graceful shutdown takes a while
			}
		}, end: kill(controlplane.APIServer)},
		{name: "API server hangs", begin: pause(controlplane.APIServer)},
		{name: "etcd killed", begin: kill(controlplane.Etcd)},
		{name: "etcd hangs", begin: pause(controlplane.Etcd)},
		{name: "API refuses all", begin: cut("", "reject with tcp reset")},
		{name: "API refuses node1", begin: cut("ip saddr 192.168.77.11", "reject with tcp reset")},
		{name: "API hears nothing", begin: cut("", "drop")},
		{name: "agent starts forbidden", begin: func(t *testing.T) { c.api.forbid(t); c.restartAgent(t) }},
		{name: "agents' rights gone", begin: func(t *testing.T) { c.api.forbid(t) }},
		{name: "agent starts without API", begin: func(t *testing.T) {
			cut("ip saddr 192.168.77.11", "drop")(t)
			c.restartAgent(t)
		}},
	}
}

// restartAgent kills the agent and starts it again.
func (c cluster) restartAgent(t *testing.T) {
	t.Helper()
	must(t, c.AgentKill(labtest.Within(t, time.Minute), node))
	must(t, c.startAgent(labtest.Within(t, time.Minute)))
}

// forbid removes the agents' permissions. With an API server that does not answer there is nothing to remove.
func (a *kubeAPI) forbid(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := a.client.RbacV1().ClusterRoleBindings().Delete(ctx, a.rights.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Logf("  %v", err)
	}
}
