package pods

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/node"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A pod whose record, veth and lease were read at three moments of its DEL looks lost. After the DEL, none of it is
// written again: its address may belong to another pod.
func TestRebuildLooksAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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

// A pod has the MAC that is reserved with its addresses: with another one in its record, all its frames would be
// dropped.
func TestRebuiltMAC(t *testing.T) {
	p := &Pods{Parts: Parts{Source: &stale{is: inputs.Snapshot{IPPools: map[string]api.IPPool{
		"p": poolOf("p", 4, "10.9.0.0/24", "10.9.0.1", 24), "p6": poolOf("p6", 6, "fd09::/120", "fd09::1", 120)}}},
		Registry: attachments.New(nil, "br-int", "boot", &attachments.Recorded{})}}
	held := func(of, address string, keep *api.AllocationReservation) api.IPAllocation {
		return api.IPAllocation{Spec: api.IPAllocationSpec{Address: address, Pool: of, Phase: api.PhaseAllocated,
			Owner: api.AllocationOwner{ContainerID: "c", IfName: "eth0"}, Reservation: keep}}
	}
	mac := func(h ...api.IPAllocation) string {
		t.Helper()
		a, err := p.attachmentOf(h)
		if err != nil || !a.Bridged || len(a.Addrs) != len(h) {
			t.Fatalf("%+v, %v", a, err)
		}
		return a.MAC.String()
	}
	plain := mac(held("p", "10.9.0.7", nil))
	keep := func(mac string) *api.AllocationReservation { return &api.AllocationReservation{MAC: mac} }
	for _, c := range []struct {
		what, got, want string
	}{
		{"reserved", mac(held("p", "10.9.0.7", keep("02:00:00:00:00:01"))), "02:00:00:00:00:01"},
		{"with the other family's address", mac(held("p6", "fd09::7", keep("02:00:00:00:00:01")), held("p", "10.9.0.7", nil)),
			"02:00:00:00:00:01"},
		{"an address alone is", mac(held("p", "10.9.0.7", keep(""))), plain},
		{"garbage", mac(held("p", "10.9.0.7", keep("x"))), plain},
		{"a group's", mac(held("p", "10.9.0.7", keep("01:00:00:00:00:01"))), plain},
	} {
		if c.got != c.want {
			t.Errorf("%s: the MAC is %s, want %s", c.what, c.got, c.want)
		}
	}
}

func poolOf(name string, version int, cidr, gateway string, length int) api.IPPool {
	return api.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.IPPoolSpec{IPVersion: version,
		IPRanges: []api.IPRange{{CIDR: cidr, SubnetInfo: api.SubnetInfo{Gateway: gateway, PrefixLength: length}}}}}
}

// recorder is a Node that only records requests.
type recorder struct {
	changes []node.Change
	fails   error // its answer
}

func (r *recorder) Apply(_ context.Context, c node.Change) error {
	r.changes = append(r.changes, c)
	return r.fails
}

func (*recorder) ExpectAdd() func() { return func() {} }
