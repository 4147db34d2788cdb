package ctl

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// The exit code is the verdict, on a real API server: healthy, a warning, a node that does not serve pods, and a server
// that denies access.
func TestKubeDoctorExitCodes(t *testing.T) {
	c := newFixture(t)
	for _, step := range []struct {
		node, podCIDR string
		code          int
		kinds         string
	}{
		{"a", "10.244.0.0/24", 0, ""},
		{"v6", "fd00::/64", exitWarning, "wrong-family"}, // the API server has IPv4 Services
		{"b", "10.244.0.0/24", exitFailing, "duplicate wrong-family"},
	} {
		c.node(step.node, corev1.ConditionTrue, step.podCIDR)
		text, code := c.run("doctor", "pod-cidr")
		if code != step.code || !strings.Contains(text, step.podCIDR) {
			t.Errorf("with node %s: exit code %d, want %d\n%s", step.node, code, step.code, text)
		}
		out, code := c.run("doctor", "pod-cidr", "-o", "json")
		var report struct{ Problems []struct{ Kind string } }
		if err := json.Unmarshal([]byte(out), &report); err != nil || code != step.code {
			t.Fatalf("-o json: %v, exit code %d\n%s", err, code, out)
		}
		var kinds []string
		for _, p := range report.Problems {
			kinds = append(kinds, p.Kind)
		}
		if got := strings.Join(kinds, " "); got != step.kinds {
			t.Errorf("with node %s: problems %q, want %q", step.node, got, step.kinds)
		}
	}
	c.letIn("unknown")
	if out, code := c.run("doctor", "pod-cidr"); code != cli.ExitError || !strings.Contains(out, "listing Nodes") {
		t.Errorf("not let in: exit code %d\n%s", code, out)
	}
}

// If fairlead-controller assigns podCIDRs, doctor says so, and its remedy works: on the real controller.
func TestKubeDoctorKnowsNodeIPAM(t *testing.T) {
	c := newFixture(t)
	cfg := api.NodeIPAM{Enabled: true, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/23")},
		MaskSizeIPv4: 24, MaskSizeIPv6: 64}
	stop := c.startController(cfg)
	for i := range 5 {
		c.node(fmt.Sprintf("n%d", i), corev1.ConditionTrue)
	}
	waiting := func() (n int) {
		list, err := c.client.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		c.must(err)
		for _, node := range list.Items {
			if node.Spec.PodCIDR == "" {
				n++
			}
		}
		return n
	}
	c.until(func() string {
		out, _ := c.run("doctor", "pod-cidr")
		if waiting() != 3 || !strings.Contains(out, "CIDRNotAvailable") {
			return out
		}
		return ""
	})
	out, code := c.run("doctor", "pod-cidr")
	t.Log(out)
	for _, part := range []string{"allocator     fairlead-controller (nodeIPAM.enableNodeIPAM)", "range-exhausted", "10.78.0.0/23 cut into /24",
		"Add 10.78.4.0/22 (4 nodes) to nodeIPAM.clusterCIDRs", "#     clusterCIDRs: [10.78.0.0/23, 10.78.4.0/22]"} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
	if code != exitFailing || strings.Contains(out, "--allocate-node-cidrs") || strings.Contains(out, "--cluster-cidr") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	stop()
	c.until(func() string {
		if out, _ := c.run("doctor", "pod-cidr"); !strings.Contains(out, "is not running: no holder of its Lease") {
			return out
		}
		return ""
	})
	cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, netip.MustParsePrefix("10.78.4.0/22"))
	c.startController(cfg)
	c.until(func() string {
		if out, code := c.run("doctor", "pod-cidr"); code != 0 || waiting() != 0 {
			return out
		}
		return ""
	})
}

// With kube-controller-manager's allocator enabled as well, fairlead-controller assigns nothing, and doctor says which
// one to disable.
func TestKubeDoctorReportsTwoAllocators(t *testing.T) {
	c := newFixture(t)
	c.apply(`{apiVersion: v1, kind: Pod, metadata: {name: kube-controller-manager-cp1, namespace: kube-system,
		labels: {component: kube-controller-manager}, annotations: {kubernetes.io/config.source: file}}, spec: {containers: [{name: c,
		image: i, command: [kube-controller-manager, --allocate-node-cidrs=true, --cluster-cidr=10.244.0.0/16]}]}}`)
	c.startController(api.NodeIPAM{Enabled: true, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/16")},
		MaskSizeIPv4: 24, MaskSizeIPv6: 64})
	c.node("n1", corev1.ConditionTrue)
	c.until(func() string {
		out, code := c.run("doctor", "pod-cidr")
		for _, part := range []string{"two-allocators", "kube-controller-manager, whose Pod kube-system/kube-controller-manager-cp1 has " +
			"--allocate-node-cidrs assigns podCIDRs to Nodes, too", "--allocate-node-cidrs=false"} {
			if code != exitFailing || !strings.Contains(strings.Join(strings.Fields(out), " "), part) {
				return part + " is not in\n" + out
			}
		}
		t.Log("\n" + out)
		return ""
	})
}
