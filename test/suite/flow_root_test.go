package suite

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// flow is datagrams of one socket to another, a hundred a second. Its first packet that leaves by the underlay decides
// whether all that follow are masqueraded.
type flow struct {
	from, to place
	done     chan struct{}
	all      sync.WaitGroup
	mu       sync.Mutex
	sources  map[netip.Addr]int // datagrams since the last check, by the address that the receiver saw
}

// startFlow sends until the test ends.
func startFlow(t *testing.T, from, to place, at netip.Addr) *flow {
	t.Helper()
	f := &flow{from: from, to: to, done: make(chan struct{}), sources: map[netip.Addr]int{}}
	var server *net.UDPConn
	must(t, 0, to.do(func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{IP: at.AsSlice()})
		return err
	}))
	client, err := dial(from, "udp", server.LocalAddr().String())
	must(t, 0, err)
	f.all.Go(func() {
		for buf := make([]byte, 64); ; {
			_, source, err := server.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			f.mu.Lock()
			f.sources[source.Addr().Unmap()]++
			f.mu.Unlock()
		}
	})
	f.all.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-f.done:
				return
			case <-tick.C:
				client.Write([]byte("datagram")) // an ICMP error is returned by the next Write, and ignored
			}
		}
	})
	t.Cleanup(func() { close(f.done); client.Close(); server.Close(); f.all.Wait() })
	return f
}

// check expects datagrams to arrive, all so far with the sender's own address.
func (f *flow) check(t *testing.T, when string, want netip.Addr) {
	t.Helper()
	look := func() map[netip.Addr]int {
		f.mu.Lock()
		defer f.mu.Unlock()
		s := f.sources
		f.sources = map[netip.Addr]int{}
		return s
	}
	before := look()
	after := map[netip.Addr]int{}
	wait(t, 15*time.Second, func() string {
		for a, n := range look() {
			after[a] += n
		}
		if len(after) == 0 {
			return when + ": nothing of a flow from " + f.from.name + " comes to " + f.to.name
		}
		return ""
	})
	for _, seen := range []map[netip.Addr]int{before, after} {
		for a, n := range seen {
			if a != want {
				t.Errorf("%s: %s sees %d datagrams of %s come from %s, want %s", when, f.to.name, n, f.from.name, a, want)
			}
		}
	}
}
