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

// runtime checks which CNI verbs the runtime calls beside ADD and DEL, and what happens to pods when a plugin chained
// after Fairlead fails.
func (c functions) runtime(t *testing.T) {
	node, err := c.API.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	cluster.Must(t, err)
	want := map[string]string{bed.Containerd23: "containerd://2.3.", bed.CRIO: "cri-o://1.36."}[c.Runtime()]
	if version := node.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(version, want) {
		t.Errorf("the runtime is %s, not %s", version, want)
	}
	t.Run("STATUS", c.status)
	t.Run("another plugin fails", c.failingPlugin)
	t.Run("GC", func(t *testing.T) {
		if c.Runtime() == bed.CRIO {
			c.lostDEL(t)
			return
		}
		if n := c.answered(t, "node1", "GC"); n != 0 { // containerd has been restarted since
			t.Errorf("%d times GC: docs say that containerd never calls it", n)
		}
	})
}

// lostDEL checks that CRI-O calls GC when it starts, and that GC releases what a routed and a bridged pod hold that
// CRI-O no longer knows: its files about them are incomplete or lost, as after a power failure. Their network
// namespaces and interfaces exist, so the agent cannot detect this by itself. Without its cached results of ADD, CRI-O
// calls no DEL for them.
func (c functions) lostDEL(t *testing.T) {
	const node = "node1"
	c.apply(t, "testdata/forgotten.yaml")
	pods := c.Running(t, "forgotten", 2)
	gc, dels, collected := c.answered(t, node, "GC"), c.answered(t, node, "DEL"), c.collected(t, node)
	cluster.Must(t, c.Kill(t.Context(), node, bed.Runtime))
	for _, p := range pods {
		_, err := c.NodeExec(t.Context(), node, "sh", "-ec", `
grep -l "$1" /var/lib/containers/storage/overlay-containers/*/userdata/config.json | xargs truncate --size=0
grep -l "$1" /var/lib/cni/results/* | xargs rm`, "sh", string(p.UID))
		cluster.Must(t, err)
	}
	cluster.Must(t, c.Start(t.Context(), node, bed.Runtime))
	cluster.Eventually(t, func() error {
		held := strings.Fields(c.held(t, node))
		for _, addr := range cluster.Addrs(pods...) {
			if slices.Contains(held, addr) {
				return fmt.Errorf("%s is held still", addr)
			}
		}
		return nil
	})
	gc, dels, collected = c.answered(t, node, "GC")-gc, c.answered(t, node, "DEL")-dels, c.collected(t, node)-collected
	if gc == 0 || dels != 0 || collected != len(pods) {
		t.Errorf("%d times GC, %d times DEL, by GC the agent has removed %d pods, want %d", gc, dels, collected, len(pods))
	}
	c.Run(t, "delete", "pods", "-l", "app=forgotten")
}

// status checks that the runtime calls STATUS on all nodes, and that a node is not Ready while its Open vSwitch hangs.
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

// notReady waits until a node is not Ready because its runtime reports NetworkReady=false, for that reason.
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

// failingPlugin checks that a node is not Ready while a plugin chained after Fairlead is missing, and that a routed and
// a bridged pod whose ADD fails in that plugin leave nothing behind: the runtime never calls Fairlead's DEL, since DEL
// fails in that plugin first (containerd#12130).
func (c functions) failingPlugin(t *testing.T) {
	const node, plugin = "node1", "always-fails"
	const script = `#!/bin/sh
[ "$CNI_COMMAND" = STATUS ] && exit
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}' && exit
echo '{"cniVersion": "1.0.0", "code": 100, "msg": "it always fails"}'
exit 1
`
	before, adds, dels := c.held(t, node), c.answered(t, node, "ADD"), c.answered(t, node, "DEL")
	c.chain(t, node, plugin)
	if c.Runtime() == bed.CRIO { // CRI-O rejects the whole list
		c.notReady(t, node, "no CNI configuration file")
	} else {
		c.notReady(t, node, plugin)
	}
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
		had, now := strings.Fields(before), c.held(t, node) // what the previous boot held may have been released
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

// chain appends a plugin to Fairlead's conflist on a node. The runtime is killed and started again, and might call GC
// then.
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
	cluster.Must(t, c.Kill(t.Context(), node, bed.Runtime))
	cluster.Must(t, c.Start(t.Context(), node, bed.Runtime))
}

// held is what a node holds for its pods: addresses of its podCIDRs and ports; and the IPPool addresses of all nodes.
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
func (c functions) answered(t *testing.T, node, verb string) int {
	t.Helper()
	return c.counted(t, node, `fairlead_cni_request_duration_seconds_count\{code="\d+",verb="`+verb+`"\}`)
}

// collected is how many pods and addresses the node's agent has removed because of GC.
func (c functions) collected(t *testing.T, node string) int {
	t.Helper()
	return c.counted(t, node, `fairlead_reclaimed_total\{kind="gc"\}`)
}

// counted is the sum of those counters of an agent that a regular expression selects.
func (c functions) counted(t *testing.T, node, counters string) (n int) {
	t.Helper()
	out, err := c.NodeExec(t.Context(), node, "curl", "-sf", "http://127.0.0.1:10350/metrics")
	cluster.Must(t, err)
	for _, m := range regexp.MustCompile(`(?m)^`+counters+` (\d+)$`).FindAllStringSubmatch(out, -1) {
		once, err := strconv.Atoi(m[1])
		cluster.Must(t, err)
		n += once
	}
	return n
}
