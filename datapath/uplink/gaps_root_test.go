package uplink

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// gaps are what the host lost in a number of rounds of one kind of event: of IPv4 to the outside, of IPv6 from there.
type gaps struct {
	longest []time.Duration // in the worst direction of each round
	lost    []int
	sent    int
}

func (g gaps) String() string {
	slices.Sort(g.longest)
	slices.Sort(g.lost)
	mid := len(g.lost) / 2
	return fmt.Sprintf("longest gap %4d ms (%d to %d), lost %d (%d to %d) of %d", g.longest[mid].Milliseconds(),
		g.longest[0].Milliseconds(), g.longest[len(g.longest)-1].Milliseconds(), g.lost[mid], g.lost[0],
		g.lost[len(g.lost)-1], g.sent)
}

// What the host and the outside lose of each other's packets. "make bench-uplink" prints medians of 10 rounds; without
// that it is one round, and only what no busy machine explains is an error.
func TestRootGaps(t *testing.T) {
	rounds := 1
	if n, err := strconv.Atoi(os.Getenv("FAIRLEAD_BENCH_ROUNDS")); err == nil {
		rounds = n
	}
	f := setup(t, simple)
	f.reached() // and neighbours are known
	events := []struct {
		name  string
		do    func()
		loses bool // packets, as a matter of course
	}{
		{"nothing", func() {}, false},
		{"attach", f.nextAgent, false},
		{"agent killed and started", func() { f.run("attach", 0) }, false},
		{"ovs-vswitchd killed and started", func() { f.ovs.Vswitchd.Kill(); f.ovs.Vswitchd.Start() }, true},
		{"restore", func() {
			if err := f.restore(); err != nil {
				t.Error(err)
			}
		}, false},
	}
	seen := make([]gaps, len(events))
	for range rounds {
		for i, e := range events {
			g := &seen[i]
			longest, lost, sent := f.measure(e.do)
			g.longest, g.lost, g.sent = append(g.longest, longest), append(g.lost, lost), sent
			if !e.loses && lost > sent/10 {
				t.Errorf("%s: lost %d of %d", e.name, lost, sent)
			}
		}
	}
	for i, e := range events {
		t.Logf("GAP %-6s %-31s %s", f.datapath, e.name, seen[i])
	}
}

// measure sends every 2 ms in both directions while do runs.
func (f *fixture) measure(do func()) (longest time.Duration, lost, sent int) {
	f.t.Helper()
	var streams []*probe.Stream
	for _, p := range []struct {
		from, to         *nstest.NS
		fromAddr, toAddr string
	}{{f.node, f.outside, hostIP, outIP}, {f.outside, f.node, outIP6, hostIP6}} {
		from, to := f.netnsOf(p.from), f.netnsOf(p.to)
		port, stop, err := probe.Echo(to, netip.MustParseAddr(p.toAddr))
		if err != nil {
			f.t.Fatal(err)
		}
		defer stop()
		s, err := probe.Start(from, netip.MustParseAddr(p.fromAddr),
			netip.AddrPortFrom(netip.MustParseAddr(p.toAddr), port), 2*time.Millisecond)
		if err != nil {
			f.t.Fatal(err)
		}
		streams = append(streams, s)
	}
	time.Sleep(200 * time.Millisecond) // of the streams, before
	do()
	time.Sleep(500 * time.Millisecond) // and after
	for _, s := range streams {
		r := s.Stop()
		longest, lost, sent = max(longest, r.LongestGap), lost+r.Lost, sent+r.Sent
	}
	return longest, lost, sent
}

func (f *fixture) netnsOf(n *nstest.NS) ns.NetNS {
	f.t.Helper()
	netns, err := ns.GetNS(n.Path)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { netns.Close() })
	return netns
}
