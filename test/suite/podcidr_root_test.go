package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const (
	cidrs1, addrs1 = "10.77.1.0/24,fd77:0:0:1::/64", "192.168.77.11,fd77::11" // of node1
	lastError      = "/run/fairlead/last-error"
)

// cniError is a CNI plugin's error output.
type cniError struct {
	Code         uint   `json:"code"`
	Msg, Details string // encoding/json ignores case
}

// plugin calls the CNI plugin of a node as a runtime does, without the network configuration that the agent wrote.
// Success is the zero error.
func plugin(t *testing.T, node place, verb lab.Verb) (e cniError) {
	t.Helper()
	cmd := exec.Command(filepath.Join(conflist.DefaultBinDir, "fairlead"))
	cmd.Env = []string{"CNI_COMMAND=" + string(verb), "CNI_PATH=" + conflist.DefaultBinDir}
	if verb != lab.STATUS {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID=unknown", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/unknown")
	}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "fairlead", "type": "fairlead"}`)
	var out strings.Builder
	cmd.Stdout = &out
	must(t, 0, node.do(cmd.Start))
	if err := cmd.Wait(); err == nil {
		return cniError{}
	}
	if err := json.Unmarshal([]byte(out.String()), &e); err != nil || e.Code == 0 {
		t.Fatalf("%s: the plugin's error is %q: %v", verb, out.String(), err)
	}
	return e
}

// ended waits until the agent has exited by itself and returns its exit code.
func (c cluster) ended(t *testing.T, node string, limit time.Duration) (code int) {
	t.Helper()
	wait(t, limit, func() string {
		s, err := c.AgentState(t.Context(), node)
		must(t, 0, err)
		if s.Exit == nil {
			return "the agent still runs: " + s.String()
		}
		code = *s.Exit
		return ""
	})
	return code
}

// setNodes replaces all Nodes.
func (c cluster) setNodes(t *testing.T, manifests ...string) {
	t.Helper()
	nodes, err := c.Manifests().Nodes()
	must(t, 0, err)
	for _, n := range nodes {
		c.remove(t, nodeYAML(n.Name, "", ""))
	}
	if len(manifests) > 0 {
		c.apply(t, manifests...)
	}
}

// An agent whose node has no podCIDR of its own reports it once and exits with code 78.
func TestRootNoPodCIDR(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1, Config: []byte("podCIDRWait: 1s")})
	good := nodeYAML("node1", cidrs1, addrs1)
	for _, bad := range []struct {
		name     string
		nodes    []string
		says     string
		mentions []string
	}{
		{name: "empty", nodes: []string{nodeYAML("node1", "", addrs1), nodeYAML("other", "10.77.2.0/24", "")},
			says: "node node1 has no podCIDR", mentions: []string{"10.77.2.0/24 by other"}},
		{name: "no Node", nodes: []string{nodeYAML("other", "10.77.2.0/24", "")},
			says: "there is no Node node1", mentions: []string{"other", "--node-name"}},
		{name: "no Node at all", says: "there is no Node node1", mentions: []string{"none"}},
		{name: "equal", nodes: []string{good, nodeYAML("other", "10.77.1.0/24", "192.168.77.12")},
			says: "node node1 has the podCIDR 10.77.1.0/24, and so has node other"},
		{name: "equal, IPv6", nodes: []string{good, nodeYAML("other", "10.77.2.0/24,fd77:0:0:1::/64", "192.168.77.12")},
			says: "node node1 has the podCIDR fd77:0:0:1::/64, and so has node other"},
		{name: "inside another", nodes: []string{good, nodeYAML("other", "10.77.0.0/16", "192.168.77.12")},
			says: "podCIDR 10.77.1.0/24 of node node1 overlaps 10.77.0.0/16 of node other"},
		{name: "around another", nodes: []string{good, nodeYAML("other", "10.77.1.64/26", "192.168.77.12")},
			says: "podCIDR 10.77.1.0/24 of node node1 overlaps 10.77.1.64/26 of node other"},
		{name: "own address", nodes: []string{nodeYAML("node1", "192.168.77.0/24", addrs1)},
			says: "podCIDR 192.168.77.0/24 of node node1 holds the address 192.168.77.11 of node node1"},
		{name: "other's address", nodes: []string{good, nodeYAML("other", "10.77.2.0/24", "10.77.1.77")},
			says: "podCIDR 10.77.1.0/24 of node node1 holds the address 10.77.1.77 of node other"},
		{name: "underlay", nodes: []string{nodeYAML("node1", "192.168.77.128/25", addrs1)},
			says: "podCIDR 192.168.77.128/25 of node node1 overlaps 192.168.77.0/24, the network of " + c.Transport()},
		{name: "no room", nodes: []string{nodeYAML("node1", "10.77.1.0/31", addrs1)},
			says: "podCIDR 10.77.1.0/31 of node node1 has no room for pods"},
	} {
		t.Run(bad.name, func(t *testing.T) {
			runs(t, c, good)
			must(t, 0, c.AgentStop(labtest.Within(t, 10*time.Second), "node1"))
			c.setNodes(t, bad.nodes...)
			before, start := len(c.log(t, "node1")), time.Now()
			must(t, 0, c.AgentStart(t.Context(), "node1"))
			code := c.ended(t, "node1", 15*time.Second)
			if code != 78 {
				t.Errorf("exit code %d, want 78", code)
			}
			if took := time.Since(start); took < 900*time.Millisecond {
				t.Errorf("ended after %s, want a wait of 1 s", took)
			}
			mentions := append(bad.mentions, bad.says, "Waited 1s for it (podCIDRWait)")
			checkRefusal(t, c, c.log(t, "node1")[before:], bad.says, mentions)
		})
	}
	runs(t, c, good)
	node := c.host(t, "node1")
	if e := plugin(t, node, lab.STATUS); e != (cniError{}) {
		t.Errorf("STATUS when all is well again: %+v", e)
	}
	if _, err := os.Stat(node.host.Private(lastError)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the last error is still there: %v", err)
	}
}

// runs makes the Node valid and waits for a ready agent and its network configuration.
func runs(t *testing.T, c cluster, node string) {
	t.Helper()
	c.setNodes(t, node)
	if s, err := c.AgentState(t.Context(), "node1"); err != nil || s.PID == 0 {
		must(t, 0, c.AgentStart(t.Context(), "node1"))
	}
	must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), "node1"))
	wait(t, 10*time.Second, func() string {
		if _, err := os.Stat(c.host(t, "node1").host.Private(conflist.DefaultPath)); err != nil {
			return "no network configuration: " + err.Error()
		}
		return ""
	})
}

// checkRefusal checks all outputs for operators.
func checkRefusal(t *testing.T, c cluster, log, says string, mentions []string) {
	t.Helper()
	node := c.host(t, "node1")
	if n := strings.Count(log, "\nfairlead-agent: "+says); n != 1 {
		t.Errorf("the log ends %d times with %q, want once:\n%s", n, says, log)
	}
	if n := strings.Count(log, says); n > 2 { // once when the wait begins
		t.Errorf("the log says %q %d times, want at most twice:\n%s", says, n, log)
	}
	last, err := os.ReadFile(node.host.Private(lastError))
	must(t, 0, err)
	messages := map[string]string{"log": log, "last error": string(last)}
	for verb, code := range map[lab.Verb]uint{lab.STATUS: 50, lab.ADD: 11} {
		e := plugin(t, node, verb)
		if e.Code != code {
			t.Errorf("%s: code %d, want %d: %s", verb, e.Code, code, e.Msg)
		}
		messages[string(verb)] = e.Msg + e.Details
	}
	for where, message := range messages {
		for _, want := range mentions {
			if !strings.Contains(message, want) {
				t.Errorf("%s does not say %q:\n%s", where, want, message)
			}
		}
	}
	if _, err := os.Stat(node.host.Private(conflist.DefaultPath)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the network configuration is still there: %v", err)
	}
}

// A podCIDR that is assigned late is applied at once.
func TestRootLatePodCIDR(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{Nodes: 1, NoAgent: true, Config: []byte("podCIDRWait: 2m")})
	c.setNodes(t)
	must(t, 0, c.AgentStart(t.Context(), "node1"))
	for _, step := range []struct{ node, says string }{
		{"", "there is no Node node1"},
		{nodeYAML("node1", "", addrs1), "node node1 has no podCIDR"},
	} {
		if step.node != "" {
			c.apply(t, step.node)
		}
		wait(t, 10*time.Second, func() string {
			if s, err := c.AgentState(t.Context(), "node1"); err != nil || s.PID == 0 || !strings.Contains(s.Reason, step.says) {
				return s.String()
			}
			return ""
		})
	}
	c.apply(t, nodeYAML("node1", cidrs1, addrs1))
	start := time.Now()
	must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), "node1"))
	t.Logf("ready %s after the podCIDR had come", time.Since(start).Round(time.Millisecond))
	c.addPods(t, "a@node1")
}

// A new node with the podCIDR of a running node: nothing changes for running pods, all agents report the problem, and
// it ends when the new node is removed.
func TestRootNewcomerWithTakenPodCIDR(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{})
	c.addPods(t, "a@node1", "b@node1", "c@node2", "d@node1")
	c.warm(t)
	a, far := c.pod(t, "a"), c.pod(t, "c")
	flows := sorted(c.flows(t, "node2"))
	talk := func() {
		t.Helper()
		for i := range a.ips {
			reach(t, a, far.ips[i])
			reach(t, a, c.pod(t, "b").ips[i])
			reach(t, a, c.family.FarAddrs()[i].Addr())
		}
	}
	// Its name sorts before node1; the decision is by age.
	newcomer := strings.Replace(nodeYAML("intruder", "10.77.1.0/24", "192.168.77.66"), "{name: intruder}",
		`{name: intruder, creationTimestamp: "2100-01-01T00:00:00Z"}`, 1)
	c.apply(t, newcomer)
	const sentence = "node node1 has the podCIDR 10.77.1.0/24, and so has node intruder"
	for _, node := range c.Nodes() {
		wait(t, 5*time.Second, func() string {
			if n := c.metric(t, node, "fairlead_peers_refused"); n != 1 {
				return node + " refuses no peer"
			}
			if log := c.log(t, node); !strings.Contains(log, "node intruder has the podCIDR 10.77.1.0/24, and so has node node1") {
				return node + " does not name the newcomer:\n" + log
			}
			return ""
		})
	}
	talk()
	if now := sorted(c.flows(t, "node2")); !slices.Equal(now, flows) {
		t.Errorf("flows of node2 have changed from\n%s\nto\n%s", strings.Join(flows, "\n"), strings.Join(now, "\n"))
	}
	wait(t, 5*time.Second, func() string { // the metric comes first
		state, err := c.AgentState(t.Context(), "node1")
		must(t, 0, err)
		if state.Ready || !strings.Contains(state.Reason, sentence) {
			return fmt.Sprintf("node1 is %s, want: not ready, %s", state, sentence)
		}
		return ""
	})
	if state, err := c.AgentState(t.Context(), "node2"); err != nil || !state.Ready {
		t.Errorf("node2, whose podCIDR is its own, is %s, %v", state, err)
	}
	out, err := c.CNI(t.Context(), "node1", lab.ADD, "default/new")
	if err == nil || !strings.Contains(out, sentence) || !strings.Contains(out, `"code": 11`) {
		t.Errorf("ADD: %v, want code 11 and %q: %s", err, sentence, out)
	}
	if e := plugin(t, c.host(t, "node1"), lab.STATUS); e.Code != 50 || !strings.Contains(e.Msg+e.Details, sentence) {
		t.Errorf("STATUS: %+v, want code 50 and %q", e, sentence)
	}
	c.remove(t, podYAML("d", "node1")) // DEL still works
	must(t, 0, c.WaitPods(labtest.Within(t, 20*time.Second)))

	c.remove(t, newcomer)
	must(t, 0, c.WaitReady(labtest.Within(t, 10*time.Second), "node1"))
	for _, node := range c.Nodes() {
		wait(t, 5*time.Second, func() string {
			if n := c.metric(t, node, "fairlead_peers_refused"); n != 0 {
				return node + " still refuses a peer"
			}
			return ""
		})
	}
	if out, err := c.CNI(t.Context(), "node1", lab.ADD, "default/new"); err != nil {
		t.Errorf("ADD after the newcomer went: %v %s", err, out)
	}
	if out, err := c.CNI(t.Context(), "node1", lab.DEL, "default/new"); err != nil {
		t.Errorf("DEL: %v %s", err, out)
	}
	talk()
}

func sorted(text string) []string { return slices.Sorted(strings.Lines(text)) }

// With enableBridgingMode the agent serves a node that has no podCIDR: a routed pod waits with a reason, and a podCIDR
// that is assigned later is applied at once.
func TestRootBridgingWithoutPodCIDR(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1, Config: []byte("podCIDRWait: 1s\nenableBridgingMode: true")})
	must(t, 0, c.AgentStop(labtest.Within(t, 10*time.Second), "node1"))
	c.setNodes(t, nodeYAML("node1", "", addrs1))
	must(t, 0, c.AgentStart(t.Context(), "node1"))
	const sentence = "node node1 has no podCIDR"
	must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), "node1"))
	if e := plugin(t, c.host(t, "node1"), lab.STATUS); e != (cniError{}) {
		t.Errorf("STATUS: %+v, want none: bridged pods are served", e)
	}
	c.awaitMetric(t, "node1", "fairlead_degraded", 1) // as it serves no routed pods
	if out, err := c.CNI(t.Context(), "node1", lab.ADD, "default/a"); err == nil || !strings.Contains(out, sentence) ||
		!strings.Contains(out, `"code": 11`) {
		t.Errorf("ADD: %v %s, want code 11 and %q", err, out, sentence)
	}
	c.apply(t, nodeYAML("node1", cidrs1, addrs1))
	wait(t, 10*time.Second, func() string {
		if n := c.metric(t, "node1", "fairlead_ready"); n != 1 {
			return "node1 is not ready"
		}
		return ""
	})
	c.addPods(t, "a@node1")
}
