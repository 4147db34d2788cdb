package reach

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

const (
	// maxIncoming is how many transfers from other nodes run at a time, and maxAccepted how many connections are
	// accepted per pulse: the others are closed.
	maxIncoming, maxAccepted = 8, 64
	// incomingFor is how many intervals one may last: longer than the sender waits (pure.TransferFor).
	incomingFor = pure.TransferFor + 2
)

// transfer is a transfer to another end.
type transfer interface {
	// step does what can be done without waiting. If the transfer continues, the outcome is the one that it has if nothing
	// more arrives.
	step() (o pure.Outcome, ended bool)
	Close() error
}

// outgoing are the transfers to others, one at a time.
type outgoing struct {
	transfer           // nil: none is running
	to       path      // of this transfer, or the last
	until    time.Time // when it counts as failed
	turn     path      // which had the last turn
	next     time.Time // when the next turn begins
}

// transfers continues the running transfer without waiting, or begins one that is due.
func (t *session) transfers(now time.Time) {
	if t.out.transfer == nil {
		t.beginTransfer(now)
		return
	}
	o, ended := t.out.step()
	if !ended && now.Before(t.out.until) {
		return
	}
	t.endTransfer()
	if p := t.peers[t.out.to]; p != nil && p.TransferPasses(now) {
		p.Transferred(o, now)
	}
}

func (t *session) beginTransfer(now time.Time) {
	to, due := t.nextTransfer(now)
	if !due {
		return
	}
	content := pure.Content(pure.NameHash(t.NodeName), pure.NameHash(to.node))
	c, err := t.connect(t.ownAddr(to.addr), to.addr, content, t.peers[to].Single())
	if err != nil {
		t.Log.V(1).Info("connecting", "node", to.node, "reason", err.Error())
		return
	}
	t.out.transfer, t.out.to, t.out.until = c, to, now.Add(pure.TransferFor*t.Interval)
}

func (t *session) endTransfer() {
	if t.out.transfer != nil {
		t.out.Close()
		t.out.transfer = nil
	}
}

// nextTransfer is the path whose turn it is: one after the other, and between the turns those on which a transfer has
// failed.
func (t *session) nextTransfer(now time.Time) (to path, due bool) {
	passes := slices.DeleteFunc(slices.Clone(t.queue), func(p path) bool {
		return !t.peers[p].Initiates || !t.peers[p].TransferPasses(now)
	})
	if len(passes) == 0 {
		return path{}, false
	}
	if t.out.next.IsZero() { // so that not all nodes begin with the same one
		t.out.turn = path{node: t.NodeName, addr: passes[0].addr}
	}
	if !now.Before(t.out.next) {
		t.out.next = now.Add(pure.TransferEvery * t.Interval)
		i := slices.IndexFunc(passes, func(p path) bool { return inQueue(p, t.out.turn) > 0 })
		t.out.turn = passes[max(0, i)]
		return t.out.turn, true
	}
	i := slices.IndexFunc(passes, func(p path) bool { return t.peers[p].TransferAgain(now) })
	if i < 0 {
		return path{}, false
	}
	return passes[i], true
}

// inQueue orders paths by family, then by node.
func inQueue(a, b path) int {
	return cmp.Or(cmp.Compare(a.addr.BitLen(), b.addr.BitLen()), cmp.Compare(a.node, b.node), a.addr.Compare(b.addr))
}

// outgoingConn is a TCP connection to another end.
type outgoingConn struct {
	fd      int
	single  bool   // each segment is sent separately
	mss     int    // bytes of a segment; 0: not connected
	left    []byte // to be sent
	receipt []byte // what has arrived of it
}

// connect begins to connect to an end. The calling thread is in this one's namespace.
func connect(from, to netip.Addr, content []byte, single bool) (transfer, error) {
	fd, err := open(netip.AddrPortFrom(from, 0), unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	// The kernel gets all content at once, so that it makes segments as large as the NIC takes.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 2*len(content)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	err = unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, pure.Port)))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &outgoingConn{fd: fd, single: single, left: content}, nil
}

func (s *outgoingConn) step() (pure.Outcome, bool) {
	if s.mss == 0 {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, 0)
		if err != nil || ready == 0 {
			return pure.Unanswered, false
		}
		if errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
			return pure.Unclear, true
		}
		if s.mss, err = unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG); err != nil {
			return pure.Unclear, true
		}
	}
	if !s.send() {
		return pure.Unclear, true
	}
	buf := make([]byte, len(pure.Receipt()))
	n, err := unix.Read(s.fd, buf)
	if errors.Is(err, unix.EAGAIN) {
		return pure.Stuck, false
	}
	if s.receipt = append(s.receipt, buf[:max(0, n)]...); bytes.Equal(s.receipt, pure.Receipt()) {
		return s.arrived(), true
	}
	closed := err != nil || n == 0 || len(s.receipt) >= len(buf)
	return map[bool]pure.Outcome{true: pure.Unclear, false: pure.Stuck}[closed], closed
}

