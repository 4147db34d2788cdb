package route

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// atOnce is how many changes go to the kernel in one message. It acknowledges each, and the replies must fit into the
// socket's buffer, which by default holds some 200.
const atOnce = 100

// batch sends the kernel many changes in one request, which netlink.Handle cannot.
//
// On each route change ovs-vswitchd flushes the routing table of its userspace datapath, reads the kernel's, and then
// revalidates all that it has cached. If a second change follows shortly, the table is flushed during that, and tunnel
// traffic is dropped. Measured: 11 of 37,700 packets were lost in 400 runs of four changes, and none of 37,900 with the
// four in one message.
type batch struct{ *nl.NetlinkSocket }

func newBatch() (batch, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE) // to nothing
	if err != nil {
		return batch{}, fmt.Errorf("opening a netlink socket: %w", err)
	}
	if err := s.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		s.Close()
		return batch{}, fmt.Errorf("setting a socket's timeout: %w", err)
	}
	return batch{s}, nil
}

// do makes at most atOnce changes, in order, each whether or not others fail, and returns their errors.
func (b batch) do(ops []op) []error {
	errs, missing := make([]error, len(ops)), map[uint32]int{} // by sequence number, the place in ops
	if len(ops) == 0 {
		return nil
	}
	var message []byte
	for i, o := range ops {
		r := o.request()
		message, missing[r.Seq] = append(message, r.Serialize()...), i
	}
	fail := func(err error) []error {
		for _, i := range missing {
			errs[i] = err
		}
		return errs
	}
	if err := unix.Sendto(b.GetFd(), message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail(fmt.Errorf("netlink: %w", err))
	}
	for len(missing) > 0 {
		answers, _, err := b.Receive()
		if err != nil {
			return fail(fmt.Errorf("netlink: %w", err))
		}
		for _, a := range answers {
			i, ours := missing[a.Header.Seq]
			if !ours || a.Header.Type != unix.NLMSG_ERROR || len(a.Data) < 4 {
				continue
			}
			delete(missing, a.Header.Seq)
			if errno := -int32(nl.NativeEndian().Uint32(a.Data)); errno != 0 { // netlink(7): 0 is success
				errs[i] = syscall.Errno(errno)
			}
		}
	}
	return errs
}

// request returns o as an rtnetlink(7) request.
func (o op) request() *nl.NetlinkRequest {
	r, msg, kind, flags := o.route, nl.NewRtMsg(), unix.RTM_NEWROUTE, unix.NLM_F_ACK
	switch o.verb {
	case add:
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	case replace:
		flags |= unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	case remove:
		kind, msg = unix.RTM_DELROUTE, nl.NewRtDelMsg()
	}
	dst := o.dst()
	msg.Family, msg.Dst_len = unix.AF_INET, uint8(dst.Bits())
	if dst.Addr().Is6() {
		msg.Family = unix.AF_INET6
	}
	msg.Protocol, msg.Scope, msg.Tos = uint8(r.Protocol), uint8(r.Scope), uint8(r.Tos)
	msg.Flags = uint32(r.Flags) & unix.RTNH_F_ONLINK // the kernel lists others too
	if r.Type != 0 {
		msg.Type = uint8(r.Type)
	}
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(msg)
	for _, a := range attributes(r, dst) {
		req.AddData(a)
	}
	return req
}

// attributes returns the attributes that Fairlead sets. Multipath next hops, which Fairlead never sets, are not
// included.
func attributes(r netlink.Route, dst netip.Prefix) []*nl.RtAttr {
	all := []*nl.RtAttr{nl.NewRtAttr(unix.RTA_DST, dst.Addr().AsSlice())}
	for kind, ip := range map[int]net.IP{unix.RTA_PREFSRC: r.Src, unix.RTA_GATEWAY: r.Gw} {
		if a, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, nl.NewRtAttr(kind, a.Unmap().AsSlice()))
		}
	}
	for kind, n := range map[int]int{unix.RTA_OIF: r.LinkIndex, unix.RTA_PRIORITY: r.Priority} {
		if n != 0 {
			all = append(all, nl.NewRtAttr(kind, nl.Uint32Attr(uint32(n))))
		}
	}
	if r.MTU != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.MTU)))
		all = append(all, metrics)
	}
	return all
}
