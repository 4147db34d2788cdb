package reach

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/capture"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

const (
	// maxTaps is how many paths are captured at once.
	maxTaps = 4
	// tapSnap is how many bytes of a frame are captured: the headers of a tunnel over IPv6 and those inside.
	tapSnap = 256
)

// tap is a capture of the packets of a path on this node's interfaces.
type tap interface {
	// end ends the capture and returns what was seen; false: nothing is known.
	end() (api.ReachTap, bool)
}

// captureState is what was seen of a path's packets on this node's interfaces, and the running capture.
type captureState struct {
	tap   tap // nil: none
	of    pure.State
	began time.Time
	sent  uint32
	ended time.Time
	every time.Duration
	seen  api.ReachTap // zero: nothing is known about the present state of the path
}

// forget ends the running capture, and drops what was seen.
func (l *captureState) forget(of pure.State) {
	if l.tap != nil {
		l.tap.end()
	}
	*l = captureState{of: of}
}

// captureTime is how long the packets of a path are captured; 0: it does not fail, or some arrive.
func captureTime(l *pure.Link, s pure.State) time.Duration {
	switch {
	case s.From == pure.Fails || s.To == pure.Fails:
		return pure.TapFor * l.Pace()
	case s.From == pure.Narrow || s.To == pure.Narrow:
		return pure.TapForFull * l.Pace()
	}
	return 0
}

// observe begins and ends captures of the packets of a failing path: one, and others ever more rarely as long as it
// fails in that way.
func (t *session) observe(to path, now time.Time) {
	p := t.peers[to]
	s := p.State(now)
	if s.From != p.of.From || s.To != p.of.To || s.Away != p.of.Away {
		p.forget(s)
	}
	length := captureTime(&p.Link, s)
	switch {
	case length == 0:
	case p.tap == nil && now.Sub(p.ended) >= p.every && t.taps() < maxTaps:
		p.tap, p.began, p.sent = t.open(t.Board.Load(), to), now, p.Sent()
	case p.tap != nil && now.Sub(p.began) > length:
		if seen, ok := p.tap.end(); ok {
			p.seen, p.seen.Began, p.seen.Sent = seen, p.began, int(p.Sent()-p.sent)
		}
		p.tap, p.ended, p.every = nil, now, min(2*max(p.every, evidenceAge), maxAge)
	}
}

// taps is the number of running captures.
func (t *session) taps() (n int) {
	for _, p := range t.peers {
		if p.tap != nil {
			n++
		}
	}
	return n
}

// openTap begins a capture of a path's packets, in the node's own network namespace: the calling thread is in the
// end's.
func (t *session) openTap(s *status.Status, to path) tap {
	own := t.ownAddr(to.addr)
	l := packetCounter{delivery: deliveryOf(s, to), own: own, peer: to.addr, gateway: t.Config.HostGateway,
		seen: map[int]*ifaceCounts{}}
	if s.Snapshot != nil && l.delivery.to.IsValid() {
		l.node, _ = s.Snapshot.Nodes[t.NodeName].TunnelAddr(l.delivery.to.Is4())
	}
	f := capture.Filter{Of: []netip.Addr{own}, With: []netip.Addr{to.addr}}
	if l.delivery.tunnelled {
		f.Tunnel, f.Port = t.Config.TunnelType, uint16(nat.TunnelOf(t.Config.TunnelType, t.Config.TunnelPort).Port)
	}
	k := kernelTap{stop: make(chan struct{}), result: make(chan *api.ReachTap, 1)}
	go func() { k.result <- l.run(f, k.stop) }()
	return k
}

// kernelTap is a capture that another goroutine runs.
type kernelTap struct {
	stop   chan struct{}
	result chan *api.ReachTap
}

// end implements tap.
func (k kernelTap) end() (api.ReachTap, bool) {
	close(k.stop)
	if r := <-k.result; r != nil {
		return *r, true
	}
	return api.ReachTap{}, false
}

// packetCounter counts packets of a path.
type packetCounter struct {
	delivery  delivery
	own, peer netip.Addr // the ends
	node      netip.Addr // the address of this node's Node; invalid: unknown
	gateway   string     // the interface through which packets without a tunnel leave Open vSwitch
	seen      map[int]*ifaceCounts
	source    netip.Addr // of the last packet that arrived
}

// ifaceCounts are the packets that an interface has sent and received.
type ifaceCounts struct {
	left, leftFull, arrived, arrivedFull int
	leftSums, arrivedSums                sums
}

// run counts until stop is closed; nil: it could not, or missed packets.
func (l packetCounter) run(f capture.Filter, stop <-chan struct{}) *api.ReachTap {
	if !l.delivery.to.IsValid() { // the Node is about to go
		return nil
	}
	s, err := capture.OpenAll(f, tapSnap)
	if err != nil {
		return nil
	}
	defer s.Close()
	stopping := make(chan struct{})
	defer func() { <-stopping }()
	go func() {
		defer close(stopping)
		<-stop
		s.Stop()
	}()
	for {
		frame, err := s.Next()
		if errors.Is(err, io.EOF) && s.Lost() == 0 {
			return l.report()
		}
		if err != nil {
			return nil
		}
		l.add(frame)
	}
}

