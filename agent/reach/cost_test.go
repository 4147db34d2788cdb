package reach

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// manyNodes is the number of nodes for which the cost is limited: to maxPackets a second, and maxMemory bytes.
const manyNodes, maxPackets, maxMemory = 5000, 5, 1 << 20

// large is one agent in a cluster of manyNodes, with its view of the other ends.
type large struct {
	*session
	silent      bool // no other end is heard
	others      map[netip.Addr]*pure.Link
	sent        []time.Time
	kept        []heard
	transferred int
}

// largePeers are all nodes but this one, by name.
func largePeers() (peers []desired.Peer) {
	for i := range manyNodes - 1 {
		hi, lo := byte(i/256), byte(i)
		peers = append(peers, desired.Peer{Name: fmt.Sprintf("node%04d", i), Tunnel: netip.AddrFrom4([4]byte{100, 64, hi, lo}),
			PodCIDRs: []desired.PeerCIDR{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + hi, lo, 0}), 24),
				Path: desired.PathTunnel}}})
	}
	return peers
}

func newLarge(peers []desired.Peer) *large {
	l := &large{others: map[netip.Addr]*pure.Link{}}
	board := status.NewBoard(nil)
	board.Publish(&status.Status{Computed: status.Computed{Peers: peers}})
	cfg := api.AgentConfig{Reachability: api.ReachabilityProbe, TunnelType: api.TunnelGeneve}
	l.session = newSession(New(Parts{Config: cfg, NodeName: "this", Board: board, Metrics: status.NewMetrics("test"),
		Interval: 2 * time.Second, Log: logr.Discard()}), end{addrs: []netip.Addr{netip.MustParseAddr("10.77.1.254")}, mtu: 1450})
	l.dial = func(_ netip.AddrPort, to netip.Addr) (socket, error) { return answered{l, to}, nil }
	l.read = func(time.Time) []heard {
		defer func() { l.kept = nil }()
		return l.kept
	}
	l.serve = func(time.Time) {}
	l.connect = func(_, _ netip.Addr, _ []byte, _ bool) (transfer, error) {
		l.transferred++
		return immediate{}, nil
	}
	l.open = func(*status.Status, path) tap { return blind{} }
	l.session.examine = func(_ context.Context, _ *status.Status, paths []path) []examined {
		out := make([]examined, len(paths))
		for i, p := range paths {
			out[i].path = p
		}
		return out
	}
	return l
}

// immediate is a transfer that passes immediately.
type immediate struct{}

func (immediate) step() (pure.Outcome, bool) { return pure.Passed, true }
func (immediate) Close() error               { return nil }

// blind is a capture that sees nothing.
type blind struct{}

func (blind) end() (api.ReachTap, bool) { return api.ReachTap{}, false }

// answered is a socket to an end that sends a packet for each one that it receives.
type answered struct {
	*large
	to netip.Addr
}

func (a answered) Write(b []byte) (int, error) {
	a.sent = append(a.sent, time.Now())
	p, err := pure.Parse(b)
	if err == nil && !a.silent {
		a.hears(a.to).Receive(p, time.Now())
		a.says(a.to, false)
	}
	return len(b), err
}

func (answered) Refused() bool { return false }
func (answered) Close() error  { return nil }

// hears is the state of the end with that address.
func (l *large) hears(addr netip.Addr) *pure.Link {
	if l.others[addr] == nil {
		l.others[addr] = &pure.Link{Interval: l.Interval}
	}
	return l.others[addr]
}

// says makes the end with that address send a packet.
func (l *large) says(addr netip.Addr, asks bool) {
	p := l.hears(addr).Next(time.Now())
	p.From, p.To, p.Initiates, p.MTU = pure.NameHash(l.ends[addr]), pure.NameHash(l.NodeName), asks, 1450
	if len(l.kept) < maxHeard { // like a full kernel queue
		l.kept = append(l.kept, heard{addr, p, time.Now()})
	}
}

