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

// Intervals of each path's traffic: long enough that a small machine which runs a whole cluster loses nothing by
// itself.
const (
	establishedEvery = 20 * time.Millisecond
	newEvery         = 50 * time.Millisecond
	httpEvery        = 200 * time.Millisecond
)

// Place is an end of a path.
type Place struct {
	Name  string
	NetNS ns.NetNS
	Addr  netip.Addr
}

// Path is a path from one place to another. Kind is whose packets these are: results are reported per kind.
type Path struct {
	Kind     string
	From, To Place
}

func (w Path) String() string { return w.From.Name + " -> " + w.To.Name }

// Matrix is a set of paths under load.
type Matrix struct {
	paths []*traffic
	stops []func()
}

// traffic is what runs on one path.
type traffic struct {
	Path
	established, fresh *probe.Stream
	http               *requests
}

// Start starts traffic on all paths. Each destination answers at ports of its own.
func Start(paths []Path) (*Matrix, error) {
	m := &Matrix{}
	for _, w := range paths {
		if err := m.start(w); err != nil {
			m.Stop()
			return nil, fmt.Errorf("%s: %w", w, err)
		}
	}
	return m, nil
}

func (m *Matrix) start(w Path) error {
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
	m.paths = append(m.paths, &traffic{Path: w, established: established,
		fresh: probe.StartFresh(w.From.NetNS, w.From.Addr, to, newEvery),
		http:  request(w.From.NetNS, w.From.Addr, server)})
	return nil
}

// Flow waits until traffic of every sort has been answered on every path after the call. The error names the paths
// without an answer before the deadline.
func (m *Matrix) Flow(within time.Duration) error {
	since, deadline := time.Now(), time.Now().Add(within)
	for {
		var silent []error
		for _, w := range m.paths {
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

// Stop ends all traffic and returns what each path lost.
func (m *Matrix) Stop() []Toll {
	tolls := make([]Toll, len(m.paths))
	var all sync.WaitGroup
	for i, w := range m.paths {
		all.Go(func() {
			failed, asked, last := w.http.stop()
			tolls[i] = Toll{Path: w.Path, Established: w.established.Stop(), New: w.fresh.Stop(),
				Failed: failed, Asked: asked, Err: last}
		})
	}
	all.Wait()
	for _, stop := range m.stops {
		stop()
	}
	m.paths, m.stops = nil, nil
	return tolls
}
