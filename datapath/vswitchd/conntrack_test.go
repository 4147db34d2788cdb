package vswitchd

import (
	"net/netip"
	"strings"
	"testing"
)

// What "ovs-appctl dpctl/dump-conntrack" prints, of either datapath. CLOSE_WAIT is the kernel's, and CLOSING the
// userspace datapath's word for a connection that one end alone has closed.
func TestConnection(t *testing.T) {
	const tuples = "orig=(src=10.0.0.1,dst=10.0.0.2,sport=40000,dport=80),reply=(src=10.0.0.3,dst=10.0.0.1,sport=8080,dport=40000),zone=7"
	want := Connection{Protocol: 6, From: netip.MustParseAddrPort("10.0.0.1:40000"), To: netip.MustParseAddrPort("10.0.0.2:80"),
		Answers: netip.MustParseAddrPort("10.0.0.3:8080")}
	for state, closed := range map[string]bool{"ESTABLISHED": false, "CLOSE_WAIT": false, "CLOSING": false,
		"FIN_WAIT_2": false, "LAST_ACK": false, "TIME_WAIT": true, "CLOSED": true} {
		want.Closed = closed
		if got, ok := connection("tcp," + tuples + ",protoinfo=(state=" + state + ")\n"); !ok || got != want {
			t.Errorf("%s: %+v, %t; want %+v", state, got, ok, want)
		}
	}
	want.Protocol, want.Closed = 17, false
	if got, ok := connection("udp," + tuples + "\n"); !ok || got != want {
		t.Errorf("UDP: %+v, %t; want %+v", got, ok, want)
	}
	for _, line := range []string{"quic," + tuples, "tcp,orig=(src=10.0.0.1",
		"tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=2),reply=(src=x)", "tcp,orig=(src=x,dst=10.0.0.2,sport=1,dport=2),", ""} {
		if got, ok := connection(line); ok {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

// A protocol that conntrack does not know has ports that are 0.
func TestConnectionsWithoutPorts(t *testing.T) {
	from, to := netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("10.0.0.2:0")
	for line, want := range map[string]Connection{
		"icmp,orig=(src=10.0.0.1,dst=10.0.0.2,id=5,type=8,code=0),reply=(src=10.0.0.2,dst=10.0.0.1,id=5,type=0,code=0),zone=7\n": {
			Protocol: 1, From: from, To: to},
		"icmpv6,orig=(src=fd00::1,dst=fd00::2,id=6,type=128,code=1),reply=(src=ANSWER),zone=7\n": {
			Protocol: 58, From: netip.MustParseAddrPort("[fd00::1]:0"), To: netip.MustParseAddrPort("[fd00::2]:0")},
		"4,orig=(src=10.0.0.1,dst=10.0.0.2,sport=0,dport=0),reply=(src=ANSWER),zone=7\n": {Protocol: 4, From: from, To: to},
		"47,orig=(src=10.0.0.1,dst=10.0.0.2),reply=(src=ANSWER)\n":                       {Protocol: 47, From: from, To: to},
	} {
		want.Answers = want.To
		line = strings.ReplaceAll(line, "ANSWER", want.To.Addr().String())
		if got, ok := connection(line); !ok || got != want || got.HasPorts() {
			t.Errorf("%s: %+v, want %+v", line, got, want)
		}
	}
}
