package podcidr

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// naive is a second implementation of kube-controller-manager's allocator, independent of the model: it lists all
// blocks and checks each.
type naive struct {
	blocks [][]netip.Prefix // by range
	used   [][]bool
	next   []int
	nodes  map[string]inputs.Node
}

func startNaive(ranges []Range, leftOut []netip.Prefix, nodes map[string]inputs.Node) (*naive, error) {
	k := &naive{nodes: map[string]inputs.Node{}}
	for _, r := range ranges {
		var blocks []netip.Prefix
		for a := r.Cluster.Masked().Addr(); r.Cluster.Contains(a); {
			p := netip.PrefixFrom(a, r.Mask)
			blocks = append(blocks, p)
			a = lastOf(p).Next()
		}
		k.blocks = append(k.blocks, blocks)
		k.used = append(k.used, make([]bool, len(blocks)))
		k.next = append(k.next, 0)
		for _, s := range leftOut {
			k.mark(len(k.blocks)-1, s, true)
		}
	}
	for name, n := range nodes {
		if err := k.occupy(n); err != nil {
			return nil, err
		}
		k.nodes[name] = n
	}
	return k, k.serveWaiting()
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (k *naive) mark(i int, p netip.Prefix, used bool) (any bool) {
	for j, b := range k.blocks[i] {
		if b.Overlaps(p) {
			k.used[i][j], any = used, true
		}
	}
	return any
}

func (k *naive) occupy(n inputs.Node) error {
	for i, p := range n.PodCIDRs {
		if i >= len(k.blocks) || !k.mark(i, p, true) {
			return fmt.Errorf("%s of node %s is out of range", p, n.Name)
		}
	}
	return nil
}

func (k *naive) serveWaiting() error {
	for _, name := range slices.Sorted(maps.Keys(k.nodes)) {
		n := k.nodes[name]
		if len(n.PodCIDRs) > 0 {
			continue
		}
		for i := range k.blocks {
			j := k.next[i]
			for tries := 0; k.used[i][j]; tries++ {
				if j = (j + 1) % len(k.blocks[i]); tries == len(k.blocks[i]) {
					return errors.New("no block is left for node " + name)
				}
			}
			k.used[i][j] = true
			k.next[i] = (j + 1) % len(k.blocks[i])
			n.PodCIDRs = append(n.PodCIDRs, k.blocks[i][j])
		}
		k.nodes[name] = n
	}
	return nil
}

// change is what a remedy changes.
type change struct {
	ranges   []Range        // kube-controller-manager's, if they change
	leftOut  []netip.Prefix // likewise
	recreate []string       // Nodes
	podCIDRs map[string][]netip.Prefix
}

// changeOf parses the commands of a remedy as a user would.
func changeOf(t *testing.T, r report.Remedy) change {
	t.Helper()
	c := change{podCIDRs: map[string][]netip.Prefix{}}
	for _, command := range r.Commands {
		words := strings.Fields(command)
		switch {
		case strings.HasPrefix(command, "#   --"):
			f := parseCommand(words[1:])
			ranges, err := f.ranges()
			leftOut, err2 := parseCIDRs(f["service-cluster-ip-range"])
			if err := errors.Join(err, err2); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			c.ranges, c.leftOut = ranges, leftOut
		case strings.HasPrefix(command, "kubectl delete node "):
			c.recreate = words[3:]
		case strings.HasPrefix(command, "kubectl patch node "):
			var patch struct {
				Spec struct{ PodCIDRs []netip.Prefix }
			}
			if err := json.Unmarshal([]byte(strings.Trim(words[5], "'")), &patch); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			c.podCIDRs[words[3]] = patch.Spec.PodCIDRs
		}
	}
	return c
}

// in are the Nodes after they were deleted and recreated, by kubelets or manually.
func (c change) in(nodes map[string]inputs.Node) map[string]inputs.Node {
	after := maps.Clone(nodes)
	for _, name := range c.recreate {
		n := after[name]
		n.PodCIDRs = c.podCIDRs[name]
		after[name] = n
	}
	return after
}

// carryOut applies the change, and returns the resulting nodes.
func carryOut(c change, f Facts, nodes map[string]inputs.Node) (map[string]inputs.Node, error) {
	if f.Allocates == No && c.ranges == nil {
		return c.in(nodes), nil
	}
	f = c.facts(f)
	k, err := startNaive(f.Ranges, f.LeftOut, c.in(nodes))
	if err != nil {
		return nil, err
	}
	return k.nodes, nil
}

// stillWrong returns what is wrong after a remedy for d, empty if the remedy has worked.
func stillWrong(d report.Finding, c change, f Facts, before, after map[string]inputs.Node) string {
	again := func(name string) bool { return slices.Contains(c.recreate, name) }
	if len(before) != len(after) {
		return "nodes are lost"
	}
	for name, n := range after {
		if len(n.PodCIDRs) == 0 && slices.Contains(d.About, name) {
			return "node " + name + " has no podCIDR"
		}
		if had := before[name].PodCIDRs; len(had) > 0 && !again(name) {
			if !slices.Equal(had, n.PodCIDRs) {
				return "node " + name + " lost " + report.Join(had, ",")
			}
			continue // its overlap is older, or is found from the other side
		}
		if len(before[name].PodCIDRs) == 0 && !slices.Contains(d.About, name) {
			continue // it would have got the same without the remedy
		}
		for _, p := range n.PodCIDRs { // a new podCIDR
			for other, o := range after {
				for _, q := range o.PodCIDRs {
					if other != name && p.Overlaps(q) {
						return fmt.Sprintf("%s of node %s overlaps %s of node %s", p, name, q, other)
					}
				}
				for _, a := range o.Addresses {
					if p.Contains(a) {
						return fmt.Sprintf("%s of node %s holds %s", p, name, a)
					}
				}
			}
			for _, s := range f.Services {
				if p.Overlaps(s) {
					return fmt.Sprintf("%s of node %s overlaps the Service CIDR %s", p, name, s)
				}
			}
		}
	}
	for _, left := range FindAll(after, c.facts(f), time.Now()) {
		if left.Kind == d.Kind && slices.Equal(left.About, d.About) {
			return "it is as before: " + left.Cause
		}
	}
	return ""
}

// facts are those of the cluster after the change.
func (c change) facts(f Facts) Facts {
	if c.ranges != nil {
		f.Ranges = c.ranges
		f.Allocates = Yes
	}
	if c.leftOut != nil {
		f.LeftOut = c.leftOut
	}
	return f
}

// randomCluster is a cluster with a history: other ranges, other masks, podCIDRs assigned manually, Services and nodes
// inside the range.
func randomCluster(random *rand.Rand) (Facts, map[string]inputs.Node) {
	pick := func(list ...int) int { return list[random.IntN(len(list))] }
	from := netip.AddrFrom4([4]byte{10, byte(pick(0, 96, 100, 244)), byte(random.IntN(256)), 0})
	v4 := Range{Cluster: netip.PrefixFrom(from, pick(18, 20, 21, 22)).Masked(), Mask: pick(22, 24, 25, 26)}
	from = netip.MustParseAddr("fd00:0:0:f0::")
	v6 := Range{Cluster: netip.PrefixFrom(from, pick(58, 60, 61, 62)).Masked(), Mask: pick(62, 64, 65)}
	f := allocatorWith([][]Range{{v4}, {v6}, {v4, v6}, {v6, v4}, {v4}}[random.IntN(5)]...)
	f.Services = prefixes([]string{"10.96.0.0/12", "10.100.0.0/20", "10.0.0.0/21", "172.20.0.0/16"}[random.IntN(4)])
	f.LeftOut = f.Services
	f.Allocates = Answer(pick(int(Yes), int(Yes), int(No), int(Unknown)))
	if random.IntN(3) == 0 {
		f.LeftOut = nil
	}
	nodes := map[string]inputs.Node{}
	for i := range random.IntN(14) {
		n := node(random.IntN(1000), fmt.Sprintf("n%02d", i))
		for _, r := range f.Ranges {
			if kind := random.IntN(12); kind > 2 {
				n.PodCIDRs = append(n.PodCIDRs, randomPodCIDR(r, kind, i, random))
			} else if kind == 0 && random.IntN(3) == 0 {
				n.Addresses = []netip.Addr{r.Cluster.Addr().Next()}
			}
		}
		if len(n.PodCIDRs) != len(f.Ranges) && random.IntN(4) > 0 {
			n.PodCIDRs = nil
		}
		nodes[n.Name] = n
	}
	return f, nodes
}

func randomPodCIDR(r Range, kind, i int, random *rand.Rand) netip.Prefix {
	switch {
	case kind == 3 && r.Cluster.Bits() > 3: // perhaps outside of the range
		wide := Range{Cluster: netip.PrefixFrom(r.Cluster.Addr(), r.Cluster.Bits()-2).Masked(), Mask: r.Mask}
		return wide.Block(random.Uint64N(wide.Blocks()))
	case kind == 4: // another mask
		return netip.PrefixFrom(r.Block(random.Uint64N(r.Blocks())).Addr(), r.Mask+random.IntN(4)-2).Masked()
	case kind == 5: // any block
		return r.Block(random.Uint64N(r.Blocks()))
	}
	return r.Block(uint64(i) % r.Blocks())
}

// Every proposed remedy works in the independent implementation, and there are enough of them.
func TestRemediesWork(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	proposed := map[string]int{}
	silent := map[string]int{}
	for i := range 4000 {
		f, nodes := randomCluster(random)
		for _, d := range FindAll(nodes, f, time.Now()) {
			if len(d.Remedies) == 0 {
				silent[d.Kind]++
			}
			for _, r := range d.Remedies {
				proposed[d.Kind]++
				c := changeOf(t, r)
				after, err := carryOut(c, f, nodes)
				wrong := ""
				if err != nil {
					wrong = err.Error()
				} else {
					wrong = stillWrong(d, c, f, nodes, after)
				}
				if wrong != "" {
					t.Fatalf("cluster %d of seed %d: %s\nremedy: %s\n%+v\nbut: %s\nfacts: %+v\nnodes: %s", i, seed, d.Message(), r.Text,
						r, wrong, f, table(nodes))
				}
			}
		}
	}
	t.Log("remedies proposed", proposed, "none proposed", silent)
	for _, k := range []string{Exhausted, AllocatorOff, Duplicate, Overlap, OutOfRange} {
		if proposed[k] < 50 {
			t.Errorf("only %d remedies for %s: this test tries too little", proposed[k], k)
		}
	}
}

func table(nodes map[string]inputs.Node) string {
	out := ""
	for _, n := range sorted(nodes) {
		out += fmt.Sprintf("\n%s %v at %v, made %d", n.Name, n.PodCIDRs, n.Addresses, n.Created.Unix())
	}
	return out
}
