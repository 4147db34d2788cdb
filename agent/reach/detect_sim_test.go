package reach

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// breakage is a fault that a world can have between nodes, each with a partner of its own.
type breakage struct {
	name   string
	breaks func(w *world, broken map[[2]int]bool)
	alone  bool // it affects all paths of a node
	// limit is the time within which it must be reported, in seconds.
	limit int
}

// breakages are those whose time from break to report is measured.
func breakages() []breakage {
	pairs := func(one, full bool, at place) func(w *world, broken map[[2]int]bool) {
		return func(w *world, broken map[[2]int]bool) {
			w.place = func(_, _ *simulated) place { return at }
			w.passes = func(from, to *simulated, isFull bool) bool {
				hit := broken[[2]int{from.number, to.number}] || !one && broken[[2]int{to.number, from.number}]
				return !hit || full && !isFull
			}
		}
	}
	node := func(pingsToo bool) func(w *world, broken map[[2]int]bool) {
		return func(w *world, broken map[[2]int]bool) {
			w.passes = func(from, to *simulated, _ bool) bool {
				return !broken[[2]int{from.number, from.number}] && !broken[[2]int{to.number, to.number}]
			}
			if pingsToo {
				w.pings = w.passes
			}
		}
	}
	cable := func(w *world, broken map[[2]int]bool) {
		node(true)(w, broken)
		for at := range broken {
			w.unplugged = w.nodes[at[0]]
		}
	}
	gateway := func(w *world, broken map[[2]int]bool) {
		node(true)(w, broken)
		for at := range broken {
			w.alone = w.nodes[at[0]]
		}
	}
	underlay := func(w *world, broken map[[2]int]bool) {
		pairs(false, false, between)(w, broken)
		w.pings = w.passes
	}
	return []breakage{
		{"all paths of a node", node(false), true, 25},
		{"all paths of a node, and ping", node(true), true, 67},
		{"a node has no carrier", cable, true, 25},
		{"all paths of a node, its gateway too", gateway, true, 25},
		{"a pair, dropped between", pairs(false, false, between), false, 35},
		{"a pair, and ping", underlay, false, 35},
		{"a pair, dropped by the nodes", pairs(false, false, atReceiver), false, 35},
		{"one direction", pairs(true, false, between), false, 30},
		{"full-size packets, one direction", pairs(true, true, between), false, 42},
	}
}

// dual gives each node a second podCIDR, of IPv6, and starts the agents again.
func (w *world) dual() {
	for _, s := range w.nodes {
		board := *s.Board.Load()
		board.Peers = slices.Clone(board.Peers)
		for i := range board.Peers {
			p := &board.Peers[i]
			other := desired.PeerCIDR{Prefix: second(p.PodCIDRs[0].Prefix), Path: desired.PathTunnel}
			p.PodCIDRs = append(slices.Clip(p.PodCIDRs), other)
		}
		s.Board.Publish(&board)
		own := pure.End(second(netip.PrefixFrom(s.addrs[0], 24))).Addr()
		s.addrs = append(s.addrs, own)
		w.byAddr[own] = s
		s.restart()
	}
}