// send passes to the kernel as much as it takes: all at once, or each segment as a record of its own (MSG_EOR), which
// it does not merge.
func (s *outgoingConn) send() (ok bool) {
	most, flags := len(s.left), unix.MSG_NOSIGNAL
	if s.single {
		most, flags = s.mss, flags|unix.MSG_EOR
	}
	for len(s.left) > 0 {
		n, err := unix.SendmsgN(s.fd, s.left[:min(most, len(s.left))], nil, nil, flags)
		if err != nil {
			return errors.Is(err, unix.EAGAIN)
		}
		s.left = s.left[n:]
	}
	return true
}

// arrived is the outcome once all has arrived.
func (s *outgoingConn) arrived() pure.Outcome {
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return pure.Unclear
	}
	return pure.Arrived((pure.TransferSize+s.mss-1)/s.mss, int(info.Total_retrans), s.single)
}

func (s *outgoingConn) Close() error { return abort(s.fd) }

// abort closes a connection, and makes the kernel discard what is unsent.
func abort(fd int) error {
	return errors.Join(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), unix.Close(fd))
}

// listener is the listening socket that other ends connect to. As for an inbox, nothing waits for it.
type listener struct {
	fd       int
	incoming []incomingConn
	buf      []byte
}

// incomingConn is a transfer from another end.
type incomingConn struct {
	fd    int
	from  uint64 // the node, by NameHash
	got   int
	until time.Time
}

// listenTCP begins to accept connections at addr. The calling thread is in the end's namespace.
func listenTCP(addr netip.Addr) (*listener, error) {
	fd, err := open(netip.AddrPortFrom(addr, pure.Port), unix.SOCK_STREAM)
	if err != nil {
		return nil, fmt.Errorf("listening for TCP of other nodes at %s: %w", addr, err)
	}
	if err := cmp.Or(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 2*pure.TransferSize),
		unix.Listen(fd, maxAccepted),
	); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &listener{fd: fd, buf: make([]byte, pure.TransferSize)}, nil
}

// serve accepts connections of nodes' ends, and processes open ones without waiting: each may, for a limited time, send
// what another end would, and nothing else. own is this node, and nodeOf returns the node whose end has an address;
// empty: none.
func (l *listener) serve(own uint64, nodeOf func(netip.Addr) string, until, now time.Time) {
	for range maxAccepted {
		fd, from, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			break // there are none, or it was closed meanwhile
		}
		node := nodeOf(addrOf(from))
		if node == "" || len(l.incoming) >= maxIncoming {
			_ = abort(fd)
			continue
		}
		l.incoming = append(l.incoming, incomingConn{fd: fd, from: pure.NameHash(node), until: until})
	}
	var going []incomingConn
	for _, r := range l.incoming {
		switch goes := r.step(own, l.buf); {
		case goes && now.After(r.until):
			_ = abort(r.fd)
		case goes:
			going = append(going, r)
		}
	}
	l.incoming = going
}

// step reads what has arrived, and closes the connection once all has, or anything unexpected.
func (r *incomingConn) step(own uint64, buf []byte) (goes bool) {
	n, err := unix.Read(r.fd, buf[:pure.TransferSize-r.got])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return true
	case err != nil || n == 0 || !bytes.Equal(pure.Content(r.from, own)[r.got:r.got+n], buf[:n]):
		_ = abort(r.fd)
		return false
	}
	if r.got += n; r.got < pure.TransferSize {
		return true
	}
	_, _ = unix.SendmsgN(r.fd, pure.Receipt(), nil, nil, unix.MSG_NOSIGNAL) // if the sender is gone, it needs none
	_ = unix.Close(r.fd)
	return false
}

func (l *listener) Close() error {
	for _, r := range l.incoming {
		_ = abort(r.fd)
	}
	return unix.Close(l.fd)
}
