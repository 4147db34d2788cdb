package policies

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

// peerBytes is the maximum memory for a pod of another node that is a peer in both directions.
const peerBytes = 450

// A cluster has many pods, and each agent stores what its policies need of each of them.
func TestPeersSize(t *testing.T) {
	w := newWorld(t, networkPolicy(t, "all", `{"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
		"ingress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 80}]}],
		"egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": 80}]}]}`))
	w.update()
	w.source.Take()
	const n = 10000
	var pods []*policy.Pod
	for i := range n {
		pods = append(pods, &policy.Pod{PodKey: policy.PodKey{Namespace: "shop", Name: fmt.Sprint("far-", i)},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 20, byte(i >> 8), byte(i)})}})
	}
	before := inUse()
	for _, p := range pods {
		w.source.Put(feed.Pod, p.String(), p)
	}
	w.update()
	if got := (inUse() - before) / n; got > peerBytes {
		t.Errorf("%d bytes are kept for each peer, want at most %d", got, peerBytes)
	} else {
		t.Logf("%d bytes for each peer", got)
	}
	if len(w.Units()) < n {
		t.Errorf("%d units for %d peers", len(w.Units()), n)
	}
	runtime.KeepAlive(pods)
}

// The flows of each peer are computed whenever they are sent, or compared with the list of the switch's flows.
func TestPeersAllocate(t *testing.T) {
	const most = 5 // in both directions: the flows, and for each its actions and their operands
	p := peerUnit{address: netip.MustParsePrefix("10.20.0.1/32"), flows: [2]peerFlow{{7, true, false}, {8, true, false}}}
	if got := testing.AllocsPerRun(100, func() { p.unit() }); got > most {
		t.Errorf("%.0f allocations, want at most %d", got, most)
	}
}

// inUse is the size of the reachable heap in bytes.
func inUse() int {
	var m runtime.MemStats
	for range 2 { // the second frees what the first has finalized
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
