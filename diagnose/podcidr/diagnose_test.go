package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/kube/inputs"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// node has an address derived from its number, and the podCIDRs; a higher number is created later, by seconds.
func node(number int, name string, podCIDRs ...string) inputs.Node {
	return inputs.Node{Name: name, PodCIDRs: prefixes(podCIDRs...),
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 31, byte(number / 250), byte(number%250 + 1)})},
		Created:   time.Unix(int64(number), 0)}
}

func nodeMap(nodes ...inputs.Node) map[string]inputs.Node {
	m := map[string]inputs.Node{}
	for _, n := range nodes {
		m[n.Name] = n
	}
	return m
}

// cut returns have nodes with the first /mask blocks of from, and wait nodes without a podCIDR.
func cut(from string, mask, have, wait int) map[string]inputs.Node {
	g, err := newGrid(Range{Cluster: netip.MustParsePrefix(from), Mask: mask})
	if err != nil {
		panic(err)
	}
	m := map[string]inputs.Node{}
	for i := range have + wait {
		n := node(i+1, fmt.Sprintf("worker-%d", i+1))
		if i < have {
			n.PodCIDRs = []netip.Prefix{g.Block(uint64(i))}
		}
		m[n.Name] = n
	}
	return m
}

func allocatorWith(ranges ...Range) Facts {
	return Facts{Ranges: ranges, RangesFrom: "the kube-controller-manager pod's command", Allocates: Yes, Runs: Yes,
		Services: prefixes("10.96.0.0/12"), LeftOut: prefixes("10.96.0.0/12"), Manifest: "/etc/kubernetes/manifests/kcm.yaml"}
}

func rangeOf(cluster string, mask int) Range {
	return Range{Cluster: netip.MustParsePrefix(cluster), Mask: mask}
}

