package clusterip

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// The endpoint learned from a client's packets is valid for the Service's current timeout, not its former one. Other
// Services' clients keep theirs.
func TestAffinityThatChanges(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	of := func(port uint16, timeout time.Duration) openflow.Unit {
		return Unit(uint32(port), netip.AddrPortFrom(netip.MustParseAddr(vip4), port), TCP,
			endpoints("10.10.0.4:8443", "10.10.1.9:8443"), timeout)
	}
	s.SetUnits(map[uint32]openflow.Unit{443: of(443, 3*time.Hour), 444: of(444, 3*time.Hour)}, true)
	flowtest.Sync(t, s, slices.Concat(tables.Pipeline(node(t)), Flows(node(t), ranges())))
	connect := func(port string, from int) {
		o.Appctl("netdev-dummy/receive", "pod-a", "in_port(3),eth(src="+macA+",dst="+macGW+"),eth_type(0x0800),"+
			"ipv4(src=10.10.0.3,dst=10.96.0.1,proto=6,tos=0,ttl=64,frag=no),tcp(src="+strconv.Itoa(from)+",dst="+port+"),tcp_flags(syn)")
	}
	keeps := func(port string) bool {
		got := trace(o, fromA+",nw_dst=10.96.0.1,tcp_dst="+port+",tcp_flags=syn")
		return strings.HasPrefix(strings.Join(got.visited, " "), "0 3 2 8 9 5") // and not 9 twice: to any, then there
	}
	for _, port := range []string{"443", "444"} {
		if connect(port, 40000); !keeps(port) {
			t.Fatalf("a client of port %s does not keep its endpoint:\n%s", port, o.Ofctl("dump-flows", "br-int", "table=8"))
		}
	}
	s.SetUnits(map[uint32]openflow.Unit{443: of(443, 10*time.Second)}, false)
	if _, err := s.SyncUnits(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keeps("443") || !keeps("444") {
		t.Errorf("after a change of the one, clients keep their endpoints: %t, of the other: %t", keeps("443"), keeps("444"))
	}
	learned := func() string { return o.Ofctl("dump-flows", "br-int", "table=8,tcp,tp_dst=443") }
	o.Appctl("revalidator/wait")
	deadline := time.Now().Add(time.Minute)
	for i := 0; !strings.Contains(learned(), "idle_timeout=10,"); i++ { // until the datapath has caught up
		if connect("443", 40001+i); time.Now().After(deadline) {
			t.Fatalf("no flow is learned for as long as the Service says:\n%s", learned())
		}
	}
	if !keeps("443") {
		t.Errorf("the client does not keep the endpoint of its next connection:\n%s", learned())
	}
}
