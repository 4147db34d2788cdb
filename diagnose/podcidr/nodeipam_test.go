package podcidr

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

func nodeIPAMWith(ranges ...Range) Facts {
	return Facts{NodeIPAM: &NodeIPAM{}, Ranges: ranges, RangesFrom: "nodeIPAM.clusterCIDRs of fairlead-controller (PodCIDRRange objects)",
		Allocates: Yes, Runs: Yes, Services: prefixes("10.96.0.0/12"), Manifest: kcmManifest}
}

// If fairlead-controller assigns podCIDRs, no remedy enables a second allocator.
func TestNodeIPAMKinds(t *testing.T) {
	with := func(f Facts, change func(*Facts)) Facts { change(&f); return f }
	four := nodeIPAMWith(rangeOf("192.168.0.0/22", 24))
	two := nodeIPAMWith(rangeOf("10.244.0.0/24", 25), rangeOf("10.250.0.0/24", 25))
	dual := nodeIPAMWith(rangeOf("10.244.0.0/16", 24), rangeOf("fd00:10:244::/63", 64))
	for _, c := range []struct {
		name, node string
		nodes      map[string]inputs.Node
		facts      Facts
		kind       string
		in         []string
		remedies   int
	}{
		{"nothing", "worker-1", cut("192.168.0.0/22", 24, 4, 0), four, "", nil, 0},
		{"exhausted", "worker-7", cut("192.168.0.0/22", 24, 4, 6), four, Exhausted, []string{
			"node worker-7 has no podCIDR: nodeIPAM.clusterCIDRs 192.168.0.0/22 cut into /24 hold 4 nodes, and 10 exist (4 have one, 6 wait).",
			"Add 192.168.8.0/21 (8 nodes) to nodeIPAM.clusterCIDRs of fairlead-controller and restart it.",
			"A longer node mask does not help", "(cluster CIDR and mask: from nodeIPAM.clusterCIDRs of fairlead-controller"}, 1},
		{"several ranges", "worker-5", merge(cut("10.244.0.0/24", 25, 2, 0), renamed(cut("10.250.0.0/24", 25, 2, 1), 3)), two, Exhausted,
			[]string{"10.244.0.0/24 cut into /25 and 10.250.0.0/24 cut into /25 hold 4 nodes", "Add 10.244.1.0/24 (2 nodes)"}, 1},
		{"a longer mask helps as well", "f", nodeMap(node(1, "a", "10.0.0.0/24"), node(2, "b", "10.0.1.0/24"), node(3, "c", "10.0.2.0/25"),
			node(4, "d", "10.0.3.0/25"), node(5, "e"), node(6, "f")), nodeIPAMWith(rangeOf("10.0.0.0/22", 24)), Exhausted,
			[]string{"Or: lengthen the node mask for new nodes, nodeCIDRMaskSizeIPv4: 25 (at most 125 pods on a node)"}, 2},
		{"IPv6 alone is full", "c", nodeMap(node(1, "a", "10.244.0.0/24", "fd00:10:244::/64"), node(2, "b", "10.244.1.0/24", "fd00:10:244:1::/64"),
			node(3, "c")), with(dual, func(f *Facts) { f.Services = append(f.Services, prefixes("fd00:96::/112")...) }), Exhausted,
			[]string{"Add fd00:10:244:2::/63 (2 nodes)"}, 1},
		{"not running", "worker-7", cut("192.168.0.0/22", 24, 4, 6), with(four, func(f *Facts) { f.Runs, f.RunsNot = No, "it was stopped" }),
			NotRunning, []string{"fairlead-controller, which assigns them (nodeIPAM.enableNodeIPAM), is not running: it was stopped",
				"Leave the allocator of kube-controller-manager disabled"}, 0},
		{"another allocator", "worker-7", cut("192.168.0.0/22", 24, 4, 6), with(four, func(f *Facts) { f.NodeIPAM = &NodeIPAM{Stopped: "so and so"} }),
			TwoAllocators, []string{"so and so", "Run kube-controller-manager with --allocate-node-cidrs=false, then restart"}, 1},
		{"another allocator, no Node waits", "", cut("192.168.0.0/22", 24, 4, 0), with(four, func(f *Facts) {
			f.NodeIPAM = &NodeIPAM{Stopped: "so and so"}
		}), TwoAllocators, []string{"the next node would get no podCIDR: so and so"}, 1},
		{"late", "worker-3", cut("192.168.0.0/22", 24, 2, 1), four, NotGiven, []string{"2 of 3 nodes have one, and there is room for all"}, 0},
		{"duplicate", "b", nodeMap(node(1, "a", "192.168.0.0/24"), node(2, "b", "192.168.0.0/24")), four, Duplicate,
			[]string{"Delete Node b and create it again: fairlead-controller assigns another podCIDR"}, 1},
		{"duplicate in a full range", "b", nodeMap(node(1, "a", "10.0.0.0/24"), node(2, "b", "10.0.0.0/24")),
			nodeIPAMWith(rangeOf("10.0.0.0/24", 24)), Duplicate, []string{"Add 10.0.1.0/24 (1 node)", "then delete Node b"}, 1},
		{"Service CIDR", "a", nodeMap(node(1, "a", "10.96.3.0/24")), nodeIPAMWith(rangeOf("10.96.0.0/11", 24)), Overlap,
			[]string{"overlaps the Service CIDR 10.96.0.0/12", "Delete Node a"}, 1},
		{"outside", "a", nodeMap(node(1, "a", "10.128.0.0/24")), four, OutOfRange,
			[]string{"in no CIDR of nodeIPAM.clusterCIDRs", "No action is needed"}, 0},
		{"family", "a", nodeMap(node(1, "a", "192.168.0.0/24")), with(four, func(f *Facts) {
			f.Services = append(f.Services, prefixes("fd00:96::/112")...)
		}), WrongFamily, []string{"give nodeIPAM.clusterCIDRs of fairlead-controller a CIDR of each family first"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Diagnose(c.node, c.nodes, c.facts, time.Now())
			if all := FindAll(c.nodes, c.facts, time.Now()); c.node == "" && len(all) == 1 {
				d = &all[0]
			}
			if c.kind == "" {
				if d != nil {
					t.Errorf("got %s", d.Message())
				}
				return
			}
			if d == nil || d.Kind != c.kind || len(d.Remedies) != c.remedies {
				t.Fatalf("got %+v, want kind %s and %d remedies", d, c.kind, c.remedies)
			}
			for _, part := range c.in {
				if !strings.Contains(d.Message(), part) {
					t.Errorf("%q is not in\n%s", part, d.Message())
				}
			}
			refuseSecondAllocator(t, *d)
			for _, r := range d.Remedies {
				checkConfigured(t, c.nodes, c.facts, r)
			}
		})
	}
}

