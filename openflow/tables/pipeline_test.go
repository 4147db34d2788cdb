package tables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// The same view in any order gives the same flows in the same order.
func TestPipelineOrder(t *testing.T) {
	for _, file := range goldenFiles(t) {
		_, view := readGolden(t, file)
		want := flowtest.Text(Pipeline(view))
		for seed := range uint64(20) {
			if got := flowtest.Text(Pipeline(shuffled(view, seed))); got != want {
				t.Fatalf("%s, seed %d: flows differ:\n%s", file, seed, flowtest.Diff(want, got))
			}
		}
	}
}

func TestPipelineLeavesItsInputAlone(t *testing.T) {
	_, view := readGolden(t, "testdata/dual-stack.txtar")
	slices.Reverse(view.Pods)
	slices.Reverse(view.Pods[0].Addrs)
	slices.Reverse(view.Peers)
	before := fmt.Sprint(view)
	Pipeline(view)
	if after := fmt.Sprint(view); after != before {
		t.Errorf("was %s\nis  %s", before, after)
	}
}

// Every table in use ends in a flow that drops all unmatched packets, even before anything is known; and no flow leads
// to a table without one.
func TestTablesEndInADrop(t *testing.T) {
	for _, file := range goldenFiles(t) {
		_, view := readGolden(t, file)
		flows := Pipeline(view)
		ends := map[uint8]bool{}
		for _, f := range flows {
			if f.Priority == 0 && f.Match == (Match{}) && len(f.Actions) == 0 {
				ends[f.Table] = true
			}
		}
		for _, f := range flows {
			if !ends[f.Table] {
				t.Errorf("%s: table %d has no last drop", file, f.Table)
			}
			for _, a := range f.Actions {
				if to, ok := a.(openflow.Goto); ok && (!ends[uint8(to)] || uint8(to) <= f.Table) {
					t.Errorf("%s: %s", file, f)
				}
			}
		}
	}
}

// Two owners of the same address or range give flows that are still valid together, and always the same ones.
func TestConflicts(t *testing.T) {
	_, view := readGolden(t, "testdata/dual-stack.txtar")
	stolen := Pod{Port: 9, MAC: flowtest.MAC(t, "0a:00:00:00:00:09"), Addrs: flowtest.Addrs("10.10.0.3,10.10.0.1")}
	twin := Peer{Name: "node-a", Tunnel: netip.MustParseAddr("192.168.77.8"), PodCIDRs: flowtest.Prefixes("10.10.2.0/24")}
	view.Pods = append(view.Pods, stolen, stolen)
	view.Peers = append(view.Peers, twin, twin)
	flows := Pipeline(view)
	seen := map[openflow.Key]bool{}
	for _, f := range flows {
		if seen[f.Key()] {
			t.Errorf("twice: %s", f)
		}
		seen[f.Key()] = true
	}
	text := flowtest.Text(flows)
	for _, want := range []string{
		"arp_tpa=10.10.0.1 actions=set_field:0e:00:00:00:00:01->eth_dst,output:2\n",                // the gateway
		"priority=200,ip,nw_dst=10.10.0.3 actions=set_field:0a:00:00:00:00:03->eth_dst,output:3\n", // lower port
		"reg0=0x2,nw_dst=10.10.2.0/24 actions=set_field:192.168.77.8->tun_dst,output:1\n",          // first name
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no flow %s", want)
		}
	}
	if again := flowtest.Text(Pipeline(shuffled(view, 1))); again != text {
		t.Errorf("another order gives other flows:\n%s", flowtest.Diff(text, again))
	}
}

// Different notations of an address are one address to the switch.
func TestNormalised(t *testing.T) {
	_, want := readGolden(t, "testdata/v4-geneve.txtar")
	_, odd := readGolden(t, "testdata/v4-geneve.txtar")
	odd.Pods[0].Addrs = flowtest.Addrs("::ffff:10.10.0.3,10.10.0.3")
	odd.Pods = append(odd.Pods, Pod{Port: 7, Addrs: flowtest.Addrs("10.10.0.7")},
		Pod{Port: 8, MAC: odd.Pods[1].MAC, Addrs: make([]netip.Addr, 1)})
	odd.Peers[0].Tunnel = netip.MustParseAddr("::ffff:192.168.77.2")
	odd.Peers[0].PodCIDRs = flowtest.Prefixes("10.10.1.77/24,10.10.1.0/24")
	odd.Gateway.PodCIDRs = append(odd.Gateway.PodCIDRs, netip.Prefix{})
	if diff := flowtest.Diff(flowtest.Text(Pipeline(want)), flowtest.Text(Pipeline(odd))); diff != "" {
		t.Errorf("flows differ:\n%s", diff)
	}
}

func TestCookie(t *testing.T) {
	f := Flow{Table: 3, Priority: 200, Kind: openflow.KindPod, Match: Match{EtherType: openflow.IPv4},
		Actions: []Action{openflow.Output(3)}}
	other := f
	other.Actions = []Action{openflow.Output(4)}
	if f.Cookie() == other.Cookie() {
		t.Error("other actions, same cookie")
	}
	if got := openflow.KindOf(f.Cookie()); got != openflow.KindPod || f.Cookie()>>32 != 0x666c_0300 {
		t.Errorf("cookie %#x of kind %d", f.Cookie(), got)
	}
	for _, foreign := range []uint64{0, 0x1234, 0x666d_0300_0000_0000} {
		if got := openflow.KindOf(foreign); got != 0 {
			t.Errorf("cookie %#x has kind %d", foreign, got)
		}
	}
}

func shuffled(v View, seed uint64) View {
	r := rand.New(rand.NewPCG(seed, 0))
	v.Pods, v.Peers = slices.Clone(v.Pods), slices.Clone(v.Peers)
	r.Shuffle(len(v.Pods), func(i, j int) { v.Pods[i], v.Pods[j] = v.Pods[j], v.Pods[i] })
	r.Shuffle(len(v.Peers), func(i, j int) { v.Peers[i], v.Peers[j] = v.Peers[j], v.Peers[i] })
	for i := range v.Pods {
		v.Pods[i].Addrs = slices.Clone(v.Pods[i].Addrs)
		r.Shuffle(len(v.Pods[i].Addrs), func(a, b int) {
			v.Pods[i].Addrs[a], v.Pods[i].Addrs[b] = v.Pods[i].Addrs[b], v.Pods[i].Addrs[a]
		})
	}
	for i := range v.Peers {
		v.Peers[i].PodCIDRs = slices.Clone(v.Peers[i].PodCIDRs)
		v.Peers[i].Direct = slices.Clone(v.Peers[i].Direct)
		slices.Reverse(v.Peers[i].PodCIDRs)
		slices.Reverse(v.Peers[i].Direct)
	}
	v.Gateway.Addrs = slices.Clone(v.Gateway.Addrs)
	slices.Reverse(v.Gateway.Addrs)
	return v
}
