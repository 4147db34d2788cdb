package migration

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
)

// stale is an address that Antrea still records for a Pod that is gone.
const stale = "192.168.110.150"

// A cluster with Antrea's objects is migrated by docs/migrate-from-antrea.md, step by step: its pools and their
// addresses become Fairlead's, pods of a StatefulSet have theirs on the underlay afterwards, none is allocated twice,
// and the config is accepted except for what the check rejects. Antrea itself does not run: its objects and the pods'
// addresses are as Antrea writes them.
func TestE2EMigration(t *testing.T) {
	c := cluster.Bare(t, bed.Options{Name: "migration", Nodes: 2})
	asAntrea(t, c)
	had := addresses(t, c)
	pools := c.Run(t, "get", "ippools.crd.antrea.io", "-o", "jsonpath={.items[*].status.ipAddresses}")

	// 1. The config.
	values := config(t, c)

	// 3. Antrea allocates no more addresses.
	tries := 0
	cluster.Eventually(t, func() error { // the API server calls new webhooks only after a moment
		tries++
		_, err := c.Kubectl(t.Context(), "annotate", "--overwrite", "ippool", "vlan10", fmt.Sprint("tries=", tries))
		if err == nil || !strings.Contains(err.Error(), "webhook") {
			return fmt.Errorf("the webhook of Antrea is not asked: nothing is tried: %w", err)
		}
		return nil
	})
	c.Run(t, "cordon", "-l", "kubernetes.io/os=linux")
	c.Run(t, "-n", "kube-system", "scale", "deployment", "antrea-controller", "--replicas=0")
	c.Run(t, "delete", "validatingwebhookconfiguration", "crdvalidator.antrea.io")
	c.Run(t, "delete", "mutatingwebhookconfiguration", "crdmutator.antrea.io")

	// 4. The addresses.
	manifest, err := install.Manifest(c.Bed)
	cluster.Must(t, err)
	_, err = c.KubectlStdin(t.Context(), manifest, "apply", "-f", "-", "-l", "app.kubernetes.io/component=crds")
	cluster.Must(t, err)
	cluster.Eventually(t, func() error { // the API server serves new kinds only after a moment
		out, err := c.Fairleadctl(t, "ipam", "import-antrea", "--dry-run")
		return leftOut(out, err, "4 can be imported, 0 were imported now")
	})
	out, err := c.Fairleadctl(t, "ipam", "import-antrea", "--yes")
	cluster.Must(t, leftOut(out, err, "4 were imported now"))
	t.Logf("import-antrea said\n%s", out)
	held := slices.Sorted(slices.Values(strings.Fields(
		c.Run(t, "get", "ipallocations", "-o", "jsonpath={.items[*].spec.address}"))))
	if want := slices.Sorted(maps.Values(had)); !slices.Equal(held, want) {
		t.Errorf("IPAllocations of %v, want %v", held, want)
	}

	// 5. Antrea is removed from the nodes.
	c.Run(t, "-n", "kube-system", "delete", "daemonset", "antrea-agent")
	reboot(t, c)

	// 6. Fairlead.
	c.Install(t, append(values, "crds.install=false")...)
	c.Run(t, "uncordon", "-l", "kubernetes.io/os=linux")
	for name, addr := range had {
		if strings.HasPrefix(name, "db-") {
			cluster.Eventually(t, func() error { return c.Outside(t.Context(), cluster.URLs("8080", addr)[0]) })
		}
	}
	c.Running(t, "db", 2)
	c.Running(t, "web", 2)
	cluster.Eventually(t, func() error { // until kubelet has synced, the API has the state before the reboot
		now := addresses(t, c)
		if err := given(now, had); err != nil {
			return err
		}
		for _, addr := range now {
			if err := c.Outside(t.Context(), cluster.URLs("8080", addr)[0]); err != nil {
				return err
			}
		}
		return nil
	})
	cluster.Eventually(t, func() error { _, err := c.Fairleadctl(t, "ipam", "check"); return err })
	if now := c.Run(t, "get", "ippools", "-o", "jsonpath={.items[*].status.ipAddresses}"); now != pools {
		t.Errorf("what Antrea has written is\n%s, was\n%s", now, pools)
	}
}

// asAntrea creates Antrea's objects in a cluster: its CRD, its webhooks, a network whose pods get addresses of a pool,
// and the allocations in the pool's status.
func asAntrea(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for i, node := range c.Nodes() {
		network(t, c, node, 100+20*i)
	}
	c.AwaitReady(t)
	c.Apply(t, read(t, "testdata/definition.yaml"))
	c.Run(t, "wait", "--for=condition=Established", "--timeout=60s", "crd", "ippools.crd.antrea.io")
	c.Apply(t, read(t, "testdata/pods.yaml"))
	c.Running(t, "db", 2)
	c.Running(t, "web", 2)
	entries := []any{entry(stale, "Allocated", map[string]any{"name": "gone", "namespace": "default", "containerID": "c"}, nil)}
	list, err := c.API.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	cluster.Must(t, err)
	for _, p := range list.Items {
		entries = append(entries, entryOf(t, c, p))
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"ipAddresses": entries}})
	cluster.Must(t, err)
	c.Run(t, "patch", "ippool", "vlan10", "--subresource=status", "--type=merge", "-p", string(patch))
	c.Apply(t, read(t, "testdata/antrea.yaml"))
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	cluster.Must(t, err)
	return text
}

const conflist = "/etc/cni/net.d/10-antrea.conflist"

