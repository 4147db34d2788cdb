package ovsdb

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// withZones is desired with zones.
func withZones(numbers ...uint16) Desired {
	d := desired("a")
	d.Zones = Zones{Numbers: numbers, Timeouts: map[string]int{"tcp_time_wait": 5, "tcp_close": 5}}
	return d
}

// settle applies d to the database, in as many transactions as it takes, and waits until ovs-vswitchd has applied them.
func settle(t *testing.T, db *DB, d Desired) {
	t.Helper()
	for range 10 {
		_, s, err := db.snapshot(soon(t))
		must(t, err)
		p, err := ensure(s, d)
		must(t, err)
		switch {
		case len(p.ops) > 0 || len(prune(s, d, nil).ops) > 0:
			ensureNow(t, db, d)
			pruneNow(t, db, d)
		case !s.pending():
			return
		default:
			waitChanged(t, db, func() bool { return !mustObserve(t, db).Pending }, "to see the last change taken")
		}
	}
	t.Fatal("no end of changes")
}

// timeouts are those that ovs-vswitchd sets for a connection that is committed in a zone.
func timeouts(o *ovstest.OVS, zone string) string {
	trace := o.Appctl("ofproto/trace-packet-out", "br-int", "in_port=LOCAL,tcp,tcp_dst=1", "ct(commit,zone="+zone+")")
	_, actions, _ := strings.Cut(trace, "Datapath actions: ")
	return strings.TrimSpace(actions)
}

// Connections of a zone get its timeouts, in all desired zones and no others: at the start, after the bridge was
// removed manually, and after a restart of ovs-vswitchd.
func TestZones(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	taken := func(want ...string) {
		t.Helper()
		for _, zone := range []string{"1", "40960", "45056"} {
			if got := strings.Contains(timeouts(o, zone), "timeout="); got != slices.Contains(want, zone) {
				t.Errorf("zone %s, of %v that have timeouts: %s", zone, want, timeouts(o, zone))
			}
		}
	}
	want := func(numbers ...uint16) Desired {
		d := withZones(numbers...)
		d.Zones.Start = strconv.Itoa(o.Vswitchd.PID())
		return d
	}
	settle(t, db, want(40960))
	taken("40960")
	settle(t, db, want(40960, 45056))
	taken("40960", "45056")
	o.Ctl("del-br", "br-int")
	waitChanged(t, db, func() bool { return !mustObserve(t, db).BridgePresent }, "to see no bridge")
	o.Vswitchd.Signal(syscall.SIGSTOP) // on SIGCONT it sees all changes at once
	ensureNow(t, db, want(40960, 45056))
	ensureNow(t, db, want(40960, 45056))
	o.Vswitchd.Signal(syscall.SIGCONT)
	settle(t, db, want(40960, 45056))
	taken("40960", "45056")
	o.Vswitchd.Kill()
	o.Vswitchd.Start()
	settle(t, db, want(40960, 45056))
	taken("40960", "45056")
	settle(t, db, want(45056))
	taken("45056")
	settle(t, db, desired("a"))
	taken()
}

// Other programs' zone timeouts stay, and external changes to Fairlead's are reverted.
func TestZonesOfOthers(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	ensureNow(t, db, desired("a"))
	o.Ctl("--", "--id=@d", "create", "Datapath", "external_ids:of=another", "--", "set", "Open_vSwitch", ".", "datapaths:dummy=@d")
	o.Ctl("add-zone-tp", "dummy", "zone=7", "tcp_close=9")
	o.Ctl("add-zone-tp", "dummy", "zone=40960", "tcp_close=8")
	zones := func(n int) func() bool {
		return func() bool { _, s, err := db.snapshot(soon(t)); must(t, err); return len(s.zones) == n }
	}
	waitChanged(t, db, zones(2), "to see the zones of others")
	d := withZones(40960, 45056)
	settle(t, db, d)
	const theirs = "Zone:7, Timeout Policies: tcp_close=9 Zone:40960, Timeout Policies: tcp_close=8"
	const ours = " Zone:45056, Timeout Policies: tcp_close=5 tcp_time_wait=5"
	list := func() string { return strings.Join(strings.Fields(o.Ctl("list-zone-tp", "dummy")), " ") }
	if got := list(); got != theirs+ours {
		t.Errorf("zones: %s", got)
	}
	for _, change := range []string{
		"set CT_Timeout_Policy POLICY timeouts:tcp_close=77", "clear CT_Zone ZONE timeout_policy",
		"remove Datapath DATAPATH ct_zones 45056", "del-zone-tp dummy zone=45056",
	} {
		find := func(table string) string {
			return strings.TrimSpace(o.Ctl("--bare", "--columns=_uuid", "find", table, "external_ids:fairlead=conntrack"))
		}
		change = strings.NewReplacer("POLICY", find("CT_Timeout_Policy"), "ZONE", find("CT_Zone"), "DATAPATH",
			strings.TrimSpace(o.Ctl("get", "Open_vSwitch", ".", "datapaths:dummy"))).Replace(change)
		o.Ctl(strings.Fields(change)...)
		waitChanged(t, db, func() bool { return db.differs(t, d) }, "to see "+change)
		settle(t, db, d)
		if got := list(); got != theirs+ours {
			t.Errorf("%s: zones: %s", change, got)
		}
	}
	settle(t, db, desired("a"))
	if got := list(); got != theirs {
		t.Errorf("without Fairlead's zones: %s", got)
	}
}

// One policy serves all zones, including those added later.
func TestZonesShareOnePolicy(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	settle(t, db, withZones(40960, 45056))
	settle(t, db, withZones(32768, 36864, 40960, 45056))
	_, s, err := db.snapshot(soon(t))
	must(t, err)
	if len(s.policies) != 1 || len(s.zones) != 4 || len(s.datapaths) != 1 {
		t.Errorf("policies %v, zones %v, datapaths %v", slices.Collect(maps.Values(s.policies)), s.zones, s.datapaths)
	}
}
