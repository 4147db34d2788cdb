package functions

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
)

// runtime checks which CNI verbs containerd 2.3 calls beside ADD and DEL, and what becomes of pods when a plugin behind
// Fairlead fails.
func (c functions) runtime(t *testing.T) {
	node, err := c.API.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	cluster.Must(t, err)
	if version := node.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(version, "containerd://2.3.") {
		t.Errorf("the runtime is %s", version)
	}
	t.Run("STATUS", c.status)
	t.Run("another plugin fails", c.failingPlugin)
	t.Run("GC", func(t *testing.T) { // containerd has been started again since
		if n := c.answered(t, "node1", "GC"); n != 0 {
			t.Errorf("%d times GC: docs say that containerd never calls it", n)
		}
	})
}

// status checks that the runtime asks all agents for their STATUS, and that a node is not Ready while its Open vSwitch
// hangs.
func (c functions) status(t *testing.T) {
	for _, node := range c.Nodes() {
		cluster.Eventually(t, func() error {
			if c.answered(t, node, "STATUS") == 0 {
				return fmt.Errorf("no STATUS on %s", node)
			}
			return nil
		})
	}
	const node = "node1"
	pod, err := c.PodOf(t.Context(), "fairlead-ovs", node)
	cluster.Must(t, err)
	database := func(signal string) {
		c.Run(t, "exec", "-n", "kube-system", pod, "-c", "fairlead-ovs", "--", "sh", "-c",
			"kill -"+signal+` "$(cat "$OVS_RUNDIR/ovsdb-server.pid")"`)
	}
	database("STOP")
	c.notReady(t, node, "ovsdb-server is down")
	database("CONT")
	c.AwaitReady(t)
}

// notReady waits until a node is not Ready, because its runtime says that the network is not, for a reason.
func (c functions) notReady(t *testing.T, node, reason string) {
	t.Helper()
	cluster.Eventually(t, func() error {
		n, err := c.API.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, s := range n.Status.Conditions {
			if s.Type != corev1.NodeReady {
				continue
			}
			if s.Status == corev1.ConditionFalse && strings.Contains(s.Message, "NetworkReady=false") && strings.Contains(s.Message, reason) {
				return nil
			}
			err = fmt.Errorf("%s is Ready: %s, %s", node, s.Status, s.Message)
		}
		return err
	})
}

// failingPlugin checks that a node is not Ready while a plugin behind Fairlead is missing, and that nothing is left of
// pods, a routed and a bridged one, whose ADD fails at it: the runtime calls no DEL of Fairlead, since DEL fails at
// that plugin first (containerd#12130).
func (c functions) failingPlugin(t *testing.T) {
	const node, plugin = "node1", "always-fails"
	const script = `#!/bin/sh
[ "$CNI_COMMAND" = STATUS ] && exit
echo '{"cniVersion": "1.0.0", "code": 100, "msg": "it always fails"}'
exit 1
`
	before, adds, dels := c.held(t, node), c.answered(t, node, "ADD"), c.answered(t, node, "DEL")
	c.chain(t, node, plugin)
	c.notReady(t, node, plugin)
	file := c.Host(node).Private(conflist.DefaultBinDir + "/" + plugin)
	cluster.Must(t, os.WriteFile(file, []byte(script), 0o755))
	t.Cleanup(func() { cluster.Must(t, os.Remove(file)) })
	c.AwaitReady(t)
	c.apply(t, "testdata/unlucky.yaml")
	for _, pod := range []string{"unlucky", "unlucky-vlan10"} {
		cluster.Eventually(t, func() error {
			out, err := c.Kubectl(t.Context(), "get", "events", "--field-selector=reason=FailedCreatePodSandBox,involvedObject.name="+pod,
				"-o", "jsonpath={.items[*].message}")
			if err == nil && !strings.Contains(out, plugin) {
				err = fmt.Errorf("%s: no Event about %s: %q", pod, plugin, out)
			}
			return err
		})
	}
	c.Run(t, "delete", "pods", "-l", "app=unlucky")
	cluster.Eventually(t, func() error {
		had, now := strings.Fields(before), c.held(t, node) // what was held for the boot before may have gone
		more := slices.DeleteFunc(strings.Fields(now), func(word string) bool { return slices.Contains(had, word) })
		if len(more) > 0 {
			return fmt.Errorf("%q is left; before:\n%s\nnow:\n%s", more, before, now)
		}
		return nil
	})
	adds, dels = c.answered(t, node, "ADD")-adds, c.answered(t, node, "DEL")-dels
	if adds < 2 || dels != 0 {
		t.Errorf("%d times ADD, %d times DEL: nothing is tried", adds, dels)
	}
}

// chain adds a plugin behind those of Fairlead's network on a node. Its containerd is killed and started again, when it
// might call GC.
func (c functions) chain(t *testing.T, node, plugin string) {
	t.Helper()
	file := c.Host(node).Private(conflist.DefaultPath)
	write := func(content []byte) {
		cluster.Must(t, os.WriteFile(file+".new", content, 0o644))
		cluster.Must(t, os.Rename(file+".new", file))
	}
	text, err := os.ReadFile(file)
	cluster.Must(t, err)
	var list map[string]any
	cluster.Must(t, json.Unmarshal(text, &list))
	list["plugins"] = append(list["plugins"].([]any), map[string]any{"type": plugin})
	chained, err := json.Marshal(list)
	cluster.Must(t, err)
	write(chained)
	t.Cleanup(func() { write(text) })
	cluster.Must(t, c.Kill(t.Context(), node, bed.Containerd))
	cluster.Must(t, c.Start(t.Context(), node, bed.Containerd))
}

// held is what a node has for its pods: addresses of its podCIDRs, ports, and addresses of IPPools, those of all nodes.
func (c functions) held(t *testing.T, node string) string {
	t.Helper()
	var all []string
	for _, argv := range [][]string{{"ls", hostlocal.DefaultDir}, {"ovs-vsctl", "list-ports", "br-int"}} {
		out, err := c.NodeExec(t.Context(), node, argv...)
		cluster.Must(t, err)
		all = append(all, strings.Join(strings.Fields(out), " "))
	}
	return strings.Join(append(all, c.Run(t, "get", "ipallocations", "-o",
		`jsonpath={.items[?(@.spec.phase=="Allocated")].spec.address}`)), "\n")
}

// answered is how often a node's agent has answered a CNI verb, whatever the result.
func (c functions) answered(t *testing.T, node, verb string) (n int) {
	t.Helper()
	out, err := c.NodeExec(t.Context(), node, "curl", "-sf", "http://127.0.0.1:10350/metrics")
	cluster.Must(t, err)
	count := regexp.MustCompile(`(?m)^fairlead_cni_request_duration_seconds_count\{code="\d+",verb="` + verb + `"\} (\d+)$`)
	for _, m := range count.FindAllStringSubmatch(out, -1) {
		once, err := strconv.Atoi(m[1])
		cluster.Must(t, err)
		n += once
	}
	return n
}
