package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A manifest that becomes invalid while the agent runs keeps its last valid content in force, is reported once by name,
// and is counted.
func TestRootBrokenManifestsChangeNothing(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{})
	c.addPods(t, "a@node1", "c@node2")
	c.warm(t)
	a, far := c.pod(t, "a"), c.pod(t, "c")
	flows := c.flows(t, "node1")
	problems := func(t *testing.T, want float64) {
		t.Helper()
		wait(t, 15*time.Second, func() string {
			if n := c.metric(t, "node1", "fairlead_input_problems"); n != want {
				return fmt.Sprintf("fairlead_input_problems is %v, want %v", n, want)
			}
			return ""
		})
	}
	good := map[string][]byte{}
	for _, name := range []string{"node_node1.yaml", "node_node2.yaml"} {
		data, err := os.ReadFile(filepath.Join(c.Manifests().Dir(), name))
		good[name] = must(t, data, err)
	}
	for _, bad := range []struct{ what, content, says string }{
		{"no YAML", "kind: Node\n\t{", "not YAML"},
		{"binary", "\x00\xff\xfe\x01", "not YAML"},
		{"no kind", "metadata: {name: node2}\n", "apiVersion or kind is missing"},
		{"another kind", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n", "v1 Secret is not read from manifests"},
		{"a misspelt key", "apiVersion: v1\nkind: Node\nmetadata: {name: node2}\nspec: {podCIDRRange: 10.77.9.0/24}\n", "podCIDRRange"},
		{"no CIDR", nodeYAML("node2", "10.77.900.0/24", "192.168.77.12"), "10.77.900.0/24"},
		{"host bits", nodeYAML("node2", "10.77.9.7/24", "192.168.77.12"), "did you mean 10.77.9.0/24?"},
		{"two of a family", nodeYAML("node2", "10.77.9.0/24,10.77.8.0/24", "192.168.77.12"), "a second podCIDR of the same family"},
		{"no address", nodeYAML("node2", "10.77.2.0/24", "192.168.77.1234"), "192.168.77.1234"},
		{"a good document, then a bad one", nodeYAML("node2", "10.77.9.0/24", "") + "---\n[1, 2]\n", "document 2"},
	} {
		t.Run(bad.what, func(t *testing.T) {
			before := len(c.log(t, "node1"))
			for name := range good {
				c.write(t, name, bad.content)
			}
			c.write(t, "new.yaml", bad.content)
			problems(t, 3)
			log := c.log(t, "node1")[before:]
			for _, name := range []string{"node_node1.yaml", "node_node2.yaml", "new.yaml"} {
				reported := false
				for line := range strings.Lines(log) {
					reported = reported || strings.Contains(line, "/"+name+":") && strings.Contains(line, strings.ReplaceAll(bad.says, `"`, `\"`))
				}
				if !reported {
					t.Errorf("no line of the log names %s and says %q:\n%s", name, bad.says, log)
				}
			}
			if now := c.flows(t, "node1"); now != flows {
				t.Errorf("flows have changed:\n%s", difference(flows, now))
			}
			for i := range a.ips {
				reach(t, a, far.ips[i])
			}
			if s, err := c.AgentState(t.Context(), "node1"); err != nil || !s.Ready {
				t.Errorf("node1 is %s, %v", s, err)
			}
			for name, content := range good {
				c.write(t, name, string(content))
			}
			must(t, 0, os.Remove(filepath.Join(c.Manifests().Dir(), "new.yaml")))
			problems(t, 0)
		})
	}
	c.addPods(t, "b@node1")
}

// A start with an invalid manifest fails: the agent does not know its last valid content.
func TestRootStartWithBrokenManifest(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{Nodes: 1, NoAgent: true})
	path := c.write(t, "broken.yaml", "kind: [")
	must(t, 0, c.AgentStart(t.Context(), "node1"))
	if code := c.ended(t, "node1", 10*time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if log := c.log(t, "node1"); !strings.Contains(log, "/etc/fairlead/manifests/broken.yaml: ") {
		t.Errorf("the log does not name the file:\n%s", log)
	}
	must(t, 0, os.Remove(path))
	must(t, 0, c.AgentStart(t.Context(), "node1"))
	must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), "node1"))
}

