// Package packetsocket opens packet sockets (packet(7)): each Read and Write is a whole Ethernet frame.
package packetsocket

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a packet socket on an interface of the calling thread's network namespace, where it stays. Each Read and
// Write is a whole Ethernet frame. It receives what the filter passes, and nothing without a filter. A device with
// index 0 stands for all interfaces.
func Open(device *net.Interface, filter []unix.SockFilter) (*os.File, error) {
	// With protocol 0 it receives nothing until it is bound: no frame bypasses the filter.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	s := os.NewFile(uintptr(fd), device.Name)
	at := unix.SockaddrLinklayer{Ifindex: device.Index}
	if filter != nil {
		// Only a socket for all protocols sees a frame before the bridge takes it.
		at.Protocol = bigEndian(unix.ETH_P_ALL)
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
			err = fmt.Errorf("filter: %w", err)
		}
	}
	if err == nil {
		err = unix.Bind(fd, &at)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("preparing a packet socket on %s: %w", device.Name, err)
	}
	return s, nil
}

// bigEndian returns v in network byte order.
func bigEndian(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
