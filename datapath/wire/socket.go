package wire

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// open opens a packet socket on an interface of the calling thread's network namespace, in which it stays. Each Read
// and Write is a whole Ethernet frame. It hears what the filter lets pass, nothing without one.
func open(device *net.Interface, filter []unix.SockFilter) (*os.File, error) {
	// Of protocol 0 it hears nothing until it is bound: no frame gets past the filter.
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

// bigEndian is v as the kernel reads a field in network byte order.
func bigEndian(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// claims is a filter (Linux Documentation/networking/filter.rst) for received ARP and neighbour advertisements of one
// VLAN, 0 for untagged ones. The kernel has taken the tag out of the frame, and keeps it beside.
func claims(vlan uint16) []unix.SockFilter {
	const (
		loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		and      = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		equal    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret      = unix.BPF_RET | unix.BPF_K
		// SKF_AD_OFF and SKF_AD_PKTTYPE, SKF_AD_VLAN_TAG, SKF_AD_VLAN_TAG_PRESENT of linux/filter.h
		pktType, vlanTag, vlanPresent = 1<<32 - 0x1000 + 4, 1<<32 - 0x1000 + 44, 1<<32 - 0x1000 + 48
	)
	return []unix.SockFilter{
		{Code: loadByte, K: pktType},
		{Code: equal, K: unix.PACKET_OUTGOING, Jt: 13},
		{Code: loadByte, K: vlanPresent},
		{Code: equal, K: 0, Jt: 2}, // 0 is then the VLAN
		{Code: loadHalf, K: vlanTag},
		{Code: and, K: 0xfff},
		{Code: equal, K: uint32(vlan), Jf: 8},
		{Code: loadHalf, K: 12},
		{Code: equal, K: etherARP, Jt: 5},
		{Code: equal, K: etherIPv6, Jf: 5},
		{Code: loadByte, K: etherLen + 6},
		{Code: equal, K: icmpv6, Jf: 3},
		{Code: loadByte, K: etherLen + ipv6Len},
		{Code: equal, K: neighbourNA, Jf: 1},
		{Code: ret, K: 256},
		{Code: ret, K: 0},
	}
}
