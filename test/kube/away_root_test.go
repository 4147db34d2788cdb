package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// away is the length of an outage of the API server where time matters: longer than the 45 s after which client-go
// closes a connection without traffic.
const away = time.Minute

// The API server is killed. Pods keep running, DEL and the ADD of a pod that the agent has seen work; everything works
// again when it is back.
func TestRootAPIServerKilled(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.seen(t, "b")
	stop := b.steady(t, "a", "c", cniCosts)
	must(t, b.plane.Kill(labtest.Within(t, 10*time.Second), controlplane.APIServer))
	b.cniWhileAway(t)
	must(t, b.plane.Start(labtest.Within(t, time.Minute), controlplane.APIServer, nil))
	b.follows(t)
	stop()
	b.addPods(t, "d@node2")
	b.ping(t, "d", "a", 10*time.Second)
}

// The API server hangs: connections stay open without an answer.
func TestRootAPIServerHangs(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.seen(t, "b")
	stop := b.steady(t, "a", "c", cniCosts)
	begun := time.Now()
	must(t, b.plane.Pause(controlplane.APIServer))
	b.cniWhileAway(t)
	wait(t, away+10*time.Second, func() string {
		if left := away - time.Since(begun); left > 0 {
			return left.String() + " are left to hang"
		}
		return ""
	})
	b.cniWhileAway(t) // connections have been closed by now
	must(t, b.plane.Resume(controlplane.APIServer))
	b.follows(t)
	stop()
}

// seen waits until the agent of a pod's node has received the pod from its watch and recorded it. The agent may have
// requested the pod at its ADD, which is not the same: after a fault its watch lags by some seconds.
func (b *bed) seen(t *testing.T, pod string) {
	t.Helper()
	rec, err := b.Records().Load("default/" + pod)
	must(t, err)
	wait(t, 90*time.Second, func() string {
		for _, file := range []string{inputs.LastKnownPath, inputs.LastPoliciesPath} {
			out, err := b.NodeExec(t.Context(), rec.Node, "cat", file)
			if err != nil || !strings.Contains(out, rec.UID) {
				return fmt.Sprintf("the agent of %s has not put pod %s on record: %v\n%s", rec.Node, pod, err, out)
			}
		}
		return ""
	})
}

// cniWhileAway calls DEL and ADD for pod b, which the agent has seen, and expects them to succeed without the API
// server, with the same address. TestReleaseIsBounded, in agent/addresses, checks how long a DEL waits for it.
func (b *bed) cniWhileAway(t *testing.T) {
	t.Helper()
	for _, verb := range []lab.Verb{lab.DEL, lab.ADD} {
		out, err := b.CNI(labtest.Within(t, 30*time.Second), "node1", verb, "default/b")
		if err != nil {
			t.Errorf("%s while the API server is away: %v\n%s", verb, err, out)
		}
	}
	b.ping(t, "b", "a", 10*time.Second)
	b.ping(t, "b", "c", 10*time.Second)
}

// An agent that starts while the API server is unreachable uses the last known inputs: it becomes ready, removes
// nothing, and serves pods.
func TestRootAgentStartsWhileAPIServerUnreachable(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.seen(t, "b")
	stop := b.steady(t, "a", "c", cniCosts)
	must(t, b.plane.Kill(labtest.Within(t, 10*time.Second), controlplane.APIServer))
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), "node1"))
	must(t, b.AgentStart(t.Context(), "node1"))
	must(t, b.WaitReady(labtest.Within(t, 40*time.Second), "node1"))
	b.cniWhileAway(t)
	must(t, b.plane.Start(labtest.Within(t, time.Minute), controlplane.APIServer, nil))
	b.follows(t)
	stop()
}

// etcd is down: the API server answers with errors.
func TestRootEtcdDown(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.seen(t, "b")
	stop := b.steady(t, "a", "c", cniCosts)
	must(t, b.plane.Kill(labtest.Within(t, 10*time.Second), controlplane.Etcd))
	wait(t, 30*time.Second, func() string {
		if b.client.RESTClient().Get().AbsPath("/readyz").Do(labtest.Within(t, 20*time.Second)).Error() == nil {
			return "the API server does not know yet that etcd is away"
		}
		return ""
	})
	b.cniWhileAway(t)
	must(t, b.plane.Start(labtest.Within(t, time.Minute), controlplane.Etcd, nil))
	must(t, b.plane.StartAll(labtest.Within(t, time.Minute), func(controlplane.Part) {})) // those that exited meanwhile
	b.follows(t)
	stop()
}

// The API server forbids everything (403). The known state stays in force, and is updated again once the permissions
// are back.
func TestRootForbidden(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.seen(t, "b")
	stop := b.steady(t, "a", "c", cniCosts)
	before := len(b.log(t, "node1")) // other tests' agents may have been forbidden to read, too
	must(t, b.client.RbacV1().ClusterRoleBindings().Delete(t.Context(), "fairlead-agent", metav1.DeleteOptions{}))
	// Permissions are checked when a watch begins: end the existing ones.
	must(t, b.plane.Restart(labtest.Within(t, time.Minute), controlplane.APIServer, nil))
	wait(t, time.Minute, func() string {
		if !strings.Contains(b.log(t, "node1")[before:], "forbidden") {
			return "the agent does not say that it is forbidden to read"
		}
		return ""
	})
	b.cniWhileAway(t)
	must(t, b.GiveAgentsAccess(t.Context()))
	b.follows(t)
	stop()
}

// The network to the API server is cut temporarily; changes made meanwhile are seen afterwards.
func TestRootWatchCut(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node2")
	b.seen(t, "b")
	stop := b.steady(t, "a", "c", cniCosts)
	nft := func(command string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also when the test has ended
		defer cancel()
		_, err := b.NodeExec(ctx, underlay.ControlPlane, "nft", command)
		must(t, err)
	}
	nft("table inet cut { chain in { type filter hook input priority -10; iifname eth0 tcp dport 6443 reject with tcp reset; }; }")
	cut := true
	t.Cleanup(func() {
		if cut {
			nft("delete table inet cut")
		}
	})
	b.cniWhileAway(t)
	b.makeGuest(t) // from the host itself, which is not cut off
	nft("delete table inet cut")
	cut = false
	b.endBackOff(t)
	b.followsGuest(t)
	stop()
}

// etcd comes back empty: other UIDs, lower resourceVersions, unknown tokens. Pods that the cluster no longer has are
// removed, new ones run and reach each other.
func TestRootWiped(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "c@node2")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must(t, b.Wipe(ctx))
	for _, node := range b.Nodes() {
		wait(t, 90*time.Second, func() string {
			s, err := b.AgentState(t.Context(), node)
			if err == nil && s.PID == 0 { // as kubelet would
				err = b.AgentStart(t.Context(), node)
			}
			if err != nil {
				return err.Error()
			}
			if !s.Ready {
				return node + ": " + s.String()
			}
			return ""
		})
	}
	b.addPods(t, "a@node1", "c@node2")
	b.ping(t, "a", "c", 60*time.Second)
	b.follows(t)
}
