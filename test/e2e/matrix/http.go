package matrix

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

// patience is the time limit of a request. A lost SYN is sent again after one second.
const patience = 3 * time.Second

// requests requests a page repeatedly, each time over a new connection.
type requests struct {
	client http.Client
	url    string
	end    chan struct{}
	done   sync.WaitGroup

	mu            sync.Mutex
	asked, failed int
	last          time.Time // of an answer
	err           error     // the last one
}

// serve answers HTTP at addr in the network namespace, at a free port.
func serve(netns ns.NetNS, addr netip.Addr) (at netip.AddrPort, stop func(), err error) {
	var listener net.Listener
	err = netns.Do(func(ns.NetNS) error {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return at, nil, fmt.Errorf("HTTP server on %s: %w", addr, err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok\n")
	})}
	go server.Serve(listener)
	return listener.Addr().(*net.TCPAddr).AddrPort(), func() { server.Close() }, nil
}

func request(netns ns.NetNS, from netip.Addr, to netip.AddrPort) *requests {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: patience}
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = netns.Do(func(ns.NetNS) error {
			conn, err = dialer.DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
	r := &requests{url: "http://" + to.String() + "/", end: make(chan struct{}), last: time.Now(), client: http.Client{
		Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}}
	r.done.Go(func() {
		for tick := time.NewTicker(httpEvery); ; {
			select {
			case <-r.end:
				tick.Stop()
				return
			case <-tick.C:
				r.done.Go(r.ask)
			}
		}
	})
	return r
}

func (r *requests) ask() {
	resp, err := r.client.Get(r.url)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if err != nil {
		r.failed, r.err = r.failed+1, err
		return
	}
	r.last = time.Now()
}

func (r *requests) answers(since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.After(since)
}

// stop waits for the requests in progress. It returns how many failed, of how many, and the last error.
func (r *requests) stop() (failed, asked int, err error) {
	close(r.end)
	r.done.Wait()
	return r.failed, r.asked, r.err
}
