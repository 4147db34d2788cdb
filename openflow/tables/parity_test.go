package tables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// The switch has exactly what was sent, byte for byte as far as OpenFlow shows it: a resync finds nothing to do, and
// ovs-ofctl prints what String does.
func TestParity(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	for _, file := range goldenFiles(t) {
		_, view := readGolden(t, file)
		want := Pipeline(view)
		flowtest.Sync(t, s, want)
		if got := flowtest.Sync(t, s, want); got != (openflow.Changes{}) {
			t.Errorf("%s: a second sync changed %+v", file, got)
		}
		s.Resync()
		if got := flowtest.Sync(t, s, want); got != (openflow.Changes{}) {
			t.Errorf("%s: a resync found %+v", file, got)
		}
		if diff := flowtest.Diff(flowtest.Sorted(flowtest.Text(want)), flowtest.Sorted(flowtest.Flows(o))); diff != "" {
			t.Errorf("%s: ovs-ofctl prints our flows otherwise (-ours +its):\n%s", file, diff)
		}
	}
	// A new process finds everything in place.
	_, view := readGolden(t, goldenFiles(t)[0])
	flowtest.Sync(t, s, Pipeline(view))
	if got := flowtest.Sync(t, flowtest.Dial(t, o, openflow.Dial), Pipeline(view)); got != (openflow.Changes{}) {
		t.Errorf("a new connection changed %+v", got)
	}
}

// BenchmarkPipeline computes the flows of one node of a large cluster: 250 pods, 5,000 peers, both families.
func BenchmarkPipeline(b *testing.B) {
	v := bigView(250, 5000)
	for b.Loop() {
		Pipeline(v)
	}
}

// bigView has pods with two addresses and peers with two podCIDRs.
func bigView(pods, peers int) View {
	v := View{TunnelPort: 1, Gateway: Gateway{Port: 2, MAC: [6]byte{0x0e, 5: 1},
		Addrs: flowtest.Addrs("10.0.0.1,fd00:10::1"), PodCIDRs: flowtest.Prefixes("10.0.0.0/24,fd00:10::/64")}}
	for i := range pods {
		v.Pods = append(v.Pods, Pod{Port: uint32(10 + i), MAC: [6]byte{0x0a, 4: byte(i >> 8), 5: byte(i)},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(2 + i)}),
				netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 14: byte(i >> 8), 15: byte(2 + i)})}})
	}
	for i := range peers {
		hi, lo := byte(i>>8), byte(i)
		v.Peers = append(v.Peers, Peer{Name: fmt.Sprintf("node-%05d", i),
			Tunnel: netip.AddrFrom4([4]byte{172, 16, hi, lo}),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + hi, lo, 0}), 24),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, 0, 0x10, 0, 0, hi, lo}), 64)}})
	}
	return v
}
