package kube

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
)

const denyB = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}
`

// An agent starts without the API server, and Open vSwitch without flows: the saved policies are in force, and pods are
// added. Without that file policies are not known: what Open vSwitch enforces stays in force; if it has started without
// flows, nothing passes. No pod is added or, with policyStart: closed, only the node reaches pods that Open vSwitch has
// no flows for. Once the API server is back, everything works again.
func TestRootPoliciesUnknown(t *testing.T) {
	b := cluster(t)
	b.addPods(t, "a@node1", "b@node1", "c@node1")
	sent, arrived := b.stream(t, "a", "b")
	arrives := func(want bool, why string) {
		t.Helper()
		wait(t, 10*time.Second, func() string {
			before, until := arrived.Load(), sent.Load()+40
			for deadline := time.Now().Add(time.Minute); sent.Load() < until; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: no datagrams are sent", why)
				}
			}
			if got := arrived.Load() > before; got != want {
				return fmt.Sprintf("%s: datagrams from a to b arrive: %v", why, got)
			}
			return ""
		})
	}
	arrives(true, "without a policy")
	b.change(t, b.Apply, denyB)
	t.Cleanup(func() { b.change(t, b.Delete, denyB) })
	arrives(false, "with the policy")
	admin := b.adminHere(t, "node1")
	b.says(t, admin, 0, []string{"isolated by NetworkPolicy default/deny"}, "policy", "show", "b")
	b.says(t, admin, 0, []string{"denied", "policies deny it, in table IngressNetworkPolicy"}, "policy", "trace", "a", "b:80")
	b.says(t, admin, 0, []string{"allowed", "policies allow it"}, "policy", "trace", "b", "a:80")
	b.says(t, admin, 0, []string{"policies  ok"}, "doctor", "policies")
	b.seen(t, "c")
	must(t, b.plane.Kill(labtest.Within(t, 10*time.Second), controlplane.APIServer))
	b.datapathFollows(t, "node1") // a moment without arrivals does not prove it
	before := arrived.Load()

	b.restartKnowing(t)
	b.ping(t, "b", "a", 10*time.Second)
	_, err := b.CNI(labtest.Within(t, 30*time.Second), "node1", lab.DEL, "default/c")
	must(t, err)
	_, err = b.CNI(labtest.Within(t, 30*time.Second), "node1", lab.ADD, "default/c")
	must(t, err)
	b.ping(t, "c", "a", 10*time.Second)
	b.unreachable(t, "c", "b")
	if n := arrived.Load() - before; n > 0 {
		t.Errorf("%d forbidden datagrams arrived by the policies that were saved", n)
	}

	b.restartUnknowing(t, false)
	b.ping(t, "b", "a", 10*time.Second)
	_, err = b.CNI(labtest.Within(t, 30*time.Second), "node1", lab.DEL, "default/c")
	must(t, err)
	b.refusesADD(t, "NetworkPolicies are not known yet")
	b.restartUnknowing(t, true)
	b.refusesADD(t, "NetworkPolicies are not known yet") // before its first round has succeeded
	b.unreachable(t, "b", "a")
	b.restartClosed(t)
	b.nodeReaches(t, "a", "b")
	b.unreachable(t, "b", "a")
	_, err = b.CNI(labtest.Within(t, 30*time.Second), "node1", lab.ADD, "default/c")
	must(t, err)
	b.nodeReaches(t, "c")
	b.unreachable(t, "c", "a")
	b.unreachable(t, "a", "c")
	_, err = b.CNI(labtest.Within(t, 30*time.Second), "node1", lab.DEL, "default/c")
	must(t, err)
	must(t, b.plane.Start(labtest.Within(t, time.Minute), controlplane.APIServer, nil))
	b.endBackOff(t)
	must(t, b.WaitReady(labtest.Within(t, time.Minute), "node1"))
	b.ping(t, "b", "a", 20*time.Second)
	if _, err := b.CNI(labtest.Within(t, 30*time.Second), "node1", lab.ADD, "default/c"); err != nil {
		t.Error(err)
	}
	b.ping(t, "c", "a", 10*time.Second)
	if n := arrived.Load() - before; n > 0 {
		t.Errorf("%d forbidden datagrams arrived", n)
	}
	b.change(t, b.Delete, denyB)
	arrives(true, "when the policy has gone")
}

// datapathFollows waits until a node's datapath reflects the current flow tables.
func (b *bed) datapathFollows(t *testing.T, node string) {
	t.Helper()
	_, err := b.NodeExec(labtest.Within(t, time.Minute), node, "ovs-appctl", "revalidator/wait")
	must(t, err)
}

// change applies or deletes a manifest.
func (b *bed) change(t *testing.T, how func(string, []byte) ([]manifest.Change, error), doc string) {
	t.Helper()
	_, err := how("test", []byte(doc))
	must(t, err)
}

// restartKnowing kills the agent of node1 and ovs-vswitchd, and starts both, while the API server is down.
func (b *bed) restartKnowing(t *testing.T) {
	t.Helper()
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), "node1"))
	must(t, b.OVSKill(labtest.Within(t, 10*time.Second), "node1", lab.Vswitchd))
	must(t, b.OVSStart(labtest.Within(t, 20*time.Second), "node1", lab.Vswitchd))
	must(t, b.AgentStart(t.Context(), "node1"))
	must(t, b.WaitReady(labtest.Within(t, 40*time.Second), "node1"))
}

// restartUnknowing kills the agent of node1, with ovs-vswitchd or without, and starts what was killed, while the API
// server is down and the saved policies are lost.
func (b *bed) restartUnknowing(t *testing.T, vswitchd bool) {
	t.Helper()
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), "node1"))
	h, err := b.Host("node1")
	must(t, err)
	if err := os.Remove(h.Private(inputs.LastPoliciesPath)); !vswitchd {
		must(t, err)
	}
	if !vswitchd {
		must(t, b.AgentStart(t.Context(), "node1"))
		must(t, b.WaitReady(labtest.Within(t, 40*time.Second), "node1"))
		return
	}
	must(t, b.OVSKill(labtest.Within(t, 10*time.Second), "node1", lab.Vswitchd))
	must(t, b.OVSStart(labtest.Within(t, 20*time.Second), "node1", lab.Vswitchd))
	must(t, b.AgentStart(t.Context(), "node1"))
	wait(t, 40*time.Second, func() string {
		s, err := b.AgentState(labtest.Within(t, 5*time.Second), "node1")
		if err != nil || s.Ready || !strings.Contains(s.Reason, "NetworkPolicies are not known yet") {
			return fmt.Sprintf("the agent does not say what it waits for: %s, %v", s, err)
		}
		return ""
	})
}

// restartClosed restarts the agent of node1 with policyStart: closed, without the API server.
func (b *bed) restartClosed(t *testing.T) {
	t.Helper()
	must(t, b.AgentKill(labtest.Within(t, 10*time.Second), "node1"))
	h, err := b.Host("node1")
	must(t, err)
	config, err := os.ReadFile(h.Private("/etc/fairlead/agent.conf"))
	must(t, err)
	must(t, os.WriteFile(h.Private("/etc/fairlead/agent.conf"), append([]byte("policyStart: closed\n"), config...), 0o644))
	must(t, b.AgentStart(t.Context(), "node1"))
	must(t, b.WaitReady(labtest.Within(t, 40*time.Second), "node1"))
}

// nodeReaches expects that node1 has answers from its pods.
func (b *bed) nodeReaches(t *testing.T, pods ...string) {
	t.Helper()
	for _, name := range pods {
		wait(t, 10*time.Second, func() string {
			out, err := b.NodeExec(labtest.Within(t, 10*time.Second), "node1", "ping", "-c1", "-W1", b.pod(t, name).ips[0].String())
			if err != nil {
				return fmt.Sprintf("node1 does not reach %s: %v: %s", name, err, out)
			}
			return ""
		})
	}
}

// unreachable expects that a pod has no answer from another one.
func (b *bed) unreachable(t *testing.T, from, to string) {
	t.Helper()
	out, err := b.PodExec(labtest.Within(t, 10*time.Second), "default/"+from, "ping", "-c3", "-i0.2", "-W1",
		b.pod(t, to).ips[0].String())
	if err == nil || !strings.Contains(out+err.Error(), "100% packet loss") {
		t.Errorf("%s reaches %s although it is not known which policies there are: %v: %s", from, to, err, out)
	}
}

// refusesADD expects that the ADD of pod c fails with code 11, which makes the runtime retry, and this reason.
func (b *bed) refusesADD(t *testing.T, why string) {
	t.Helper()
	wait(t, 10*time.Second, func() string { // for the reason: the shim reads it from a file that lags behind the agent
		out, err := b.CNI(labtest.Within(t, 30*time.Second), "node1", lab.ADD, "default/c")
		if err == nil || !strings.Contains(out, `"code": 11`) && !strings.Contains(err.Error(), `"code": 11`) {
			t.Errorf("ADD: %s, %v, want code 11 and %q", out, err, why)
			return ""
		}
		if !strings.Contains(out+err.Error(), why) {
			return fmt.Sprintf("ADD: %s, %v, want %q", out, err, why)
		}
		return ""
	})
}

// stream sends datagrams from one pod to another until the test ends, 200 a second, and counts those sent and those
// that arrive.
func (b *bed) stream(t *testing.T, from, to string) (sent, arrived *atomic.Int64) {
	t.Helper()
	p := b.pod(t, to)
	var in net.PacketConn
	must(t, p.do(func() (err error) { in, err = net.ListenPacket("udp", ":9000"); return err }))
	var out net.Conn
	must(t, b.pod(t, from).do(func() (err error) {
		out, err = net.Dial("udp", netip.AddrPortFrom(p.ips[0], 9000).String())
		return err
	}))
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended); in.Close(); out.Close() })
	sent, arrived = &atomic.Int64{}, &atomic.Int64{}
	go func() {
		for {
			switch _, _, err := in.ReadFrom(make([]byte, 1)); {
			case err == nil:
				arrived.Add(1)
			case errors.Is(err, net.ErrClosed):
				return
			}
		}
	}()
	go func() {
		for {
			if _, err := out.Write([]byte{0}); err == nil {
				sent.Add(1)
			}
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return sent, arrived
}