// add counts a frame if it is one of the path, travelling between nodes.
func (l *packetCounter) add(f capture.Frame) {
	at := l.seen[f.Index]
	if at == nil {
		at = &ifaceCounts{}
		l.seen[f.Index] = at
	}
	full := f.Length > pure.FullFrame
	if p, ok := l.packet(f, l.own, l.peer); ok && f.Outgoing {
		at.left++
		at.leftSums.add(p)
		if full {
			at.leftFull++
		}
	}
	if p, ok := l.packet(f, l.peer, l.own); ok && f.ToHost {
		at.arrived, l.source = at.arrived+1, p.outerSource()
		at.arrivedSums.add(p)
		if full {
			at.arrivedFull++
		}
	}
}

// report is what was seen, and what the node's own routing says about the path; nil: packets may leave or arrive
// unseen.
func (l *packetCounter) report() *api.ReachTap {
	if !seesAll(l.delivery.to) {
		return nil
	}
	r := l.counts()
	if l.delivery.tunnelled && l.source.IsValid() && l.source != l.delivery.to {
		r.Source = l.source.String()
	}
	if l.node.IsValid() && !hasAddr(l.node) {
		r.Unheld = l.node.String()
	}
	if l.delivery.tunnelled {
		r.NoRoute = l.noRoute(l.delivery.to, nil)
		return r
	}
	r.NoRoute = l.noRoute(l.peer, &netlink.RouteGetOptions{Iif: l.gateway, SrcAddr: l.own.AsSlice()})
	if r.Arrived > 0 {
		r.Filtered = l.noRoute(l.own, &netlink.RouteGetOptions{Iif: r.ArrivedBy, SrcAddr: l.peer.AsSlice()})
	}
	return r
}

// counts are what left and what arrived.
func (l *packetCounter) counts() *api.ReachTap {
	r, left := &api.ReachTap{Inside: true}, sums{}
	for index, at := range l.seen {
		name, inside := device(index)
		switch {
		case at.left == 0 || inside && !r.Inside:
		case inside: // until another is found
			r.Left, r.LeftFull, r.LeftBy, left = at.left, at.leftFull, name, at.leftSums
		case r.Inside:
			r.Left, r.LeftFull, r.LeftBy, r.Inside, left = at.left, at.leftFull, name, false, at.leftSums
		default: // packets with different ports may take different interfaces
			r.Left, r.LeftFull, left = r.Left+at.left, r.LeftFull+at.leftFull, left.plus(at.leftSums)
		}
		if at.arrived > r.Arrived {
			r.Arrived, r.ArrivedBy, r.ArrivedSums = at.arrived, name, at.arrivedSums.all()
		}
		r.ArrivedFull = max(r.ArrivedFull, at.arrivedFull)
	}
	if r.LeftSums = left.all(); r.LeftBy != "" {
		r.Driver = link.Driver(r.LeftBy)
	}
	return r
}

// seesAll reports whether a packet socket sees what is sent to a node and received from it. It does not if the
// interface has no Ethernet header, an XDP program gets packets first, or IPsec encrypts them.
func seesAll(to netip.Addr) bool {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return err != nil // there is nothing to see
	}
	dev, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil || dev.Attrs().EncapType != "ether" || dev.Attrs().Xdp != nil && dev.Attrs().Xdp.Attached {
		return false
	}
	policies, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL)
	return err != nil || len(policies) == 0 // a kernel without IPsec has an error
}

// device is the name of an interface, and whether it may pass what it sends to another interface of this node.
func device(index int) (name string, inside bool) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("an interface that is gone (%d)", index), true
	}
	return l.Attrs().Name, l.Type() != "device" && l.Type() != "veth"
}

// hasAddr reports whether an interface has the address, or that is unknown.
func hasAddr(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(addrs, func(b net.Addr) bool {
		p, err := netip.ParsePrefix(b.String())
		return err == nil && p.Addr().Unmap() == a
	})
}

// noRoute says why the kernel has no route to an address for such a packet; empty: it has one, or that is unknown. The
// error numbers are those of the kernel's route lookup: RTNETLINK answers of "ip route get" (ip-route(8)). A next hop
// that is the other node itself is ignored, as it may be down.
func (l *packetCounter) noRoute(to netip.Addr, of *netlink.RouteGetOptions) string {
	if !to.IsValid() {
		return ""
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), of)
	why := map[syscall.Errno]string{unix.ENETUNREACH: "there is no route to %s", unix.EHOSTUNREACH: "a route of type unreachable, or an " +
		"interface that does not forward, is on the path to %s", unix.EINVAL: "a route of type blackhole drops packets to %s, or " +
		"their source address is not valid there",
		unix.EACCES: "a route of type prohibit rejects packets to %s",
		unix.EXDEV:  "the reverse path filter (rp_filter) drops packets to %s, as the route back is another one"}
	var number syscall.Errno
	switch {
	case errors.As(err, &number) && why[number] != "":
		return fmt.Sprintf(why[number], to)
	case err != nil || len(routes) == 0 || routes[0].Gw == nil || routes[0].Gw.Equal(l.delivery.to.AsSlice()):
		return ""
	}
	hops, err := netlink.NeighList(routes[0].LinkIndex, 0)
	if err != nil {
		return ""
	}
	for _, n := range hops {
		if n.IP.Equal(routes[0].Gw) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0 {
			return fmt.Sprintf("%s, the next hop of the route to %s, does not answer", n.IP, to)
		}
	}
	return ""
}
