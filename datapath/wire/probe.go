package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/packetsocket"
)

// ProbeRequest is a query for the users of Addrs.
type ProbeRequest struct {
	// NIC is the interface to probe on, by its name in the network namespace of the calling thread. It is up, and
	// promiscuous if it filters VLANs in hardware: a port of Open vSwitch is.
	NIC string
	// VLAN of the probes and their replies, 1 to 4094; 0 is untagged.
	VLAN uint16
	// Addrs are IPv4 or IPv6 addresses, one or more.
	Addrs []netip.Addr
	// Timeout is how long to wait for answers.
	Timeout time.Duration
}

// Probe returns the MAC of each address in use. It probes twice, so that one lost frame does not make an address look
// free, and returns early only if all are in use. The error says why it could not probe: then nothing is known about
// any address.
func Probe(ctx context.Context, q ProbeRequest) (map[netip.Addr]api.MAC, error) {
	used, err := q.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("probing %v on %s, VLAN %d: %w", q.Addrs, q.NIC, q.VLAN, err)
	}
	return used, nil
}

func (q ProbeRequest) run(ctx context.Context) (map[netip.Addr]api.MAC, error) {
	device, err := net.InterfaceByName(q.NIC)
	if err != nil {
		return nil, err
	}
	if len(device.HardwareAddr) != 6 {
		return nil, errors.New("it is not an Ethernet interface")
	}
	s, err := packetsocket.Open(device, claims(q.VLAN))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	// The kernel closes a packet socket only after a grace period of all processors (synchronize_net), which takes 10 to
	// 20 ms on a busy one. The result is known, and a pod waits for it.
	defer func() { go s.Close() }()
	own, used := api.MAC(device.HardwareAddr), map[netip.Addr]api.MAC{}
	for range 2 {
		if err := q.round(s, own, used); err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
	return used, nil
}

// maxLate is how many frames are read after the deadline: more than a socket's buffer holds, but bounded if they keep
// arriving.
const maxLate = 1 << 12

// round probes once and listens for half of the time. What arrived in that time counts however late the process reads
// it: a process starved of CPU must not take an address for free.
func (q ProbeRequest) round(s *os.File, own api.MAC, used map[netip.Addr]api.MAC) error {
	for _, a := range q.Addrs {
		if _, known := used[a]; known {
			continue
		}
		if _, err := s.Write(probe(own, q.VLAN, a)); err != nil {
			return err
		}
	}
	if err := s.SetReadDeadline(time.Now().Add(q.Timeout / 2)); err != nil {
		return err
	}
	frame, late := make([]byte, 256), 0
	for len(used) < len(q.Addrs) {
		n, err := s.Read(frame)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if late++; late > maxLate {
				return nil
			}
			n, err = arrived(s, frame)
		}
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		addr, owner, ok := claim(frame[:n])
		if ok && owner != own && slices.Contains(q.Addrs, addr) {
			used[addr] = owner
		}
	}
	return nil
}

// arrived reads a frame already in the socket, ignoring its deadline. The error is EAGAIN if there is none.
func arrived(s *os.File, frame []byte) (n int, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	if closed := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), frame) }); closed != nil {
		return 0, closed
	}
	return n, err
}
