package scale

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// BenchmarkRootReach measures what probing other nodes costs an agent, in a cluster of 5,000 healthy nodes: the others
// are one program, which answers in the tunnel and refuses transfers. It alternates with an agent that does not probe.
func BenchmarkRootReach(b *testing.B) {
	const turns, settles, period = 3, 45 * time.Second, time.Minute
	for b.Loop() {
		x := newBed(b)
		x.peers(largePeers)
		x.answer()
		// Of the agent that probes, and of the one that does not.
		var cpu, switchCPU, memory, packets, writes [2][]float64
		for turn := range 2 * turns {
			i := turn % 2
			x.probes(i == 0)
			x.start()
			x.rest(settles)
			before, used, usedBySwitch, began := x.metrics(), x.cpu(), x.switchCPU(), time.Now()
			x.rest(period)
			seconds, after := time.Since(began).Seconds(), x.metrics()
			cpu[i] = append(cpu[i], 100*(x.cpu()-used).Seconds()/seconds)
			switchCPU[i] = append(switchCPU[i], 100*(x.switchCPU()-usedBySwitch).Seconds()/seconds)
			packets[i] = append(packets[i], (after[sentPackets]-before[sentPackets])/seconds)
			writes[i] = append(writes[i], apiWrites(after)-apiWrites(before))
			rss, _, err := Memory(x.pid)
			x.must(err)
			memory[i] = append(memory[i], rss)
			if i == 0 && (after[reached] < 8 || after[broken] > 0) {
				b.Fatalf("%.0f nodes are reached, %.0f are not: all is not well\n%s", after[reached], after[broken], x.log())
			}
			x.stop()
		}
		row := func(what, unit string, of [2][]float64, most float64) {
			add(b, report.Result{Name: fmt.Sprintf("reachability: probe, %d nodes, all well: %s", largePeers, what), Unit: unit,
				Ours: of[0], Peer: of[1], Against: "reachability: none", Difference: true, Target: report.AtMost(most)})
		}
		row("packets sent a second", "packets/s", packets, 5)
		row("CPU of the agent", "% of a core", cpu, 0.1)
		row("CPU of ovs-vswitchd", "% of a core", switchCPU, 0.1)
		row("memory of the agent (RSS)", "MiB", memory, 1)
		row("writes to the API server in a minute", "requests", writes, 0)
	}
}

// Metrics of the agent.
const (
	sentPackets = `fairlead_reach_packets_total{kind="sent"}`
	reached     = `fairlead_reach_peers{state="reached"}`
	broken      = `fairlead_reach_peers{state="broken"}`
)

// apiWrites is the number of requests to the API server that may change something.
func apiWrites(metrics map[string]float64) (n float64) {
	for name, value := range metrics {
		if strings.HasPrefix(name, "fairlead_api_requests_total{") && !strings.Contains(name, `method="GET"`) {
			n += value
		}
	}
	return n
}

// probes configures whether the next agent probes other nodes.
func (x *bed) probes(do bool) {
	x.b.Helper()
	path := x.host.Private("/etc/fairlead/agent.conf")
	conf, err := os.ReadFile(path)
	x.must(err)
	text, _, _ := strings.Cut(string(conf), "reachability:")
	x.must(os.WriteFile(path, fmt.Appendf(nil, "%sreachability: %s\n", text, map[bool]string{true: "probe", false: "none"}[do]),
		0o644))
}

// switchCPU is the CPU time of ovs-vswitchd.
func (x *bed) switchCPU() time.Duration {
	x.b.Helper()
	d, err := CPU(lab.Vswitchd.PID(x.host))
	x.must(err)
	return d
}

// answer makes all other nodes' ends, behind the node's default route, answer each packet and refuse TCP until the
// benchmark ends.
func (x *bed) answer() {
	x.b.Helper()
	outside, err := x.lab.Host(underlay.Outside)
	x.must(err)
	_, err = x.lab.NodeExec(x.b.Context(), underlay.Outside, "ip", "route", "add", "local", "100.64.0.0/10", "dev", "lo")
	x.must(err)
	var conn *net.UDPConn
	x.must(outside.Do(func() error {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: genevePort})
		return err
	}))
	raw, err := conn.SyscallConn()
	x.must(err)
	x.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) }))
	x.must(err)
	x.b.Cleanup(func() { conn.Close() })
	go ends{}.serve(conn)
}