// An invalid config ends the agent with code 2 and the position of every mistake; the node is not changed.
func TestRootBrokenConfig(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{Nodes: 1})
	c.addPods(t, "a@node1", "b@node1")
	must(t, 0, c.AgentStop(labtest.Within(t, 10*time.Second), "node1"))
	picture := c.picture(t, "node1")
	file := c.host(t, "node1").host.Private("/etc/fairlead/agent.conf")
	good, err := os.ReadFile(file)
	must(t, 0, err)
	for _, bad := range []struct {
		content string
		says    []string
	}{
		{"ovsDatapathType: netdev\ntunnelTyp: geneve\n", []string{"agent.conf:2:1: tunnelTyp: unknown key", "tunnelType?"}},
		{"tunnelType: pigeon\n\ndefaultMTU: lots\n", []string{"agent.conf:1:13: tunnelType", "agent.conf:3:13: defaultMTU"}},
		{"featureGates:\n  AntreaPolicy: true\n", []string{"agent.conf:2:3: featureGates.AntreaPolicy", "is not supported"}},
		{"trafficEncryptionMode: ipsec\n", []string{"agent.conf:1:1: trafficEncryptionMode", "does not encrypt"}},
		{"noSNAT: true\n", []string{"agent.conf:1:", "noSNAT", "noEncap"}},
		{"a: [\n", []string{"agent.conf:"}},
	} {
		must(t, 0, os.WriteFile(file, []byte(bad.content), 0o644))
		before := len(c.log(t, "node1"))
		must(t, 0, c.AgentStart(t.Context(), "node1"))
		if code := c.ended(t, "node1", 10*time.Second); code != 2 {
			t.Errorf("%q: exit code %d, want 2", bad.content, code)
		}
		for _, want := range bad.says {
			if log := c.log(t, "node1")[before:]; !strings.Contains(log, want) {
				t.Errorf("%q: the log does not say %q:\n%s", bad.content, want, log)
			}
		}
	}
	if now := c.picture(t, "node1"); now != picture {
		t.Errorf("the node has changed:\n%s", difference(picture, now))
	}
	reach(t, c.pod(t, "a"), c.pod(t, "b").ips[0])
	must(t, 0, os.WriteFile(file, good, 0o644))
	must(t, 0, c.AgentStart(t.Context(), "node1"))
	must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), "node1"))
}

// An agent without a running Open vSwitch waits for it, reports that, and continues when it starts, one daemon after
// the other.
func TestRootAgentWaitsForOVS(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{Nodes: 1, NoAgent: true})
	node := c.host(t, "node1")
	must(t, 0, c.OVSStop(labtest.Within(t, 10*time.Second), "node1"))
	must(t, 0, c.AgentStart(t.Context(), "node1"))
	waits := func(says string) {
		t.Helper()
		wait(t, 20*time.Second, func() string {
			s, err := c.AgentState(t.Context(), "node1")
			last, _ := os.ReadFile(node.host.Private(lastError)) // missing is the same as empty
			reported := strings.Contains(s.Reason, says) && strings.Contains(string(last), says)
			if err != nil || s.PID == 0 || s.Ready || !reported {
				return fmt.Sprintf("the agent is %s, %v, its last error %q; want it to wait and say %q", s, err, last, says)
			}
			return ""
		})
	}
	waits("ovsdb-server")
	// The plugin is not installed yet: it is when the agent is ready.
	must(t, 0, os.Symlink(filepath.Join(binDir, "fairlead"), node.host.Private("/opt/cni/bin/fairlead")))
	for verb, code := range map[lab.Verb]uint{lab.STATUS: 50, lab.ADD: 11} {
		if e := plugin(t, node, verb); e.Code != code || !strings.Contains(e.Msg+e.Details, "ovsdb-server") {
			t.Errorf("%s: %+v, want code %d and the cause", verb, e, code)
		}
	}
	must(t, 0, c.OVSStart(labtest.Within(t, 10*time.Second), "node1", lab.OVSDB))
	waits("ovs-vswitchd")
	must(t, 0, c.OVSStart(labtest.Within(t, 10*time.Second), "node1"))
	must(t, 0, c.WaitReady(labtest.Within(t, 30*time.Second), "node1"))
	c.addPods(t, "a@node1", "b@node1")
	for i, ip := range c.pod(t, "b").ips {
		reach(t, c.pod(t, "a"), ip)
		reach(t, c.pod(t, "a"), c.family.FarAddrs()[i].Addr())
	}
}

