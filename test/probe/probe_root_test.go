package probe

import (
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

// On loopback nothing is lost; without an echo every datagram is, and is counted.
func TestRootStream(t *testing.T) {
	here, err := ns.GetCurrentNS()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	lo := netip.MustParseAddr("127.0.0.1")
	port, stop, err := Echo(here, lo)
	if err != nil {
		t.Fatal(err)
	}
	fresh := func() Report {
		s := StartFresh(here, lo, netip.AddrPortFrom(lo, port), 2*time.Millisecond)
		<-time.After(200 * time.Millisecond) // the length of the stream
		return s.Stop()
	}
	one := func() Report {
		s, err := Start(here, lo, netip.AddrPortFrom(lo, port), 2*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(200 * time.Millisecond) // the length of the stream
		return s.Stop()
	}
	streams := map[string]func() Report{"of one flow": one, "of fresh flows": fresh}
	for name, run := range streams {
		if r := run(); r.Sent < 50 || r.Lost != 0 || r.Duplicates != 0 || r.Outage != 0 {
			t.Errorf("with an echo, %s: %s", name, r)
		}
	}
	stop()
	for name, run := range streams {
		if r := run(); r.Sent < 50 || r.Lost != r.Sent || r.Outage != time.Duration(r.Sent)*2*time.Millisecond {
			t.Errorf("without an echo, %s: %s", name, r)
		}
	}
}