// second is the IPv6 podCIDR of the node that has this one.
func second(p netip.Prefix) netip.Prefix {
	a := netip.MustParseAddr("fd77::").As16()
	a[7] = p.Addr().As4()[2]
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// chosen returns nodes or pairs to break: pairs in which one end probes the other by name, or in which neither does.
func (w *world) chosen(b breakage, asked bool, most int) (out [][2]int) {
	used := map[int]bool{}
	order := w.random.Perm(len(w.nodes))
	for _, i := range order {
		for _, j := range order {
			s, peer := w.nodes[i], w.nodes[j]
			names := slices.Contains(s.wanted, peer.NodeName) || slices.Contains(peer.wanted, s.NodeName)
			if len(out) < most && !used[i] && !used[j] && (b.alone && i == j || !b.alone && i != j && names == asked) {
				used[i], used[j] = true, true
				out = append(out, [2]int{i, j})
			}
		}
	}
	return out
}

// toldAfter is the time from each break until one of its ends reports it; at most limit.
func (w *world) toldAfter(chosen [][2]int, limit time.Duration) (out []time.Duration) {
	first := map[[2]int]time.Duration{}
	for began := w.now; len(first) < len(chosen) && w.now.Sub(began) < limit; {
		w.run(500 * time.Millisecond)
		for _, c := range chosen {
			if first[c] == 0 && (w.tells(c[0], c[1]) || w.tells(c[1], c[0])) {
				first[c] = w.now.Sub(began)
			}
		}
	}
	for _, c := range chosen {
		if first[c] == 0 {
			first[c] = limit
		}
		out = append(out, first[c])
	}
	return out
}

// tells reports whether a node has a finding about another node, or any finding if both are the same.
func (w *world) tells(node, peer int) bool {
	for _, f := range w.nodes[node].report.Findings {
		if node == peer || f.Node == w.nodes[peer].NodeName {
			return true
		}
	}
	return false
}

// toldTimes are the detection times of a number of breaks, each at another phase of the agents' turns.
func toldTimes(b breakage, nodes int, dual, asked bool, breaks int, limit time.Duration) (all []time.Duration) {
	for seed := uint64(1); len(all) < breaks; seed++ { // a world of many nodes breaks at several at once
		w := newWorld(nodes)
		w.random = rand.New(rand.NewPCG(seed, uint64(nodes)))
		if dual {
			w.dual()
		}
		for _, s := range w.nodes {
			w.random.Shuffle(len(s.queue), func(i, j int) { s.queue[i], s.queue[j] = s.queue[j], s.queue[i] })
		}
		w.run(30*time.Second + time.Duration(w.random.IntN(200))*tick)
		most := 1
		if !b.alone {
			most = max(1, nodes/5)
		}
		chosen, broken := w.chosen(b, asked, most), map[[2]int]bool{}
		for _, c := range chosen {
			broken[c] = true
		}
		b.breaks(w, broken)
		all = append(all, w.toldAfter(chosen, limit)...)
	}
	slices.Sort(all)
	return all
}

// The time from a fault to its report: the table in docs/reachability.md.
func TestTimeToDetect(t *testing.T) {
	if testing.Short() {
		t.Skip("breaks 400 paths: make test")
	}
	for _, b := range breakages() {
		for _, nodes := range []int{3, 10, 60} {
			for _, dual := range []bool{false, true} {
				breaks := map[int]int{3: 12, 10: 8, 60: 12}[nodes]
				if b.alone {
					breaks = map[int]int{3: 12, 10: 4, 60: 1}[nodes]
				}
				times := toldTimes(b, nodes, dual, true, breaks, 150*time.Second)
				logTold(t, fmt.Sprintf("%s, %d nodes", b.name, nodes), dual, times)
				if longest := times[len(times)-1]; longest > time.Duration(b.limit)*time.Second {
					t.Errorf("%s: reported after %s, want at most %d s", b.name, longest, b.limit)
				}
			}
		}
	}
}

func logTold(t *testing.T, what string, dual bool, times []time.Duration) {
	t.Helper()
	stack := map[bool]string{false: "single", true: "dual"}[dual]
	n := len(times)
	t.Logf("%-46s %-6s  median %5.1f s  99th percentile %5.1f s  (%d breaks)", what, stack, times[n/2].Seconds(),
		times[min(n-1, n*99/100)].Seconds(), n)
}

// BenchmarkTimeUntilToldOfOthers is the same for pairs in which neither end probes the other when they break: they are
// partners once in 60 epochs of 20 seconds, so 20 minutes later at the latest.
func BenchmarkTimeUntilToldOfOthers(b *testing.B) {
	oneDirection := breakages()[slices.IndexFunc(breakages(), func(b breakage) bool { return b.name == "one direction" })]
	for _, dual := range []bool{false, true} {
		name := map[bool]string{false: "single", true: "dual"}[dual]
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				times := toldTimes(oneDirection, 60, dual, false, 12, 25*time.Minute)
				b.ReportMetric(times[len(times)/2].Seconds(), "median-s")
				b.ReportMetric(times[len(times)-1].Seconds(), "longest-s")
			}
		})
	}
}