// Open vSwitch is stopped and started under a running agent. All flows are gone, after "exit --cleanup" all devices
// too, and the agent restores them.
func TestRootOVSRestarts(t *testing.T) {
	c := up(t, lab.Options{})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	a, b, far := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	before, err := c.AgentState(t.Context(), "node1")
	must(t, 0, err)
	for _, restart := range []struct {
		what string
		end  func() error
	}{
		{"both stopped", func() error { return c.OVSStop(labtest.Within(t, 10*time.Second), "node1") }},
		{"both killed", func() error { return c.OVSKill(labtest.Within(t, 10*time.Second), "node1") }},
		{"ovs-vswitchd killed", func() error { return c.OVSKill(labtest.Within(t, 10*time.Second), "node1", lab.Vswitchd) }},
		{"ovsdb-server killed", func() error { return c.OVSKill(labtest.Within(t, 10*time.Second), "node1", lab.OVSDB) }},
		{"cleaned up", func() error {
			c.host(t, "node1").exec(t, "ovs-appctl exit --cleanup")
			wait(t, 10*time.Second, func() string {
				if _, err := c.host(t, "node1").run("ip", "link", "show", "fairlead-gw0"); err == nil {
					return "the gateway is still there"
				}
				return ""
			})
			return c.OVSStop(labtest.Within(t, 10*time.Second), "node1")
		}},
	} {
		must(t, 0, restart.end())
		wait(t, 20*time.Second, func() string { // it detects the change
			if s, err := c.AgentState(t.Context(), "node1"); err != nil || s.Ready {
				return restart.what + ": the agent says that it is ready"
			}
			return ""
		})
		if e := plugin(t, c.host(t, "node1"), lab.STATUS); e.Code != 50 || !strings.Contains(e.Msg+e.Details, "ovs") {
			t.Errorf("%s: STATUS says %+v", restart.what, e)
		}
		must(t, 0, c.OVSStart(labtest.Within(t, 20*time.Second), "node1"))
		start := time.Now()
		for _, way := range []struct {
			from place
			to   place
		}{{a, b}, {a, far}, {far, b}, {c.host(t, "node1"), a}} {
			for _, to := range way.to.ips {
				wait(t, 30*time.Second, func() string {
					_, err := way.from.run("ping", "-c1", "-W0.3", to.String())
					return errText(err)
				})
			}
		}
		t.Logf("%s: all talk again %s after the start", restart.what, time.Since(start).Round(10*time.Millisecond))
		must(t, 0, c.WaitReady(labtest.Within(t, 30*time.Second), "node1"))
		for i := range a.ips {
			reach(t, a, b.ips[i])
			reach(t, a, far.ips[i])
			reach(t, a, c.family.FarAddrs()[i].Addr())
			reach(t, c.host(t, "node1"), far.ips[i])
		}
		stream(t, a, far, far.ips[0], 1<<20)
	}
	if now, err := c.AgentState(t.Context(), "node1"); err != nil || now.PID != before.PID {
		t.Errorf("the agent was %s and is %s, %v: want the same process", before, now, err)
	}
	c.addPods(t, "d@node1")
	reach(t, c.pod(t, "d"), far.ips[0])
}

func errText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// A pod that requests an address of an IPPool gets none of the podCIDR, and nothing is left of the attempt.
func TestRootBridgedPodsAreRefused(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet decides it")
	c := up(t, lab.Options{Nodes: 1})
	c.addPods(t, "a@node1")
	node := c.host(t, "node1")
	left := func() string {
		return node.exec(t, "ip -o link show type veth") + node.exec(t, "ovs-vsctl list-ports br-int") +
			node.exec(t, "ls /var/lib/fairlead/host-local") + c.flows(t, "node1")
	}
	before := left()
	annotated := func(pod, annotation string) string {
		return strings.Replace(pod, "metadata: {", fmt.Sprintf("metadata: {annotations: {%s}, ", annotation), 1)
	}
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: bridged, annotations: {ipam.antrea.io/ippools: lan}}\n"
	for pod, manifests := range map[string][]string{
		"default/pool": {annotated(podYAML("pool", "node1"), "ipam.antrea.io/ippools: lan")},
		"default/ip":   {annotated(podYAML("ip", "node1"), "ipam.antrea.io/pod-ips: 192.168.77.77")},
		"bridged/any":  {namespace, strings.Replace(podYAML("any", "node1"), "{name: any", "{namespace: bridged, name: any", 1)},
	} {
		c.apply(t, manifests...)
		wait(t, 15*time.Second, func() string {
			states, err := c.PodStates()
			for _, s := range must(t, states, err) {
				if s.Pod == pod && strings.Contains(s.LastError, "bridges no pods: set enableBridgingMode: true") &&
					strings.Contains(s.LastError, "ipam.antrea.io/") {
					return ""
				}
			}
			return fmt.Sprintf("%s is not refused in words: %+v", pod, states)
		})
		// Retried: ip(8) fails while Linux removes a namespace with the other end of a veth.
		wait(t, 10*time.Second, func() string {
			if now := left(); now != before {
				return fmt.Sprintf("something is left of %s:\n%s", pod, difference(before, now))
			}
			return ""
		})
		c.remove(t, manifests...)
		must(t, 0, c.WaitPods(labtest.Within(t, 20*time.Second)))
	}
	c.addPods(t, "pool@node1") // without the annotation it is served
}