// The exact message of DESIGN, section 9.
func TestMessage(t *testing.T) {
	f := allocatorWith(rangeOf("192.168.0.0/22", 24))
	d := Diagnose("worker-7", cut("192.168.0.0/22", 24, 4, 6), f, time.Now())
	want := "node worker-7 has no podCIDR: cluster CIDR 192.168.0.0/22 cut into /24 holds 4 nodes, and 10 exist " +
		"(4 have one, 6 wait). Widen --cluster-cidr to 192.168.0.0/20 (16 nodes). A longer node mask does not help: " +
		"the four /24 fill the range. (cluster CIDR and mask: from the kube-controller-manager pod's command.) " +
		"See: fairleadctl doctor pod-cidr"
	if got := d.Message(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestKinds(t *testing.T) {
	wide := allocatorWith(rangeOf("10.244.0.0/16", 24))
	with := func(f Facts, change func(*Facts)) Facts { change(&f); return f }
	some := cut("10.244.0.0/16", 24, 2, 1)
	for _, c := range []struct {
		name, node string
		nodes      map[string]inputs.Node
		facts      Facts
		kind       string
		in         []string // parts of the message
		notIn      []string
	}{
		{"nothing", "worker-1", some, wide, "", nil, nil},
		{"off", "worker-3", some, with(wide, func(f *Facts) { f.Allocates = No; f.AllocatesNot = "it runs with --allocate-node-cidrs=false" }),
			AllocatorOff, []string{"--allocate-node-cidrs=false", "Start kube-controller-manager with --allocate-node-cidrs=true " +
				"--cluster-cidr=10.244.0.0/16 (256 nodes)"}, nil},
		{"kubeadm", "worker-1", cut("10.244.0.0/16", 24, 0, 2), Facts{Kubeadm: true, Allocates: No, Services: prefixes("10.96.0.0/12")},
			NoPodNetworkCIDR, []string{"without --pod-network-cidr", "--cluster-cidr=10.244.0.0/16"}, nil},
		{"off, with several Service CIDRs of two families", "worker-1", cut("10.244.0.0/16", 24, 0, 2), Facts{Allocates: No,
			Services: prefixes("10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112")}, AllocatorOff,
			[]string{"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"}, nil},
		{"off, with Services of IPv6 first", "worker-1", cut("10.244.0.0/16", 24, 0, 2), Facts{Allocates: No,
			Services: prefixes("fd00:96::/112", "10.96.0.0/16")}, AllocatorOff, []string{"--cluster-cidr=fd00:10:244::/48,10.244.0.0/16"}, nil},
		{"not running", "worker-3", some, with(wide, func(f *Facts) { f.Runs = No; f.RunsNot = "CrashLoopBackOff" }),
			NotRunning, []string{"is not running: CrashLoopBackOff"}, []string{"Widen"}},
		{"cannot start", "worker-3", nodeMap(node(1, "worker-1", "10.99.0.0/24"), node(3, "worker-3")), wide,
			NotRunning, []string{"cannot start", "10.99.0.0/24 is outside", "No wider --cluster-cidr is possible", "Service CIDR 10.96.0.0/12"}, nil},
		{"lost count", "worker-3", some, with(wide, func(f *Facts) { f.Refused = map[string]Refusal{"worker-3": {Count: 7}} }),
			BlocksLost, []string{"254 of 256", "Restart kube-controller-manager"}, nil},
		{"unknown", "worker-3", some, Facts{}, NotGiven, []string{"2 of 3 nodes have one", "Check that", "never the whole cluster CIDR"}, nil},
		{"guessed and full", "worker-5", cut("10.0.0.0/22", 24, 4, 1), Facts{Refused: map[string]Refusal{"worker-5": {Count: 1}}},
			Exhausted, []string{"Widen --cluster-cidr to 10.0.0.0/21 (8 nodes)", "the shape of the Nodes' podCIDRs"}, nil},
		{"duplicate", "b", nodeMap(node(1, "a", "10.244.7.0/24"), node(2, "b", "10.244.7.0/24")), wide, Duplicate,
			[]string{"nodes a, b have the same podCIDR 10.244.7.0/24", "Delete Node b and create it again"}, nil},
		{"overlap: the wide one goes", "a", nodeMap(node(1, "wide", "10.244.0.0/20"), node(2, "a", "10.244.7.0/24"), node(3, "b", "10.244.8.0/24")),
			wide, Overlap, []string{"10.244.0.0/20 of node wide overlaps 10.244.7.0/24 of node a, 10.244.8.0/24 of node b", "Delete Node wide"}, nil},
		{"Service CIDR", "a", nodeMap(node(1, "a", "10.96.3.0/24")), allocatorWith(rangeOf("10.96.0.0/10", 24)), Overlap,
			[]string{"overlaps the Service CIDR 10.96.0.0/12", "Delete Node a"}, nil},
		{"address of a node", "a", nodeMap(node(1, "a", "172.31.0.0/24")), allocatorWith(rangeOf("172.31.0.0/16", 24)), Overlap,
			[]string{"172.31.0.2, the address of node a"}, nil},
		{"out of range", "a", nodeMap(node(1, "a", "10.128.0.0/24")), allocatorWith(rangeOf("10.129.0.0/16", 24)), OutOfRange,
			[]string{"will exit at its next start", "Widen --cluster-cidr to 10.128.0.0/15 (512 nodes)"}, nil},
		{"family", "a", nodeMap(node(1, "a", "fd00::/64")), allocatorWith(rangeOf("fd00::/48", 64)), WrongFamily,
			[]string{"any Service, not even DNS"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Diagnose(c.node, c.nodes, c.facts, time.Now())
			if c.kind == "" {
				if d != nil {
					t.Fatalf("got %s", d.Message())
				}
				return
			}
			if d == nil || d.Kind != c.kind {
				t.Fatalf("got %+v, want %s", d, c.kind)
			}
			for _, want := range c.in {
				if !strings.Contains(d.Message(), want) {
					t.Errorf("no %q in\n%s", want, d.Message())
				}
			}
			for _, not := range c.notIn {
				if strings.Contains(d.Message(), not) {
					t.Errorf("%q in\n%s", not, d.Message())
				}
			}
		})
	}
}

func TestJustCreated(t *testing.T) {
	now := time.Unix(1000, 0)
	nodes := nodeMap(node(1, "a", "10.244.0.0/24"), node(990, "b"), node(5, "c"))
	f := allocatorWith(rangeOf("10.244.0.0/16", 24))
	if d := Diagnose("b", nodes, f, now); d == nil || d.Kind != JustCreated {
		t.Errorf("a new node: %+v", d)
	}
	if d := Diagnose("c", nodes, f, now); d == nil || d.Kind != NotGiven {
		t.Errorf("an old one: %+v", d)
	}
	f.Ranges[0].Cluster = netip.MustParsePrefix("10.244.0.0/24")
	if d := Diagnose("b", nodes, f, now); d == nil || d.Kind != Exhausted {
		t.Errorf("a new node, but there is no room: %+v", d)
	}
}

// The commands of a remedy contain what it changes, as kube-controller-manager parses it.
func TestRemediesHaveFlags(t *testing.T) {
	f := allocatorWith(rangeOf("10.0.0.0/22", 24))
	d := Diagnose("worker-5", cut("10.0.0.0/22", 24, 3, 2), f, time.Now())
	if d == nil || len(d.Remedies) != 2 || !slices.Equal(changeOf(t, d.Remedies[0]).ranges, []Range{rangeOf("10.0.0.0/21", 24)}) ||
		!slices.Equal(changeOf(t, d.Remedies[1]).ranges, []Range{rangeOf("10.0.0.0/22", 25)}) {
		t.Fatalf("got %+v", d)
	}
}

// Excluding the Services from kube-controller-manager's range is a remedy only if nothing else in that range overlaps.
func TestExcludedServicesAreNotAll(t *testing.T) {
	f := allocatorWith(rangeOf("10.96.0.0/11", 24))
	f.LeftOut = nil
	inside := node(2, "b", "10.112.2.0/24")
	inside.Addresses = []netip.Addr{netip.MustParseAddr("10.127.0.1")}
	for _, c := range []struct {
		nodes  map[string]inputs.Node
		remedy string
	}{
		{nodeMap(node(1, "a", "10.112.1.0/24"), node(2, "b", "10.112.2.0/24")), "--service-cluster-ip-range=10.96.0.0/12"},
		{nodeMap(node(1, "a", "10.112.1.0/24"), inside), ""},
	} {
		found := FindAll(c.nodes, f, time.Now())
		if len(found) != 1 || found[0].Kind != Overlap || (len(found[0].Remedies) > 0) != (c.remedy != "") ||
			!strings.Contains(found[0].Message(), c.remedy) {
			t.Errorf("want %q, found %+v", c.remedy, found)
		}
	}
}
