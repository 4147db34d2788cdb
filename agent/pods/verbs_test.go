package pods

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/addresses"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// An ADD during another request for its container, or while Open vSwitch is down, gets an error before anything is
// done.
func TestAddWaits(t *testing.T) {
	r := cniserver.Request{ContainerID: "c", IfName: "eth0"}
	down, refused := errors.New("ovsdb-server is down"), errors.New("no podCIDR")
	for _, c := range []struct {
		what   string
		busy   bool
		status status.Status
		want   error
	}{
		{"another request", true, status.Status{OVSDown: down}, addresses.ErrBusy()},
		{"Open vSwitch is down", false, status.Status{OVSDown: down, AddRefused: refused}, down},
		{"it is not", false, status.Status{AddRefused: refused}, refused},
	} {
		p := &Pods{Parts: Parts{Board: status.NewBoard(nil), Log: logr.Discard(), Addresses: &addresses.Addresses{},
			Registry: attachments.New(nil, "br-int", "boot", &attachments.Recorded{})}}
		p.Board.Publish(&c.status)
		host := link.HostName(r.ContainerID, r.IfName)
		if c.busy {
			p.Registry.Locks.TryLock(host)
		}
		if _, err := p.Add(t.Context(), r); fmt.Sprint(err) != c.want.Error() {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
		if free := p.Registry.Locks.TryLock(host); free == c.busy {
			t.Errorf("%s: the next request goes on: %t", c.what, free)
		}
	}
}

// CHECK in a network namespace other than that of the ADD is an error; a rebuilt record has none, and matches any.
func TestCheckOfAnotherNamespace(t *testing.T) {
	ovs := ovstest.Start(t, ovstest.Options{})
	db, err := ovsdb.Connect(t.Context(), "unix:"+ovs.DBSocket, logr.Discard())
	must(t, err)
	defer db.Close()
	known := func(id, netns string) api.Attachment {
		return api.Attachment{ContainerID: id, IfName: "eth0", HostIf: link.HostName(id, "eth0"), Netns: netns, BootID: "boot",
			MAC: api.MAC{2, 0, 0, 0, 0, 1}, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24")}}
	}
	_, err = db.Ensure(t.Context(), ovsdb.Desired{Bridge: "br-int", DatapathType: "dummy", Gateway: ovsdb.GatewayPort{
		Name: "fairlead-gw0", MAC: api.MAC{2, 0, 0, 0, 1, 1}, MTU: 1410},
		Pods: []api.Attachment{known("added", "/nowhere/a"), known("rebuilt", "")}})
	must(t, err)
	p := &Pods{Parts: Parts{Board: status.NewBoard(nil), Log: logr.Discard(),
		Registry: attachments.New(db, "br-int", "boot", &attachments.Recorded{})}}
	for _, c := range []struct {
		id, netns string
		another   bool
	}{{"added", "/nowhere/a", false}, {"added", "/nowhere/b", true}, {"rebuilt", "/nowhere/b", false}} {
		// No such namespace exists: in the right one, the check of the veth fails.
		want := "checking eth0"
		if c.another {
			want = "is in network namespace /nowhere/a, not in /nowhere/b"
		}
		err := p.Check(t.Context(), cniserver.Request{ContainerID: c.id, IfName: "eth0", Netns: c.netns})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s in %s: %v, want %q", c.id, c.netns, err, want)
		}
	}
}
