package apply

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/fairlead-cni/fairlead/agent/services"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow"
)

// The memory for each port of a Service, both for the next change and for the switch's state, is small: there may be
// tens of thousands.
func TestServicePortsSize(t *testing.T) {
	const n, most, maxListed = 2000, 600, 2500 // measured: 468 and 1970 bytes with two endpoints
	x := newNode(t, api.AgentConfig{Services: api.ServicesOVS, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12")})
	x.apply(x.round())
	before, changed := heap(), map[uint32]openflow.Unit{}
	for i := range n {
		at := func(first byte) netip.Addr { return netip.AddrFrom4([4]byte{first, 96, byte(i >> 8), byte(i)}) }
		b := services.Backends{Endpoints: []netip.AddrPort{
			netip.AddrPortFrom(at(11), 80), netip.AddrPortFrom(at(12), 80)}}
		x.flows.services.replace(fmt.Sprintf("ns/service-%d", i),
			map[services.Key]services.Backends{{Addr: at(10), Protocol: 6, Port: 80}: b}, changed)
	}
	x.flows.sw.SetUnits(changed, false)
	if done, err := x.flows.SyncServices(x.soon()); !done || err != nil {
		t.Fatalf("%t, %v", done, err)
	}
	changed = nil
	each := (heap() - before) / n
	t.Logf("%d bytes for each port", each)
	if each > most {
		t.Errorf("want at most %d", most)
	}
	r := x.round()
	r.Verify, r.Settled = true, true
	was := allocated()
	x.apply(r) // lists all of them
	if each := (allocated() - was) / n; each > maxListed {
		t.Errorf("a round that verifies allocates %d bytes for each port, want at most %d", each, maxListed)
	} else {
		t.Logf("%d bytes in a round that verifies", each)
	}
	runtime.KeepAlive(x)
}

func allocated() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.TotalAlloc)
}

// heap is the memory in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // frees what the first has found unused
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