// ends are the ends of the nodes Node(i), by their addresses: the state of each towards the node that it answers.
type ends map[netip.Addr]*reach.Link

// Lengths and offsets of a tunnel's headers: Geneve's (RFC 8926) and, after its options, Ethernet's, IPv4's without
// options, and UDP's.
const (
	genevePort              = 6081
	geneveLen, etherLen     = 8, 14
	ipLen, udpLen, tcpLen   = 20, 8, 20
	sourceAt, destinationAt = 12, 16
)

func (e ends) serve(conn *net.UDPConn) {
	buf, oob := make([]byte, 1<<16), make([]byte, 128)
	for {
		n, oobLen, _, from, err := conn.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return // closed
		}
		if answer := e.answers(buf[:n]); answer != nil {
			// The control message has the packet's destination, which is the source of the answer.
			_, _, _ = conn.WriteMsgUDPAddrPort(answer, sourceFrom(oob[:oobLen]), netip.AddrPortFrom(from.Addr(), genevePort))
		}
	}
}

// sourceFrom turns the IP_PKTINFO of a received packet into that of its answer: ip(7).
func sourceFrom(oob []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < unix.SizeofInet4Pktinfo {
		return nil
	}
	return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(messages[0].Data[8:12])})
}

// answers is the answer to a packet from the tunnel; nil if it gets none.
func (e ends) answers(b []byte) []byte {
	if len(b) < geneveLen {
		return nil
	}
	head := geneveLen + 4*int(b[0]&0x3f) + etherLen
	if len(b) < head+ipLen+udpLen || b[head] != 0x45 {
		return nil
	}
	ip, udp := b[head:], b[head+ipLen:]
	if ip[9] == unix.IPPROTO_TCP && len(udp) >= tcpLen {
		return refusal(b[:head], ip)
	}
	p, err := reach.Parse(udp[udpLen:])
	if err != nil {
		return nil
	}
	here := netip.AddrFrom4([4]byte(ip[destinationAt : destinationAt+4]))
	if e[here] == nil {
		e[here] = &reach.Link{Interval: p.Interval}
	}
	e[here].Receive(p, time.Now())
	q := e[here].Next(time.Now())
	q.From, q.To, q.MTU = p.To, p.From, p.MTU
	size := 0
	if q.Full {
		size = int(p.MTU) - ipLen - udpLen
	}
	return packet(b[:head], ip, q.Append(nil, size))
}

// packet is a UDP answer with payload to ip, an IPv4 packet, behind the outer headers head.
func packet(head, ip, payload []byte) []byte {
	out := back(head, ip, udpLen+len(payload))
	out = binary.BigEndian.AppendUint16(out, reach.Port)
	out = binary.BigEndian.AppendUint16(out, reach.Port)
	out = binary.BigEndian.AppendUint16(out, uint16(udpLen+len(payload)))
	out = binary.BigEndian.AppendUint16(out, 0) // no checksum
	return append(out, payload...)
}

// refusal is a kernel's answer to ip, an IPv4 packet with a TCP connection request, if nothing listens (RFC 9293,
// 3.10.7.1), like that of an agent that makes no transfers.
func refusal(head, ip []byte) []byte {
	out, asks := back(head, ip, tcpLen), ip[ipLen:]
	tcp := append([]byte{asks[2], asks[3], asks[0], asks[1], 0, 0, 0, 0},
		binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(asks[4:])+1)...)
	tcp = append(tcp, tcpLen/4<<4, 0x14, 0, 0, 0, 0, 0, 0) // RST and ACK
	pseudo := append(append([]byte{}, ip[sourceAt:destinationAt+4]...), 0, unix.IPPROTO_TCP, 0, tcpLen)
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	return append(out, tcp...)
}

// back is the header of an IPv4 packet with length bytes of payload in answer to ip, behind head.
func back(head, ip []byte, length int) []byte {
	out := append([]byte(nil), head...)
	out = append(out, ip[:ipLen]...)
	header := out[len(head):]
	copy(header[sourceAt:], ip[destinationAt:destinationAt+4])
	copy(header[destinationAt:], ip[sourceAt:sourceAt+4])
	binary.BigEndian.PutUint16(header[2:], uint16(ipLen+length))
	header[8] = 64
	binary.BigEndian.PutUint16(header[10:], 0)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return out
}

// checksum is the internet checksum (RFC 1071) of an even number of bytes.
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}
