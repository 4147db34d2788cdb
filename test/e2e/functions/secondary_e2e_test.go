package functions

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/kubebin"
)

// secondary checks that, with Multus, pods of a NetworkAttachmentDefinition have a second interface beside Fairlead's,
// with an address of an IPPool, and reach each other over it; the addresses are released when the pods are deleted.
func (c functions) secondary(t *testing.T) {
	c.installMultus(t)
	c.apply(t, "testdata/nad-crd.yaml")
	c.apply(t, "testdata/secondary.yaml")
	pods := c.Running(t, "two-nets", 2)
	var second []string
	for _, p := range pods {
		second = append(second, secondAddr(t, p))
	}
	if second[0] == second[1] {
		t.Errorf("both pods have %s", second[0])
	}
	for i, p := range pods {
		c.Get(t, p.Name, cluster.URLs("8080", second[1-i], cluster.Addrs(pods[1-i])[0])...)
	}
	c.Run(t, "delete", "pods", "-l", "app=two-nets")
	cluster.Eventually(t, func() error {
		out, err := c.Kubectl(t.Context(), "get", "ipallocations", "--field-selector=spec.pool=storage",
			"-o", "jsonpath={.items[*].spec.phase}")
		if err == nil && strings.Contains(out, "Allocated") {
			err = fmt.Errorf("the pods are gone, and their second addresses are %s", out)
		}
		return err
	})
}

// secondAddr is the address of net1, which Multus writes to the pod.
func secondAddr(t *testing.T, p corev1.Pod) string {
	t.Helper()
	var status []struct {
		Interface string
		IPs       []string
	}
	cluster.Must(t, json.Unmarshal([]byte(p.Annotations["k8s.v1.cni.cncf.io/network-status"]), &status))
	for _, s := range status {
		if s.Interface == "net1" && len(s.IPs) == 1 && strings.HasPrefix(s.IPs[0], "10.10.1.") {
			return s.IPs[0]
		}
	}
	t.Fatalf("%s has no second interface with an address: %+v", p.Name, status)
	return ""
}

// installMultus installs Multus before Fairlead on every node, as its quick start does: the runtime uses Multus'
// network, and Multus calls Fairlead's first.
func (c functions) installMultus(t *testing.T) {
	program, err := kubebin.GetMultus(t.Context(), os.Stderr)
	cluster.Must(t, err)
	binary, err := os.ReadFile(program)
	cluster.Must(t, err)
	plane := c.Plane()
	kubeconfig, err := os.ReadFile(plane.Host.Private(plane.AdminKubeconfig()))
	cluster.Must(t, err)
	const conf, kubeconfigFile = "/etc/cni/net.d/00-multus.conf", "/etc/cni/multus.kubeconfig"
	for _, node := range c.Nodes() {
		h := c.Host(node)
		var own map[string]any
		text, err := os.ReadFile(h.Private("/etc/cni/net.d/10-fairlead.conflist"))
		cluster.Must(t, err)
		cluster.Must(t, json.Unmarshal(text, &own))
		multus, err := json.Marshal(map[string]any{"cniVersion": own["cniVersion"], "name": "multus", "type": "multus",
			"capabilities": map[string]bool{"portMappings": true, "bandwidth": true},
			"kubeconfig":   kubeconfigFile, "delegates": []any{own}})
		cluster.Must(t, err)
		cluster.Must(t, os.WriteFile(h.Private("/opt/cni/bin/multus"), binary, 0o755))
		cluster.Must(t, os.WriteFile(h.Private(kubeconfigFile), kubeconfig, 0o600))
		cluster.Must(t, os.WriteFile(h.Private(conf+".new"), multus, 0o600))
		cluster.Must(t, os.Rename(h.Private(conf+".new"), h.Private(conf)))
		t.Cleanup(func() { cluster.Must(t, os.Remove(h.Private(conf))) })
	}
}
