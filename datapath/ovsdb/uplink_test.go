package ovsdb

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// The uplink port has its number, external changes to it are reverted, and it is removed when it is no longer desired;
// its peer on the other bridge is left alone.
func TestUplink(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a")
	d.Uplink = &UplinkPort{Name: "fairlead-up0", Type: "patch", Options: map[string]string{"peer": "fairlead-up1"}}
	// The peer first: ovs-vswitchd does not clear the error that a port has no peer.
	o.Ctl("add-br", "br-uplink", "--", "set", "bridge", "br-uplink", "datapath_type=dummy",
		"--", "add-port", "br-uplink", "fairlead-up1",
		"--", "set", "interface", "fairlead-up1", "type=patch", "options:peer=fairlead-up0")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	want := Port{Present: true, Name: "fairlead-up0", OFPort: 3}
	if got := mustObserve(t, db); got.Uplink != want || len(got.Foreign) != 0 {
		t.Errorf("uplink %+v, foreign %v; want %+v and none", got.Uplink, got.Foreign, want)
	}

	o.Ctl("set", "interface", "fairlead-up0", "options:peer=elsewhere", "ofport_request=9")
	waitChanged(t, db, func() bool { return db.differs(t, d) }, "to see the drift")
	changes, err := db.Ensure(soon(t), d)
	if text := strings.Join(changes, "; "); err != nil || text != "uplink port fairlead-up0: ofport_request, options set" {
		t.Errorf("repaired %q, %v", text, err)
	}
	must(t, db.WaitOFPorts(soon(t), d.names()...))

	d.Uplink = nil
	ensureNow(t, db, d)
	pruneNow(t, db, d)
	if got := mustObserve(t, db); got.Uplink.Present {
		t.Errorf("the uplink's port is still there: %+v", got.Uplink)
	}
	if got := o.Ctl("list-ports", "br-uplink"); got != "fairlead-up1\n" {
		t.Errorf("the other bridge has the ports %q, want its own end of the patch", got)
	}
}