// refuseSecondAllocator fails on anything that would make kube-controller-manager assign podCIDRs.
func refuseSecondAllocator(t *testing.T, d report.Finding) {
	t.Helper()
	text := d.Message()
	for _, r := range d.Remedies {
		text += strings.Join(append(r.Commands, r.Beware...), "\n")
	}
	for _, bad := range []string{"--allocate-node-cidrs=true", "--cluster-cidr", "kubeadm", "keeps-podcidr"} {
		if strings.Contains(text, bad) {
			t.Errorf("it says %s:\n%s", bad, text)
		}
	}
}

// checkConfigured checks a remedy: with its ranges every Node gets a podCIDR, and none is assigned twice.
func checkConfigured(t *testing.T, nodes map[string]inputs.Node, f Facts, r report.Remedy) {
	t.Helper()
	var lines []string
	for _, command := range r.Commands {
		if line, ok := strings.CutPrefix(command, "#   "); ok && !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	var config struct {
		NodeIPAM struct {
			ClusterCIDRs                               []netip.Prefix
			NodeCIDRMaskSizeIPv4, NodeCIDRMaskSizeIPv6 int
		}
	}
	if err := yaml.Unmarshal([]byte(strings.Join(lines, "\n")), &config); err != nil {
		t.Fatalf("%v\n%s", err, lines)
	}
	facts := nodecidr.Facts{Ranges: f.Ranges, Services: f.Services}
	if lines != nil {
		facts.Ranges = nil
	}
	for _, p := range config.NodeIPAM.ClusterCIDRs {
		mask := config.NodeIPAM.NodeCIDRMaskSizeIPv4
		if p.Addr().Is6() {
			mask = config.NodeIPAM.NodeCIDRMaskSizeIPv6
		}
		facts.Ranges = append(facts.Ranges, Range{Cluster: p, Mask: mask})
	}
	waiting := 0
	for name, n := range changeOf(t, r).in(nodes) {
		facts.Nodes = append(facts.Nodes, nodecidr.Node{Name: name, UID: name, PodCIDRs: n.PodCIDRs, Addresses: n.Addresses})
		if len(n.PodCIDRs) == 0 {
			waiting++
		}
	}
	if f.NodeIPAM.Stopped != "" {
		return // another allocator must be stopped first
	}
	p, err := nodecidr.Make(facts)
	if err != nil || len(p.Waiting) > 0 || len(p.Assignments) != waiting {
		t.Errorf("%s: %v, %+v", r.Text, err, p)
	}
	for _, fault := range p.Faults {
		if !strings.Contains(fault.Text, "is in no CIDR") {
			t.Errorf("%s: %s", r.Text, fault.Text)
		}
	}
}

// merge adds b to a.
func merge(a, b map[string]inputs.Node) map[string]inputs.Node {
	for name, n := range b {
		a[name] = n
	}
	return a
}

// renamed renumbers the nodes from first on.
func renamed(nodes map[string]inputs.Node, first int) map[string]inputs.Node {
	out := map[string]inputs.Node{}
	for i := range len(nodes) {
		n := nodes[fmt.Sprintf("worker-%d", i+1)]
		n.Name = fmt.Sprintf("worker-%d", first+i)
		out[n.Name] = n
	}
	return out
}
