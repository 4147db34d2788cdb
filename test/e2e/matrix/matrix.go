package matrix

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/probe"
)

// How often each way is tried: so seldom that a small machine which runs a whole cluster loses nothing by itself.
const (
	establishedEvery = 20 * time.Millisecond
	newEvery         = 50 * time.Millisecond
	httpEvery        = 200 * time.Millisecond
)

// Place is where a way begins or ends.
type Place struct {
	Name  string
	NetNS ns.NetNS
	Addr  netip.Addr
}

// Way is from one place to another. Kind says whose packets these are: what is told is told of each kind.
type Way struct {
	Kind     string
	From, To Place
}

func (w Way) String() string { return w.From.Name + " -> " + w.To.Name }

// Matrix is ways under load.
type Matrix struct {
	ways  []*traffic
	stops []func()
}

// traffic is what runs on one way.
type traffic struct {
	Way
	established, fresh *probe.Stream
	http               *requests
}

// Start begins on all ways. Each place that a way leads to answers at ports of its own.
func Start(ways []Way) (*Matrix, error) {
	m := &Matrix{}
	for _, w := range ways {
		if err := m.start(w); err != nil {
			m.Stop()
			return nil, fmt.Errorf("%s: %w", w, err)
		}
	}
	return m, nil
}

func (m *Matrix) start(w Way) error {
	port, stop, err := probe.Echo(w.To.NetNS, w.To.Addr)
	if err != nil {
		return err
	}
	m.stops = append(m.stops, stop)
	to := netip.AddrPortFrom(w.To.Addr, port)
	server, stop, err := serve(w.To.NetNS, w.To.Addr)
	if err != nil {
		return err
	}
	m.stops = append(m.stops, stop)
	established, err := probe.Start(w.From.NetNS, w.From.Addr, to, establishedEvery)
	if err != nil {
		return err
	}
	m.ways = append(m.ways, &traffic{Way: w, established: established,
		fresh: probe.StartFresh(w.From.NetNS, w.From.Addr, to, newEvery),
		http:  request(w.From.NetNS, w.From.Addr, server)})
	return nil
}

// Flow waits until an answer has come on every way, in each manner, since now. The error names those that had none
// before the deadline.
func (m *Matrix) Flow(within time.Duration) error {
	since, deadline := time.Now(), time.Now().Add(within)
	for {
		var silent []error
		for _, w := range m.ways {
			if !w.established.Answers(since) || !w.fresh.Answers(since) || !w.http.answers(since) {
				silent = append(silent, errors.New(w.String()))
			}
		}
		if len(silent) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer within %s: %w", within, errors.Join(silent...))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Stop ends all and tells what each way lost.
func (m *Matrix) Stop() []Toll {
	tolls := make([]Toll, len(m.ways))
	var all sync.WaitGroup
	for i, w := range m.ways {
		all.Go(func() {
			failed, asked, last := w.http.stop()
			tolls[i] = Toll{Way: w.Way, Established: w.established.Stop(), New: w.fresh.Stop(),
				Failed: failed, Asked: asked, Err: last}
		})
	}
	all.Wait()
	for _, stop := range m.stops {
		stop()
	}
	m.ways, m.stops = nil, nil
	return tolls
}
