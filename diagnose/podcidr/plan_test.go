package podcidr

import (
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name     string
		ranges   []Range
		services string
		nodes    int
		holds    uint64
		problems []string
		remedies []string
	}{
		{"default", []Range{rangeOf("10.244.0.0/16", 24)}, "10.96.0.0/12", 256, 256, nil, nil},
		{"one too many", []Range{rangeOf("10.244.0.0/16", 24)}, "10.96.0.0/12", 257, 256,
			[]string{"there are podCIDRs for 256 nodes, not for 257"},
			[]string{"--cluster-cidr 10.244.0.0/15 holds 512 nodes", "--node-mask 25 holds 512 nodes, with at most 125 pods on a node"}},
		{"300 nodes in a /12 of /16", []Range{rangeOf("10.240.0.0/12", 16)}, "", 300, 16,
			[]string{"for 16 nodes, not for 300"}, []string{"--node-mask 21 holds 512 nodes"}},
		{"a /12 of /24", []Range{rangeOf("10.240.0.0/12", 24)}, "", 4096, 4096, nil, nil},
		{"Services inside", []Range{rangeOf("192.168.0.0/20", 24)}, "192.168.0.0/22", 12, 12,
			[]string{"192.168.0.0/20 overlaps the Service CIDR 192.168.0.0/22"}, nil},
		{"public", []Range{rangeOf("193.1.0.0/24", 24)}, "", 1, 1, []string{"193.1.0.0/24 is not private"}, nil},
		{"too fine for kubeadm", []Range{rangeOf("10.0.0.0/8", 25)}, "", 10, 1 << 17, []string{"kubeadm does not"}, nil},
		{"no room for pods", []Range{rangeOf("10.244.0.0/24", 31)}, "", 10, 128, []string{"no room for a pod"}, nil},
		{"dual stack: the scarcer counts", []Range{rangeOf("10.244.0.0/16", 24), rangeOf("fd00::/60", 64)}, "", 16, 16, nil, nil},
	} {
		var services []string
		if c.services != "" {
			services = append(services, c.services)
		}
		p, err := NewPlan(c.ranges, prefixes(services...), c.nodes)
		if err != nil || p.Holds != c.holds || len(p.Problems) != len(c.problems) || len(p.Remedies) != len(c.remedies) {
			t.Errorf("%s: got %+v, %v", c.name, p, err)
			continue
		}
		for i := range c.problems {
			if !strings.Contains(p.Problems[i], c.problems[i]) {
				t.Errorf("%s: problem %q, want %q", c.name, p.Problems[i], c.problems[i])
			}
		}
		for i := range c.remedies {
			if !strings.Contains(p.Remedies[i], c.remedies[i]) {
				t.Errorf("%s: remedy %q, want %q", c.name, p.Remedies[i], c.remedies[i])
			}
		}
	}
	if _, err := NewPlan([]Range{rangeOf("fd00::/40", 64)}, nil, 0); err == nil {
		t.Error("a mask that kube-controller-manager refuses is accepted")
	}
}
