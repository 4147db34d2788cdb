package uplink

import (
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// What the host and the outside lose of each other's packets while the NIC moves. "make bench-uplink" prints medians of
// 10 rounds; without that it is one round, and in mode bridge only what no busy machine explains is an error. What the
// deaths of agent and Open vSwitch cost is measured with a real agent, in test/crash.
func TestRootGaps(t *testing.T) {
	rounds := 1
	if n, err := strconv.Atoi(os.Getenv("FAIRLEAD_BENCH_ROUNDS")); err == nil {
		rounds = n
	}
	f := setupSteer(t, simple)
	f.reached() // and neighbours are known
	for _, f.mode = range []string{api.UplinkBridge, api.UplinkSteer} {
		f.gaps(rounds)
	}
}

func (f *fixture) gaps(rounds int) {
	events := []struct {
		name string
		do   func()
		seen probe.Rounds
	}{
		{name: "nothing", do: func() {}},
		{name: "attach", do: f.nextAgent},
		{name: "restore", do: func() {
			if err := f.restore(); err != nil {
				f.t.Error(err)
			}
		}},
	}
	for range rounds {
		for i := range events {
			e := &events[i]
			reports := f.measure(e.do)
			e.seen.Add(reports)
			for _, r := range reports {
				if r.Lost > r.Sent/10 || r.Lost > 0 && f.mode == api.UplinkSteer {
					f.t.Errorf("%s: %s", e.name, r)
				}
			}
		}
	}
	for i := range events {
		f.t.Logf("GAP %-6s %-6s %-48s %s", f.datapath, f.mode, events[i].name, &events[i].seen)
	}
}

// measure sends every 2 ms in both directions while do runs: IPv4 to the outside, IPv6 from there.
func (f *fixture) measure(do func()) (reports []probe.Report) {
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
		reports = append(reports, s.Stop())
	}
	return reports
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
