package denied

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// The switch sends the packets that it drops, up to the limit; and a removed limit is restored.
func TestSwitchShowsDeniedPackets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-int", ovstest.Port{Name: "p1", OFPort: 1})
	o.Ofctl("add-flow", "br-int", "table=0,ip,actions=set_field:7->reg9,goto_table:34")
	o.Ofctl("add-flow", "br-int", policing.LogDenied(7)[0].String())
	tap, err := Open(ctx, filepath.Join(o.Dir, "br-int.mgmt"), testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	const flood = 1000
	start := time.Now()
	for i := range flood {
		o.Appctl("netdev-dummy/receive", "p1", fmt.Sprintf("in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:99),"+
			"eth_type(0x0800),ipv4(src=10.77.1.5,dst=203.0.113.9,proto=6,tos=0,ttl=64,frag=no),tcp(src=%d,dst=80),tcp_flags(syn)",
			1000+i))
	}
	select {
	case p := <-tap.Packets():
		if p.Table != policing.Egress.Denied() || p.Judged != 7 || p.SrcPort != 1000 || p.DstPort != 80 {
			t.Errorf("the first packet: %+v", p)
		}
	case <-ctx.Done():
		t.Fatal("no packet came")
	}
	most := burst + perSecond*(1+uint64(time.Since(start)/time.Second)) // the meter has its own clock
	if seen := tap.Seen(); seen > most || seen < burst/2 {
		t.Errorf("of %d packets in %s, %d came, at most %d may", flood, time.Since(start), seen, most)
	}
	limits := func() string { return o.Ofctl("dump-meters", "br-int") }
	before := limits()
	for _, change := range [][]string{{"del-meter", "meter=controller"},
		{"mod-meter", "meter=controller,pktps,band=type=drop,rate=1000000"}} {
		if o.Ofctl(change[0], "br-int", change[1]); limits() == before {
			t.Fatalf("%s has changed nothing: %s", change, before)
		}
		if err := tap.Limit(ctx); err != nil || limits() != before {
			t.Errorf("after %s: %v, %s; want %s", change, err, limits(), before)
		}
	}
	if err := tap.Limit(ctx); err != nil || !strings.Contains(before, "rate=20 burst_size=50") {
		t.Errorf("%v, %s", err, before)
	}
	o.Vswitchd.Kill()
	select {
	case <-tap.Done():
	case <-ctx.Done():
		t.Error("the end of the switch is not noticed")
	}
}
