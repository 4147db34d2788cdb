package uplink

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// Packets lost between the host and the outside while the NIC moves. "make bench-uplink" prints medians of 10 rounds;
// without it there is one round. What crashes of agent and Open vSwitch cost is measured with a real agent, in
// test/crash.
func TestRootGaps(t *testing.T) {
	rounds := 1
	if n, err := strconv.Atoi(os.Getenv("FAIRLEAD_BENCH_ROUNDS")); err == nil {
		rounds = n
	}
	f := setupSteer(t, simple)
	f.reached() // resolves the neighbours
	f.gaps(api.UplinkBridge, rounds, f.elsewhere())
	// In mode steer the host's packets wait for no process, so a busy machine is no excuse, and there are no controls.
	f.gaps(api.UplinkSteer, rounds, nil)
}

// path is the path of a stream.
type path struct {
	from, to         *nstest.NS
	fromAddr, toAddr string
}

// between are the paths between host and outside.
func (f *fixture) between() []path {
	return []path{{f.node, f.outside, hostIP, outIP}, {f.outside, f.node, outIP6, hostIP6}}
}

// elsewhere are the controls: two hosts on another bridge of the same Open vSwitch, which no event affects.
func (f *fixture) elsewhere() []path {
	f.t.Helper()
	const bridge, one, two = "br-control", "198.51.100.1", "198.51.100.2"
	f.ovs.AddBridge(bridge)
	f.ovs.Ctl("set-fail-mode", bridge, "standalone")
	hosts := []*nstest.NS{nstest.New(f.t), nstest.New(f.t)}
	for i, addr := range []string{one, two} {
		port := "control" + strconv.Itoa(i)
		nstest.Veth(f.node, port, hosts[i], nic)
		hosts[i].Exec("ethtool", "-K", nic, "tx", "off")
		hosts[i].IP("addr add " + addr + "/24 dev " + nic)
		f.node.Exec("sysctl", "-q", "-w", "net.ipv6.conf."+port+".disable_ipv6=1", "net.ipv4.conf."+port+".arp_ignore=8")
		f.ovs.Ctl("add-port", bridge, port)
	}
	nstest.Wait(f.t, time.Minute, "the controls pass", func() bool {
		_, err := hosts[0].Run("ping", "-c1", "-W1", two)
		return err == nil
	})
	return []path{{hosts[0], hosts[1], one, two}, {hosts[1], hosts[0], two, one}}
}

// move is an event on the NIC. A stream may lose up to allowed packets during it, and none after it.
type move struct {
	name    string
	do      func()
	allowed int
	seen    probe.Rounds
}

// lost returns the maximum that a stream has lost, and whether a packet was lost after end.
func lost(reports []probe.Report, end time.Time) (most int, after bool) {
	for _, r := range reports {
		most, after = max(most, r.Lost), after || r.LastLost.After(end)
	}
	return most, after
}

func (f *fixture) gaps(mode string, rounds int, controls []path) {
	f.mode = mode
	moves := []*move{{name: "nothing", do: func() {}}, {name: "attach", do: f.nextAgent},
		{name: "restore", do: func() {
			if err := f.restore(); err != nil {
				f.t.Error(err)
			}
		}}}
	if f.mode == api.UplinkBridge && f.datapath == ovstest.System {
		// The time between the kernel's attach and ovs-vswitchd's: more than 0.2 s of work on this single CPU would be
		// too much.
		moves[1].allowed = 100
	}
	for range rounds {
		for try := 1; f.round(moves, try, controls) && !f.t.Failed(); try++ {
		}
	}
	for _, m := range moves {
		f.t.Logf("GAP %-6s %-6s %-48s %s", f.datapath, f.mode, m.name, &m.seen)
	}
}

// tries limits how often the NIC is moved again because the controls lost packets, too: such a try proves nothing.
const tries = 8

// round moves the NIC once, there and back. It is to be repeated if the controls excuse lost packets. Without that
// excuse, or at the last try, lost packets are an error.
func (f *fixture) round(moves []*move, try int, controls []path) (again bool) {
	f.t.Helper()
	between := f.between()
	for _, m := range moves {
		reports, end := f.measure(slices.Concat(between, controls), m.do)
		m.seen.Add(reports[:len(between)])
		host, after := lost(reports[:len(between)], end)
		control, _ := lost(reports[len(between):], end)
		f.t.Logf("%s, mode %s: try %d: lost %d of %d, after it: %t; without the event, in %d streams: %d", m.name, f.mode, try,
			host, reports[0].Sent, after, len(controls), control)
		bad := host > m.allowed || after
		if bad && (!probe.Excused(reports[:len(between)], reports[len(between):]) || try == tries) {
			f.t.Errorf("%s: lost %d packets, %d may be, and none after it: %v", m.name, host, m.allowed, reports)
		}
		again = again || bad
	}
	return again
}

// measure sends every 2 ms on all paths while do runs, and for half a second after it.
func (f *fixture) measure(paths []path, do func()) (reports []probe.Report, end time.Time) {
	f.t.Helper()
	var streams []*probe.Stream
	for _, p := range paths {
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
	time.Sleep(200 * time.Millisecond) // of the streams, before the event
	do()
	end = time.Now()
	time.Sleep(500 * time.Millisecond) // and after
	reports = make([]probe.Report, len(streams))
	var stops sync.WaitGroup
	for i, s := range streams { // in parallel: each waits for late replies
		stops.Go(func() { reports[i] = s.Stop() })
	}
	stops.Wait()
	return reports, end
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
