package agent

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A pod whose record, veth and lease were seen at three moments of its DEL looks
// lost. When the DEL is through, nothing of it is written again: its address may be
// another pod's.
func TestRebuildLooksAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ovs := ovstest.Start(t, ovstest.Options{})
	db, err := ovsdb.Connect(ctx, "unix:"+ovs.DBSocket, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	leases, err := hostlocal.Open(t.TempDir(), "boot")
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Close()
	l := &loop{db: db, requests: make(chan request, 1)}
	l.state.Store(&state{podCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}})
	p := &pods{loop: l, leases: leases, bootID: "boot", log: logr.Discard()}
	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if err := p.rebuildOne(short, link.HostName("deleted", "eth0")); err != nil {
		t.Error(err)
	}
	select {
	case r := <-l.requests:
		t.Errorf("a record was asked for: %+v", r.add)
	default:
	}
}
