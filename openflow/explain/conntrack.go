package explain

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// What a trace shows about conntrack and the choice of an endpoint.
var (
	natDst       = regexp.MustCompile(`^ct\(commit,.*nat\(dst=([^)]+)\)`)
	natSrc       = regexp.MustCompile(`^ct\(commit,.*nat\(src=([^)]+)\)`)
	natKnown     = regexp.MustCompile(`^ct\(.*zone=(\d+).*,nat\)$`)
	byHash       = regexp.MustCompile(`^hash\(.*recirc\(`)
	affinity     = regexp.MustCompile(`^ *8\. .*priority`)
	connection   = regexp.MustCompile(`^(\w+),orig=\(src=([^,]+),dst=([^,]+),sport=\d+,dport=(\d+)\),reply=\(src=([^,]+),dst=[^,]+,sport=(\d+),`)
	recirculated = regexp.MustCompile(`^ct\(.*recirc\(`)
)

// conntrack explains one line of a trace, if it is about conntrack or its consequences; empty for what follows every
// such line.
func conntrack(text string) (words string, is bool) {
	switch {
	case strings.HasPrefix(text, "Resuming from table"), strings.HasPrefix(text, "nat(") || text == "nat",
		strings.HasPrefix(text, "-> A clone of the packet is forked"), strings.HasPrefix(text, "-> Sets the packet to an untracked"),
		text == "-> no live bucket", strings.HasPrefix(text, ">> suppressing side effects"),
		strings.HasPrefix(text, "bucket "), strings.HasPrefix(text, "-> bucket "):
		return "", true // "no live bucket": the datapath chooses, which a trace does not show
	case strings.HasPrefix(text, "learn("):
		return "record: the client keeps this endpoint", true
	}
	if m := natDst.FindStringSubmatch(text); m != nil {
		return "the endpoint is " + m[1] + ": record it in conntrack", true
	}
	if m := natSrc.FindStringSubmatch(text); m != nil {
		return "the client's address and port become " + m[1] + ": record it in conntrack", true
	}
	if m := natKnown.FindStringSubmatch(text); m != nil {
		return "look it up in conntrack zone " + m[1] + ", and translate known connections", true
	}
	return "", false
}

// Chosen returns the endpoint to which a traced packet to a Service is sent; none if the trace does not show it. It is
// kept if the client had it before, by session affinity.
func Chosen(trace string) (to netip.AddrPort, kept bool) {
	for line := range strings.Lines(trace) {
		kept = kept || affinity.MatchString(line)
		if m := natDst.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			a, err := netip.ParseAddrPort(m[1])
			return a, kept && err == nil
		}
	}
	return netip.AddrPort{}, false
}

// Zone returns the first conntrack zone in a trace; empty: none.
func Zone(trace string) string {
	for line := range strings.Lines(trace) {
		if m := natKnown.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			return m[1]
		}
	}
	return ""
}

// Connections counts, by endpoint, a client's connections to a port of a Service in the output of "ovs-appctl
// dpctl/dump-conntrack". protocol is "tcp" or "udp".
func Connections(dump string, client netip.Addr, to netip.AddrPort, protocol string) map[netip.AddrPort]int {
	out := map[netip.AddrPort]int{}
	for line := range strings.Lines(dump) {
		m := connection.FindStringSubmatch(line)
		if m == nil || m[1] != protocol || m[2] != client.String() || m[3] != to.Addr().String() ||
			m[4] != strconv.Itoa(int(to.Port())) {
			continue
		}
		addr, err := netip.ParseAddr(m[5])
		port, perr := strconv.ParseUint(m[6], 10, 16)
		if err == nil && perr == nil {
			out[netip.AddrPortFrom(addr, uint16(port))]++
		}
	}
	return out
}
