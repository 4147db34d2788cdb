package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/test/lab/kubelet/exec"
)

// kubelets serves commands in agents' Pods with run, which gets the Pod's name.
func (c *fixture) kubelets(run func(pod string, command []string) (out, errs string, err error)) int32 {
	c.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	c.must(err)
	done := make(chan error, 1)
	go func() {
		done <- exec.Serve(listener, func(where exec.Container, command []string, stdout, stderr io.Writer) error {
			if where.Namespace != "kube-system" || where.Name != "fairlead-agent" {
				return fmt.Errorf("a command in %v", where)
			}
			out, errs, err := run(where.Pod, command)
			fmt.Fprint(stdout, out)
			fmt.Fprint(stderr, errs)
			return err
		})
	}()
	c.t.Cleanup(func() {
		listener.Close()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// agentOn creates a Ready Node with that kubelet, and the Pod of an agent that runs there.
func (c *fixture) agentOn(name string, port int32) {
	c.t.Helper()
	n := c.node(name, corev1.ConditionTrue)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	_, err := c.client.Kubernetes.CoreV1().Nodes().UpdateStatus(c.t.Context(), n, metav1.UpdateOptions{})
	c.must(err)
	pods := c.client.Kubernetes.CoreV1().Pods("kube-system")
	p, err := pods.Create(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + name,
		Labels: map[string]string{"app.kubernetes.io/name": "fairlead-agent"}}, Spec: corev1.PodSpec{NodeName: name,
		HostNetwork: true, Containers: []corev1.Container{{Name: "fairlead-agent", Image: "i"}}}}, metav1.CreateOptions{})
	c.must(err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", ContainerStatuses: []corev1.ContainerStatus{{
		Name: "fairlead-agent", Image: "i", ImageID: "i", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	_, err = pods.UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{})
	c.must(err)
}

// reader is the token of an account that may only read Nodes and Pods.
func (c *fixture) reader() string {
	c.t.Helper()
	c.apply(`{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader, namespace: default}}`)
	c.apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, rules: [{apiGroups: [""],
		resources: [nodes, pods], verbs: [get, list]}]}`)
	c.apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: reader}, roleRef: {
		apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}, subjects: [{kind: ServiceAccount, name: reader, namespace: default}]}`)
	token, err := c.client.Kubernetes.CoreV1().ServiceAccounts("default").CreateToken(c.t.Context(), "reader",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	c.must(err)
	may := func(verb, resource string) bool {
		resource, sub, _ := strings.Cut(resource, "/")
		spec := authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:default:reader",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: resource, Subresource: sub}}
		r, err := c.client.Kubernetes.AuthorizationV1().SubjectAccessReviews().Create(c.t.Context(),
			&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		c.must(err)
		return r.Status.Allowed
	}
	// The API server's watch of roles lags: wait until this role applies, and not one that another test has created.
	c.until(func() string {
		if !may("list", "nodes") {
			return "the reader may not list Nodes"
		}
		for _, verb := range []string{"get", "create"} {
			if may(verb, "pods/exec") {
				return "the reader may run commands in Pods"
			}
		}
		if may("get", "configmaps") {
			return "the reader may read ConfigMaps"
		}
		return ""
	})
	return token.Status.Token
}

// knows is an agent's answer, each path as "node from to state cause".
func knows(node string, paths ...string) string {
	a := agents.Answer{Node: node, Reach: &api.AgentReach{}}
	for _, words := range paths {
		p := api.ReachPath{ReachFinding: api.ReachFinding{Family: "IPv4", Since: time.Unix(1764000000, 0)}}
		_, _ = fmt.Sscan(words, &p.Node, &p.FromThere, &p.ToThere, &p.State, &p.Cause) // some have no cause
		if p.Cause == "firewall" {
			p.DropsIn = "rule 5 of chain input"
		}
		a.Reach.Asked++
		if p.State == "reached" {
			a.Reach.Reached++
		} else {
			a.Reach.Findings = append(a.Reach.Findings, p.ReachFinding)
		}
		a.Reach.Paths = append(a.Reach.Paths, p)
	}
	out, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// From outside the nodes both agents are queried by commands in their Pods, and errors are reported.
func TestKubeReach(t *testing.T) {
	c := newFixture(t)
	said := map[string]string{}
	var mu sync.Mutex
	var asked []string
	port := c.kubelets(func(pod string, command []string) (string, string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, strings.Join(command, " "))
		if text, refused := strings.CutPrefix(said[pod], "error: "); refused {
			return "", text, fmt.Errorf("no such command")
		}
		return said[pod], "", nil
	})
	c.agentOn("a", port)
	c.agentOn("b", port)
	c.node("bare", corev1.ConditionTrue)
	says := func(code int, a, b string, args []string, words ...string) {
		t.Helper()
		said["agent-a"], said["agent-b"] = a, b
		out, got := c.run(append([]string{"reach"}, args...)...)
		for _, w := range words {
			if flat := strings.Join(strings.Fields(out), " "); got != code || !strings.Contains(flat, w) {
				t.Errorf("%v: exit code %d, want %d, and %q in\n%s", args, got, code, w, out)
			}
		}
	}
	ab, ba := []string{"a", "b"}, []string{"b", "a"}
	well := [2]string{knows("a", "b works works reached"), knows("b", "a works works reached")}
	says(0, well[0], well[1], ab, "a b IPv4 pass 2025-11-24 16:00:00 UTC", "b a IPv4 pass")
	if len(asked) != 2 || strings.Contains(asked[0], " -c ") || !strings.HasPrefix(asked[0], "fairleadctl reach --node-local -o json --timeout 25s ") {
		t.Errorf("asked %q", asked)
	}
	fails := [2]string{knows("a", "b works fails broken not-found"), knows("b", "a fails unknown broken firewall")}
	for _, order := range [][]string{ab, ba} {
		says(exitFailing, fails[0], fails[1], order, "a b IPv4 do not pass", "b a IPv4 pass", "pods-firewall",
			"no IPv4 packets pass from pods on a to pods on b: node b drops the tunnel's packets on the way in, rule 5 of chain input",
			"sudo fairleadctl doctor firewall # on node b", "evidence: node b: no packets from node a arrive")
	}
	out, code := c.run("reach", "a", "b", "-o", "json")
	var r struct {
		Directions []struct{ From, To, Family, State, Cause, At string }
		Findings   []struct{ Kind, Severity string }
	}
	err := json.Unmarshal([]byte(out), &r)
	if err != nil || code != exitFailing || len(r.Directions) != 2 || r.Directions[0].State != "fails" ||
		r.Directions[0].At != "b" || len(r.Findings) != 1 || r.Findings[0].Kind != "pods-firewall" || r.Findings[0].Severity != "failing" {
		t.Errorf("%v, exit code %d: %+v\n%s", err, code, r, out)
	}
	says(cli.ExitError, knows("a", "b fails unknown broken not-found"), `{"node":"b"}`, ab, "node b does not probe: reachability is none in its agent's config", "not-probed")
	says(cli.ExitError, well[0], "error: unknown command \"reach\"", []string{"a", "bare"}, "it has no Pod of fairlead-agent")
	says(cli.ExitError, knows("a", "b fails unknown unknown"), "error: unknown command \"reach\"", ab, "its agent is of an earlier version")
	says(cli.ExitError, knows("a", "b unknown unknown away agent-away"), `{"error":"the agent does not answer at 127.0.0.1:10350"}`, ab,
		"the agent of node b does not answer")
	says(cli.ExitError, `{"node":"a","reach":{"asked":9},"refused":"the agent already probes 4 nodes on request"}`, knows("b"), ab,
		"node a does not probe: the agent already probes 4 nodes on request")
	says(cli.ExitError, well[0], well[1], []string{"a", "none"}, "there is no Node none: kubectl get nodes")
	says(cli.ExitUsage, well[0], well[1], []string{"a", "a"}, "a is named twice")
	says(cli.ExitUsage, well[0], well[1], []string{"a"}, "want two nodes")
	c.must(c.client.Kubernetes.CoreV1().Pods("kube-system").Delete(t.Context(), "agent-b", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	says(0, well[0], "", ab, "a b IPv4 pass", "b a IPv4 pass")
	c.letIn(c.reader())
	says(cli.ExitError, well[0], well[1], []string{"a", "bare"}, "the agent of node a could not be queried",
		"are not allowed with these credentials", "get and create on pods/exec")
	c.letIn("unknown")
	says(cli.ExitError, well[0], well[1], ab, "still valid?")
}

// status and doctor query all agents if they probe: a fault that several of them report is one finding.
func TestKubeReachOfAll(t *testing.T) {
	c := newFixture(t)
	t.Cleanup(c.removeFinalizers)
	said := map[string]string{}
	var mu sync.Mutex
	asked := 0
	port := c.kubelets(func(pod string, _ []string) (string, string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return said[pod], "", nil
	})
	for _, n := range []string{"a", "b", "c", "d"} {
		c.agentOn(n, port)
	}
	c.node("bare", corev1.ConditionTrue)
	flat := func(args ...string) (string, int) {
		out, code := c.run(args...)
		return strings.Join(strings.Fields(out), " "), code
	}
	row := func(n string) string { return n + " yes - 127.0.0.1 not ready: Running " }
	if out, code := flat("status"); code != 0 || !strings.Contains(out, row("a")+"- 0") || asked > 0 {
		t.Errorf("agents that do not probe are asked %d times, exit code %d: %s", asked, code, out)
	}
	c.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: fairlead-config, namespace: kube-system}, data: {agent.conf: "reachability: probe\n"}}`)
	t.Cleanup(func() {
		_ = c.s.Objects().Remove(context.Background(), "configmaps", "kube-system", "fairlead-config")
	})

	said["agent-a"] = knows("a", "b works fails broken not-found", "c works works reached", "d works works reached")
	said["agent-b"] = knows("b", "a fails unknown broken firewall", "c fails unknown broken firewall", "d fails unknown broken firewall")
	said["agent-c"] = knows("c", "a works works reached", "b works fails broken not-found", "d works works reached")
	said["agent-d"] = `{"node": "d"}`
	out, code := flat("status")
	for _, part := range []string{row("a") + "2/3, not: b 0", row("b") + "0/3, not: a,c,d 0", row("c") + "2/3, not: b 0", row("d") + "- 0",
		"not examined: which nodes' pods are reached from bare: it has no Pod of fairlead-agent"} {
		if code != 0 || !strings.Contains(out, part) {
			t.Errorf("exit code %d, and %q is not in %s", code, part, out)
		}
	}
	kinds, code := c.kinds("doctor")
	if want := []string{"pods-firewall", "not-probed"}; code != exitFailing || !slices.Equal(kinds[len(kinds)-2:], want) {
		t.Errorf("doctor finds %v, exit code %d, want %v", kinds, code, want)
	}
	out, code = flat("doctor", "reach")
	for _, part := range []string{"reach 2 findings", "Problem 1: reach: pods-firewall no IPv4 packets pass from pods on a to pods on b: node b drops",
		"The same: from c to b in IPv4", "evidence: node b: no packets from node a arrive", "sudo fairleadctl doctor firewall # on node b",
		"other nodes are not probed from d", "unknown: which nodes' pods are reached from bare"} {
		if code != exitFailing || !strings.Contains(out, part) {
			t.Errorf("exit code %d, and %q is not in %s", code, part, out)
		}
	}
	c.letIn(c.reader())
	if out, code := flat("status"); code != 0 || !strings.Contains(out, "not examined: which nodes' pods are reached: the ConfigMap fairlead-config may not be read") {
		t.Errorf("not let in: exit code %d: %s", code, out)
	}
	for verbs, want := range map[string]string{"get": "for which these credentials lack the rights", "create": "for which these credentials lack the rights",
		"get, create": row("c") + "2/3, not: b 0"} {
		c.apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, rules: [{apiGroups: [""],
			resources: [nodes, pods, configmaps], verbs: [get, list]}, {apiGroups: [""], resources: [pods/exec], verbs: [` + verbs + `]}]}`)
		c.until(func() string { // the API server's watch of roles lags
			if out, code := flat("status"); code != 0 || !strings.Contains(out, want) {
				return fmt.Sprintf("with %s on pods/exec, exit code %d: %s", verbs, code, out)
			}
			return ""
		})
	}
}