// network installs a CNI network with ten addresses of VLAN 10 on a node.
func network(t *testing.T, c *cluster.Cluster, node string, first int) {
	t.Helper()
	addr := func(n int) string { return fmt.Sprintf("192.168.110.%d", n) }
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "antrea", "plugins": []any{map[string]any{
		"type": "bridge", "bridge": "antrea-br", "ipam": map[string]any{"type": "host-local", "ranges": [][]any{{
			map[string]string{"subnet": "192.168.110.0/24", "rangeStart": addr(first), "rangeEnd": addr(first + 9)}}}}}}})
	cluster.Must(t, err)
	file := c.Host(node).Private(conflist)
	cluster.Must(t, os.WriteFile(file+".new", text, 0o644))
	cluster.Must(t, os.Rename(file+".new", file))
}

func entry(addr, phase string, pod, set map[string]any) map[string]any {
	owner := map[string]any{"pod": pod}
	if set != nil {
		owner["statefulSet"] = set
	}
	return map[string]any{"ipAddress": addr, "phase": phase, "owner": owner}
}

// entryOf is Antrea's status entry of a pod that has an address.
func entryOf(t *testing.T, c *cluster.Cluster, p corev1.Pod) map[string]any {
	t.Helper()
	out, err := c.NodeExec(t.Context(), p.Spec.NodeName, "cat", "/var/lib/cni/networks/antrea/"+p.Status.PodIP)
	cluster.Must(t, err)
	pod := map[string]any{"name": p.Name, "namespace": p.Namespace, "containerID": strings.Fields(out)[0]}
	var set map[string]any
	if by := metav1.GetControllerOf(&p); by.Kind == "StatefulSet" {
		ordinal, err := strconv.Atoi(strings.TrimPrefix(p.Name, by.Name+"-"))
		cluster.Must(t, err)
		set = map[string]any{"name": by.Name, "namespace": p.Namespace, "index": ordinal}
	}
	return entry(p.Status.PodIP, "Allocated", pod, set)
}

// addresses are those of the pods, by name.
func addresses(t *testing.T, c *cluster.Cluster) map[string]string {
	t.Helper()
	list, err := c.API.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	cluster.Must(t, err)
	all := map[string]string{}
	for _, p := range list.Items {
		all[p.Name] = p.Status.PodIP
	}
	return all
}

// config checks Antrea's config as step 1 does, removes what is rejected, and returns the values of the chart.
func config(t *testing.T, c *cluster.Cluster) (values []string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"agent", "controller"} {
		text := c.Run(t, "-n", "kube-system", "get", "configmap", "antrea-config",
			"-o", `jsonpath={.data.antrea-`+name+`\.conf}`)
		cluster.Must(t, os.WriteFile(filepath.Join(dir, name+".conf"), []byte(text), 0o600))
	}
	program, err := install.Program("fairlead-agent")
	cluster.Must(t, err)
	check := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), program, "--check-config", "--config", dir+"/agent.conf",
			"--controller-config", dir+"/controller.conf").CombinedOutput()
		return string(out), err
	}
	out, err := check()
	if err == nil || !strings.Contains(out, "agent.conf:3:3: featureGates.AntreaPolicy") {
		t.Errorf("AntreaPolicy is not refused: %v\n%s", err, out)
	}
	text := string(read(t, dir+"/agent.conf"))
	cluster.Must(t, os.WriteFile(dir+"/agent.conf", []byte(strings.Replace(text, "  AntreaPolicy: true\n", "", 1)), 0o600))
	if out, err := check(); err != nil {
		t.Fatalf("what is refused was removed: %v\n%s", err, out)
	}
	for _, name := range []string{"agent", "controller"} {
		var keys map[string]any
		cluster.Must(t, yaml.Unmarshal(read(t, filepath.Join(dir, name+".conf")), &keys))
		values = append(values, flat(name+".config", keys)...)
	}
	return values
}

// flat are keys in the syntax of "helm --set".
func flat(prefix string, keys map[string]any) (sets []string) {
	for k, v := range keys {
		if below, ok := v.(map[string]any); ok {
			sets = append(sets, flat(prefix+"."+k, below)...)
			continue
		}
		sets = append(sets, fmt.Sprintf("%s.%s=%v", prefix, k, v))
	}
	return sets
}

// leftOut returns nil if import-antrea has printed says, and that it left out the stale address, with the exit code of
// a warning.
func leftOut(out string, err error, says string) error {
	const warning = 3
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != warning || !strings.Contains(out, says) ||
		!strings.Contains(out, stale+" of IPPool vlan10, Pod default/gone: the Pod no longer exists") {
		return fmt.Errorf("want exit code %d and %q: %w\n%s", warning, says, err, out)
	}
	return nil
}

// reboot does on each node what step 5 requires.
func reboot(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, node := range c.Nodes() {
		cluster.Must(t, os.Remove(c.Host(node).Private(conflist)))
		cluster.Must(t, c.Crash(t.Context(), node))
	}
	for _, node := range c.Nodes() {
		cluster.Must(t, c.Boot(t.Context(), node))
	}
}

// given returns nil if all pods have distinct addresses of the pool, and those of the StatefulSet the same as before.
func given(now, had map[string]string) error {
	by := map[string]string{}
	for name, addr := range now {
		if strings.HasPrefix(name, "db-") && addr != had[name] {
			return fmt.Errorf("%s has %q, had %s", name, addr, had[name])
		}
		if !strings.HasPrefix(addr, "192.168.110.1") || by[addr] != "" {
			return fmt.Errorf("%s has %q, %q as well", name, addr, by[addr])
		}
		by[addr] = name
	}
	return nil
}
