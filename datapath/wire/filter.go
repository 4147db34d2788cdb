package wire

import "golang.org/x/sys/unix"

// claims is a filter (Linux Documentation/networking/filter.rst) for received ARP and neighbour advertisements of one
// VLAN, 0 for untagged ones. The kernel has stripped the tag from the frame, and keeps it separately.
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
