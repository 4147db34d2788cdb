package poolstatus

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/forecast"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

func poolOf(name, start, end string) *api.IPPool {
	subnet := api.SubnetInfo{Gateway: "10.2.255.254", PrefixLength: 16}
	if strings.Contains(start, ":") {
		subnet = api.SubnetInfo{Gateway: "fe80::1", PrefixLength: 64}
	}
	return &api.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 7},
		Spec: api.IPPoolSpec{IPRanges: []api.IPRange{{Start: start, End: end}}, SubnetInfo: &subnet}}
}

func held1(pool, addr string, phase api.AllocationPhase) *api.IPAllocation {
	return &api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: addr},
		Spec: api.IPAllocationSpec{Address: addr, Pool: pool, Phase: phase}}
}

// said is a status in one line: usage, free map, then the conditions that differ from those of a healthy pool.
func said(s api.IPPoolStatus) string {
	out := fmt.Sprintf("%d/%d %v", s.Usage.Used, s.Usage.Total, s.FreeMap)
	for _, c := range s.Conditions {
		if (c.Status == metav1.ConditionTrue) != (c.Type == api.PoolReady) {
			out += fmt.Sprintf("; %s %s: %s", c.Type, c.Reason, c.Message)
		}
	}
	return out
}

func TestStatus(t *testing.T) {
	deleted := poolOf("deleted", "10.2.7.1", "10.2.7.2")
	deleted.DeletionTimestamp = &metav1.Time{}
	pools := []*api.IPPool{
		poolOf("good", "10.2.0.1", "10.2.0.9"), poolOf("full", "10.2.1.1", "10.2.1.2"), poolOf("cooling", "10.2.2.1", "10.2.2.2"),
		poolOf("wrong", "10.3.0.1", "10.3.0.9"), poolOf("big", "fd00::", "fd00::ffff:ffff:ffff:ffff"),
		poolOf("old", "10.2.4.1", "10.2.4.9"), poolOf("young", "10.2.4.9", "10.2.4.20"), poolOf("pods", "10.2.5.1", "10.2.6.1"), poolOf("filling", "10.2.8.1", "10.2.8.5"), deleted,
	}
	allocations := []*api.IPAllocation{
		held1("good", "10.2.0.5", api.PhaseAllocated), held1("good", "10.2.0.2", api.PhaseCooling),
		held1("full", "10.2.1.1", api.PhaseAllocated), held1("full", "10.2.1.2", api.PhaseConflict),
		held1("cooling", "10.2.2.1", api.PhaseAllocated), held1("cooling", "10.2.2.2", api.PhaseCooling),
		held1("young", "10.2.4.9", api.PhaseAllocated), held1("deleted", "10.2.7.1", api.PhaseAllocated),
		held1("filling", "10.2.8.1", api.PhaseAllocated), held1("filling", "10.2.8.2", api.PhaseAllocated),
		held1("filling", "10.2.8.3", api.PhaseReserved), held1("filling", "10.2.8.4", api.PhaseAllocated),
	}
	grows := forecast.Growth{"full": {{At: time.Unix(0, 0)}, {At: time.Unix(60, 0), Used: 2}},
		"filling": {{At: time.Unix(0, 0), Used: 1}, {At: time.Unix(3000, 0), Used: 4}}}
	others := pool.Others{Nodes: []pool.Node{{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.5.0/24")}}}}
	got := Of(Read(pools, allocations, others), Warning{80, grows})
	for name, want := range map[string]string{
		"good":    "2/9 [10.2.0.1 10.2.0.3-10.2.0.4 10.2.0.6-10.2.0.9]",
		"full":    "2/2 []; Exhausted AllInUse: 2 of 2 addresses are in use (1 by hosts outside of the cluster). Extend spec.ipRanges, or delete pods that use the pool; Filling AboveThreshold: 2 of 2 addresses are in use, 80 percent or more. Extend spec.ipRanges; Ready Exhausted: ",
		"cooling": "2/2 []; Filling AboveThreshold: 2 of 2 addresses are in use, 80 percent or more. Extend spec.ipRanges",
		"filling": "4/5 [10.2.8.5]; Filling AboveThreshold: 4 of 5 addresses are in use, 80 percent or more. At its current growth rate the pool is full within an hour. Extend spec.ipRanges",
		"wrong":   "0/0 []; Invalid Invalid: IPPool wrong: spec.ipRanges[0]: 10.3.0.1-10.3.0.9 is not inside 10.2.0.0/16…",
		"big":     fmt.Sprintf("0/%d [fd00::1-fd00::ffff:ffff:ffff:ffff]", math.MaxInt64),
		"old":     "0/9 [10.2.4.1-10.2.4.8]; Overlapping Overlap: pool old has address 10.2.4.9, and so has IPPool young: shorten spec.ipRanges, or name the common addresses in spec.excludes",
		"young":   "1/12 [10.2.4.10-10.2.4.20]; Overlapping Overlap: pool young has address 10.2.4.9, and so has IPPool old: shorten spec.ipRanges, or name the common addresses in spec.excludes. Until then no addresses are allocated from pool young; Ready Overlapping: ",
		"pods":    "0/257 [10.2.5.1-10.2.6.1]; Overlapping Overlap: pool pods has address 10.2.5.1, and so has the podCIDR 10.2.5.0/24 of node n1…",
		"deleted": "1/2 [10.2.7.2]; Ready Deleted: the pool is being deleted; 1 of its addresses are still in use",
	} {
		s := got[name]
		start, more := strings.CutSuffix(want, "…")
		if line := said(s); line != want && !(more && strings.HasPrefix(line, start)) {
			t.Errorf("%s:\n\tgot  %s\n\twant %s", name, line, want)
		}
		for _, c := range s.Conditions {
			if c.Reason == "" || c.ObservedGeneration != 7 {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
}

// A status is only written to the pool that it was computed from, even if irrelevant fields of that have changed.
func TestIsOf(t *testing.T) {
	read := poolOf("p", "10.2.0.1", "10.2.0.9")
	s := Read([]*api.IPPool{read}, nil, pool.Others{})[0]
	for what, c := range map[string]struct {
		change func(*api.IPPool)
		want   bool
	}{
		"nothing":          {func(*api.IPPool) {}, true},
		"resourceVersion":  {func(p *api.IPPool) { p.ResourceVersion = "2" }, true},
		"spec":             {func(p *api.IPPool) { p.Generation++ }, false},
		"isolated network": {func(p *api.IPPool) { p.Annotations = map[string]string{api.AnnotationNetwork: "lab"} }, false},
		"deleted":          {func(p *api.IPPool) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, false},
		"created again":    {func(p *api.IPPool) { p.UID = "2" }, false},
	} {
		now := *read
		if c.change(&now); s.IsOf(&now) != c.want {
			t.Errorf("%s: %v, want %v", what, !c.want, c.want)
		}
	}
}

// A fragmented pool has a free map within the limit.
func TestFreeMapHasALimit(t *testing.T) {
	var allocations []*api.IPAllocation
	for i := range 600 {
		n := 2*i + 2
		allocations = append(allocations, held1("p", fmt.Sprintf("10.2.%d.%d", n>>8, n&0xff), api.PhaseAllocated))
	}
	got := Of(Read([]*api.IPPool{poolOf("p", "10.2.0.1", "10.2.7.200")}, allocations, pool.Others{}), Warning{100, nil})["p"].FreeMap
	if len(got) != api.PoolFreeMapMost || got[0] != "10.2.0.1" || got[511] != "10.2.4.177-10.2.7.200" {
		t.Errorf("%d spans: %v", len(got), got)
	}
}

// BenchmarkStatus is a pass over the pools of a large cluster.
func BenchmarkStatus(b *testing.B) {
	const manyPools, manyNodes, many = 200, 5000, 20000
	var pools []*api.IPPool
	for i := range manyPools {
		p := poolOf(fmt.Sprint("pool", i), fmt.Sprintf("10.240.%d.2", i), fmt.Sprintf("10.240.%d.254", i))
		p.Spec.SubnetInfo.Gateway = "10.240.255.254"
		pools = append(pools, p)
	}
	var allocations []*api.IPAllocation
	for i := range many {
		addr := fmt.Sprintf("10.240.%d.%d", i%manyPools, 2+i/manyPools)
		allocations = append(allocations, held1(fmt.Sprint("pool", i%manyPools), addr, api.PhaseAllocated))
	}
	var others pool.Others
	for i := range manyNodes {
		hi, lo := byte(i>>8), byte(i)
		others.Nodes = append(others.Nodes, pool.Node{Name: fmt.Sprint("node", i),
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, hi, lo, 0}), 24)},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, hi, lo})}})
	}
	b.ReportAllocs()
	for b.Loop() {
		Of(Read(pools, allocations, others), Warning{80, forecast.Growth{}})
	}
}
