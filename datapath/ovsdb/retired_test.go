package ovsdb

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A removed pod's port loses its owner at once, in one operation that ovs-vswitchd does not react to. It keeps its
// number until RemoveRetired, in any process, removes it.
func TestRetired(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b", "c", "d", "e", "f", "g", "h")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	o.Ctl("set", "Port", "fla", "external_ids:theirs=1")
	before, cfg := mustObserve(t, db), o.Ctl("get", "Open_vSwitch", ".", "next_cfg")

	few := desired("b", "c")
	for range 2 {
		pruneNow(t, db, few, "fla")
	}
	got := mustObserve(t, db)
	if !slices.Equal(hostIfs(got), []string{"flb", "flc"}) || len(got.Broken)+len(got.Foreign) > 0 ||
		!slices.Equal(got.Retired, []string{"fla", "fld", "fle", "flf", "flg", "flh"}) {
		t.Errorf("after Prune %+v", got)
	}
	if differs, err := db.Differs(soon(t), few); differs || err != nil {
		t.Errorf("a round would change something: %v", err)
	}
	if now := o.Ctl("get", "Open_vSwitch", ".", "next_cfg"); now != cfg {
		t.Errorf("ovs-vswitchd was notified: next_cfg %s, was %s", now, cfg)
	}
	ids := strings.TrimSpace(o.Ctl("get", "Port", "fla", "external_ids"))
	if ids != `{fairlead=retired, theirs="1"}` {
		t.Errorf("external_ids %s", ids)
	}
	_, s, err := db.snapshot(soon(t))
	must(t, err)
	if used := numbersOf(s.portsOf(s.bridges["br-int"])); !used[int(before.Pods[0].OFPort)] {
		t.Errorf("the number %d of a port that is still there is free", before.Pods[0].OFPort)
	}

	removeRetired(t, connect(t, o), "br-int", "fla", "fld", "fle", "flf", "flg", "flh")
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Retired) == 0 }, "to see the ports gone")
	if out := o.Ctl("list-ports", "br-int"); out != "fairlead-gw0\nfairlead-tun0\nflb\nflc\n" {
		t.Errorf("ports %q", out)
	}
	if out := o.Ofctl("dump-ports-desc", "br-int"); strings.Contains(out, "(fla)") || !strings.Contains(out, "(flb)") {
		t.Errorf("ovs-vswitchd still has ports that are gone:\n%s", out)
	}
	removeRetired(t, db, "br-int")
	removeRetired(t, db, "br-other")
}

// A bridge that has only a retired port is Fairlead's, too.
func TestBridgeOfRetiredPort(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	ensureNow(t, db, desired("a"))
	pruneNow(t, db, Desired{Bridge: "br-int"})
	o.Ctl("clear", "Bridge", "br-int", "external_ids")
	waitChanged(t, db, func() bool { return db.differs(t, desired()) }, "to see the mark gone")
	if got := mustObserve(t, db); !got.BridgeOurs || !slices.Equal(got.Retired, []string{"fla"}) {
		t.Errorf("observed %+v", got)
	}
}

// A new port may have the name of a retired one, even while that is being removed.
func TestEnsureOfRetiredName(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	before := mustObserve(t, db).Pods[0]
	row := o.Ctl("get", "Port", "fla", "_uuid")
	pruneNow(t, db, desired("b"))
	ensureNow(t, db, d)
	removeRetired(t, db, "br-int") // already gone
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	got := mustObserve(t, db)
	if !slices.Equal(hostIfs(got), []string{"fla", "flb"}) || len(got.Retired) > 0 {
		t.Fatalf("observed %+v", got)
	}
	if now := o.Ctl("get", "Port", "fla", "_uuid"); now == row {
		t.Errorf("it is the row that was retired: %s", now)
	}
	if a := got.Pods[0]; a.Requested == before.Requested {
		t.Errorf("it asks for %d, which the port before it had at that time", a.Requested)
	}
}

// While ovs-vswitchd is down the ports are removed from the database, and are gone when it returns.
func TestRemoveRetiredWithoutVswitchd(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	var pods []string
	for i := range 3 * atOnce {
		pods = append(pods, fmt.Sprint(i))
	}
	ensureNow(t, db, desired(append(pods, "x")...))
	must(t, db.WaitOFPorts(soon(t), "flx"))
	pruneNow(t, db, desired("x"))
	o.Vswitchd.Kill()
	if _, err := db.RemoveRetired(soon(t), "br-int"); err == nil || !strings.Contains(err.Error(), "ovs-vswitchd does not answer") {
		t.Errorf("RemoveRetired without ovs-vswitchd: %v", err)
	}
	if got := mustObserve(t, db); len(got.Retired) > 0 || len(got.Pods) != 1 {
		t.Errorf("observed %+v", got)
	}
	o.Vswitchd.Start()
	must(t, db.WaitOFPorts(soon(t), "flx"))
	if out := o.Ofctl("dump-ports-desc", "br-int"); strings.Contains(out, "(fl1)") || !strings.Contains(out, "(flx)") {
		t.Errorf("ports:\n%s", out)
	}
}

// removeRetired calls RemoveRetired, which removes ports of these names, in any order.
func removeRetired(t *testing.T, db *DB, bridge string, names ...string) {
	t.Helper()
	got, err := db.RemoveRetired(soon(t), bridge)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, names) {
		t.Errorf("RemoveRetired removed %v, want %v: %v", got, names, err)
	}
}
