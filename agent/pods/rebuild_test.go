package pods

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/node"
	"github.com/fairlead-cni/fairlead/agent/status"
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
	board := status.NewBoard(nil)
	board.Publish(&status.Status{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}})
	applied := &recorder{}
	p := &Pods{leases: leases, Parts: Parts{Node: applied, Board: board, Log: logr.Discard(),
		Registry: attachments.New(db, "br-int", "boot", &attachments.Recorded{})}}
	if err := p.rebuildOne(ctx, p.attachment("deleted", "eth0")); err != nil {
		t.Error(err)
	}
	if len(applied.changes) > 0 {
		t.Errorf("a record was asked for: %+v", applied.changes[0].Add)
	}
}

// recorder is a Node that only notes what it is asked for.
type recorder struct{ changes []node.Change }

func (r *recorder) Apply(_ context.Context, c node.Change) error {
	r.changes = append(r.changes, c)
	return nil
}

func (*recorder) Coming() func() { return func() {} }