// run runs the agent's own loop for a time on synctest's clock.
func (l *large) run(d time.Duration, meanwhile func(second int)) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { l.loop(ctx); close(ended) }()
	for second := range int(d / time.Second) {
		time.Sleep(time.Second)
		synctest.Wait()
		if meanwhile != nil {
			meanwhile(second)
		}
	}
	sent := len(l.sent)
	cancel()
	<-ended
	l.sent = l.sent[:sent] // without those that announce its stop
}

// maxIn is the largest number of packets that were sent in any period of this length.
func (l *large) maxIn(d time.Duration) (most int) {
	first := 0
	for last, at := range l.sent {
		for at.Sub(l.sent[first]) >= d {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// In a cluster of 5,000 nodes, no node sends more than 5 packets a second, whatever the others do. While all is well,
// it reports no fault, which would cause an Event.
func TestPacketsOfManyNodes(t *testing.T) {
	const period = 10 * time.Minute
	peers := largePeers()
	for _, c := range []struct {
		name      string
		silent    bool
		least     int // packets a second
		meanwhile func(l *large, second int)
	}{
		{name: "all is well", least: 4},
		{name: "no other node is heard", silent: true, least: 4},
		{name: "nodes are probed by request", least: 4, meanwhile: func(l *large, second int) {
			for i := range maxRequested { // an error means one node too many
				_ = l.Request(peers[(second*maxRequested+i)%len(peers)].Name, time.Now())
			}
		}},
		{name: "many nodes ask this one", least: 4, meanwhile: func(l *large, _ int) {
			for i := range 100 {
				l.says(endsOf(peers[i])[0], true)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLarge(peers)
				l.silent = c.silent
				findings := 0
				l.run(period, func(second int) {
					findings += len(l.Report().Findings)
					if c.meanwhile != nil {
						c.meanwhile(l, second)
					}
				})
				n, most := len(l.sent), l.maxIn(10*time.Second)
				t.Logf("%d packets in %s, at most %d in 10 s; %d nodes probed at the end", n, period, most, len(l.queue))
				if seconds := int(period / time.Second); n < c.least*seconds || most > 10*maxPackets {
					t.Errorf("%d packets in %s, and %d in 10 s: want at least %d, and at most %d", n, period, most, c.least*seconds,
						10*maxPackets)
				}
				most = int(period/(pure.TransferEvery*l.Interval)) + 1
				if l.transferred > most || c.name == "all is well" && l.transferred < most-2 {
					t.Errorf("%d transfers, want %d", l.transferred, most)
				}
				if findings > 0 && c.name == "all is well" {
					t.Errorf("%d findings", findings)
				}
			})
		})
	}
}

// The memory that an agent needs to probe is small compared with that of the Nodes, which it has anyway.
func TestMemoryOfManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peers := largePeers()
		before := inUse()
		l := newLarge(peers)
		l.run(10*time.Minute, nil)
		l.sent, l.others = nil, nil
		kept := inUse() - before
		runtime.KeepAlive(l)
		runtime.KeepAlive(peers)
		t.Logf("%d KiB kept with %d Nodes", kept>>10, manyNodes)
		if kept > maxMemory {
			t.Errorf("want at most %d", maxMemory)
		}
	})
}

// inUse is the memory of live objects, in bytes.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkManyNodes measures the CPU time per second in a cluster of 5,000 healthy nodes, without the kernel's work to
// send and receive: 1,000 CPU-us/s are 0.1 % of a core. It includes the other ends' part. "again" recomputes the nodes
// every 15 seconds, as a resync does, "once" never.
func BenchmarkManyNodes(b *testing.B) {
	const period = 10 * time.Minute
	for _, c := range []struct {
		name  string
		every int // seconds
	}{{"once", int(period)}, {"again", 15}} {
		b.Run(c.name, func(b *testing.B) {
			var used time.Duration
			for b.Loop() {
				synctest.Test(new(testing.T), func(*testing.T) {
					l := newLarge(largePeers())
					before := cpu()
					l.run(period, func(second int) {
						if second%c.every == c.every-1 {
							l.Board.Publish(&status.Status{Computed: status.Computed{Peers: slices.Clone(l.Board.Load().Peers)}})
						}
					})
					used += cpu() - before
				})
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N)/period.Seconds(), "CPU-us/s")
		})
	}
}

// cpu is the CPU time of this process.
func cpu() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
