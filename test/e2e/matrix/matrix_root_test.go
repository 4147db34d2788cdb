package matrix

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// A working link loses nothing. A link that is down for a while loses traffic of every sort, and the table shows it.
func TestRootMatrix(t *testing.T) {
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(a, "eth0", b, "eth0")
	a.IP("addr add 192.0.2.1/24 dev eth0")
	b.IP("addr add 192.0.2.2/24 dev eth0")
	way := Path{Kind: "pods", From: place(t, a, "a", "192.0.2.1"), To: place(t, b, "b", "192.0.2.2")}
	start := func() *Matrix {
		m, err := Start([]Path{way})
		if err == nil {
			err = m.Flow(time.Minute)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	calm := Event{"nothing", start().Stop()}
	if calm.Tolls[0].Lost() || calm.Tolls[0].Asked == 0 {
		t.Errorf("on a sound cable: %s", calm.Tolls[0])
	}
	m := start()
	a.IP("link set eth0 down")
	if err := m.Flow(4 * time.Second); err == nil { // long enough for a request to fail, too
		t.Error("answers come through a cable that is unplugged")
	}
	a.IP("link set eth0 up")
	if err := m.Flow(time.Minute); err != nil {
		t.Error(err)
	}
	cut := Event{"unplugged", m.Stop()}
	toll := cut.Tolls[0]
	if toll.Established.Lost == 0 || toll.New.Lost == 0 || toll.Failed == 0 || toll.Established.Outage == 0 {
		t.Errorf("on an unplugged cable: %s", toll)
	}
	table := Table([]Event{calm, cut}, "pods")
	if lines := strings.Split(strings.TrimSpace(table), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[2], "unplugged") {
		t.Errorf("the table is\n%s", table)
	}
}

// Packets that arrive on a forbidden path are counted.
func TestRootForbiddenPaths(t *testing.T) {
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(a, "eth0", b, "eth0")
	a.IP("addr add 192.0.2.1/24 dev eth0")
	b.IP("addr add 192.0.2.2/24 dev eth0")
	way := Path{Kind: "pods", From: place(t, a, "a", "192.0.2.1"), To: place(t, b, "b", "192.0.2.2")}
	f, err := StartForbidden([]Path{way})
	if err == nil {
		err = f.Arrive(true, time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Arrive(false, 10*time.Second); err == nil || !strings.Contains(err.Error(), "a -> b") {
		t.Errorf("packets arrive, and the error is %v", err)
	}
	b.Exec("iptables", "-A", "INPUT", "-p", "udp", "-j", "DROP")
	if err := f.Arrive(false, time.Minute); err != nil {
		t.Error(err)
	}
	f.Forget()
	time.Sleep(2 * newEvery) // some more packets
	if err := f.Stop(); err != nil {
		t.Errorf("all are dropped, and the error is %v", err)
	}
	if f, err = StartForbidden([]Path{way}); err != nil {
		t.Fatal(err)
	}
	b.Exec("iptables", "-F")
	if err := f.Arrive(true, time.Minute); err != nil {
		t.Error(err)
	}
	if err := f.Stop(); err == nil || !strings.Contains(err.Error(), "arrived") {
		t.Errorf("packets have arrived, and the error is %v", err)
	}
}

func place(t *testing.T, in *nstest.NS, name, addr string) Place {
	t.Helper()
	netns, err := ns.GetNS(in.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() })
	return Place{Name: name, NetNS: netns, Addr: netip.MustParseAddr(addr)}
}
