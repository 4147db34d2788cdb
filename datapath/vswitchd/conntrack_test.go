package vswitchd

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Output of "ovs-appctl dpctl/dump-conntrack", of either datapath. CLOSE_WAIT is the kernel's name, and CLOSING the
// userspace datapath's, for a connection that only one end has closed.
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

// Connections of a protocol that conntrack does not know have port 0.
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

// Connections of one zone are passed on as they are listed; an ovs-vswitchd that refuses or is absent is an error.
func TestEachConnection(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-int", ovstest.Port{Name: "pod-a", OFPort: 3}, ovstest.Port{Name: "pod-b", OFPort: 4})
	o.Ofctl("add-flow", "br-int", "udp,actions=ct(commit,zone=7),4")
	o.NameSocket()
	const all = 300
	for i := range all {
		o.Appctl("netdev-dummy/receive", "pod-a", fmt.Sprintf("in_port(1),eth(src=0a:00:00:00:00:03,dst=0e:00:00:00:00:01),"+
			"eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=%d,dst=9)", 1000+i))
	}
	count := func(datapath string, zone uint16) (n int, err error) {
		return n, EachConnection(t.Context(), o.Dir, datapath, zone, func(Connection) error { n++; return nil })
	}
	ports := map[uint16]bool{}
	if err := EachConnection(t.Context(), o.Dir, "dummy", 7, func(c Connection) error {
		ports[c.From.Port()] = true
		return nil
	}); err != nil || len(ports) != all {
		t.Errorf("%d connections are listed, %v", len(ports), err)
	}
	if n, err := count("dummy", 8); n != 0 || err != nil {
		t.Errorf("in another zone there are %d, %v", n, err)
	}
	if _, err := count("nonsense", 7); err == nil || !strings.Contains(err.Error(), "rejected") {
		t.Errorf("of another datapath: %v", err)
	}
	o.Vswitchd.Kill()
	if _, err := count("dummy", 7); err == nil || !strings.Contains(err.Error(), "down") {
		t.Errorf("without ovs-vswitchd: %v", err)
	}
}
