package matrix

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

// Forbidden is a set of paths under load on which no packet may arrive. Each path carries datagrams of one flow, and
// datagrams that each start a new flow. There are no replies, so a packet counts even if the return path is closed.
type Forbidden struct{ paths []*forbidden }

type forbidden struct {
	Path
	sink, flow    *net.UDPConn
	end           chan struct{}
	sending       sync.WaitGroup
	sent, arrived atomic.Int64
	last          atomic.Int64 // last arrival, in ns since 1970
	since         atomic.Int64 // value of sent at the last arrival
}

// quiet is the number of datagrams sent in 5 seconds: forwarding may stall that long. A stall of this process does not
// count: it sends none meanwhile.
const quiet = int64(5*time.Second/establishedEvery + 5*time.Second/newEvery)

// StartForbidden starts traffic on all paths.
func StartForbidden(paths []Path) (*Forbidden, error) {
	f := &Forbidden{}
	for _, w := range paths {
		p := &forbidden{Path: w, end: make(chan struct{})}
		if err := p.start(); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", w, err), f.Stop())
		}
		f.paths = append(f.paths, p)
	}
	return f, nil
}

func (p *forbidden) start() (err error) {
	err = p.To.NetNS.Do(func(ns.NetNS) (err error) {
		p.sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.To.Addr, 0)))
		return err
	})
	if err != nil {
		return err
	}
	if p.flow, err = p.dial(); err != nil {
		return errors.Join(err, p.sink.Close())
	}
	go p.count()
	p.sending.Go(p.send)
	return nil
}

// dial returns a socket with a port of its own.
func (p *forbidden) dial() (conn *net.UDPConn, err error) {
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.To.Addr, p.sink.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
	err = p.From.NetNS.Do(func(ns.NetNS) (err error) {
		conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.From.Addr, 0)), to)
		return err
	})
	return conn, err
}

func (p *forbidden) send() {
	flow, fresh := time.NewTicker(establishedEvery), time.NewTicker(newEvery)
	defer flow.Stop()
	defer fresh.Stop()
	for {
		select {
		case <-p.end:
			return
		case <-flow.C:
			p.write(p.flow)
		case <-fresh.C:
			if conn, err := p.dial(); err == nil {
				p.write(conn)
				conn.Close()
			}
		}
	}
}

// write sends one datagram, and counts it unless sending fails, for example while there is no route.
func (p *forbidden) write(conn *net.UDPConn) {
	if _, err := conn.Write([]byte("forbidden")); err == nil {
		p.sent.Add(1)
	}
}

func (p *forbidden) count() {
	for buf := make([]byte, 64); ; {
		if _, _, err := p.sink.ReadFrom(buf); err != nil {
			return
		}
		p.arrived.Add(1)
		p.last.Store(time.Now().UnixNano())
		p.since.Store(p.sent.Load())
	}
}

// Arrive waits until a packet has arrived on every path after the call or, without want, until none of the last quiet
// datagrams has arrived on any path. The error names the paths that do not comply.
func (f *Forbidden) Arrive(want bool, within time.Duration) error {
	begin := time.Now()
	for {
		var wrong []error
		for _, p := range f.paths {
			last := time.Unix(0, p.last.Load())
			if want && !last.After(begin) || !want && p.sent.Load()-p.since.Load() < quiet {
				wrong = append(wrong, errors.New(p.String()))
			}
		}
		if len(wrong) == 0 {
			return nil
		}
		if time.Since(begin) > within {
			return fmt.Errorf("packets arrive: %t, after %s: %w", !want, within, errors.Join(wrong...))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Stop ends all traffic. The error names the paths on which packets have arrived since the last Forget, or on which
// none was sent.
func (f *Forbidden) Stop() error {
	var errs []error
	for _, p := range f.paths {
		close(p.end)
		p.sending.Wait()
		p.flow.Close()
		p.sink.Close()
		sent, arrived := p.sent.Load(), p.arrived.Load()
		if arrived > 0 {
			errs = append(errs, fmt.Errorf("%s: %d of %d packets arrived, the last one at %s", p, arrived, sent,
				time.Unix(0, p.last.Load()).Format(time.TimeOnly)))
		} else if sent == 0 {
			errs = append(errs, fmt.Errorf("%s: nothing was sent", p))
		}
	}
	f.paths = nil
	return errors.Join(errs...)
}

// Forget resets the count of arrived packets.
func (f *Forbidden) Forget() {
	for _, p := range f.paths {
		p.arrived.Store(0)
	}
}
