package ovsdb

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// withZones is desired, with zones.
func withZones(numbers ...uint16) Desired {
	d := desired("a")
	d.Zones = Zones{Numbers: numbers, Timeouts: map[string]int{"tcp_time_wait": 5, "tcp_close": 5}}
	return d
}

// settle makes the database what d says, in as many transactions as it takes, and says in how many. ovs-vswitchd has
// taken them then.
func settle(t *testing.T, db *DB, d Desired) (transactions int) {
	t.Helper()
	for {
		if differs, err := db.Differs(soon(t), d); err != nil || !differs {
			must(t, err)
			waitChanged(t, db, func() bool { return !mustObserve(t, db).Pending }, "to see the timeouts taken")
			return transactions
		}
		if transactions++; transactions > 5 {
			t.Fatal("no end of changes")
		}
		ensureNow(t, db, d)
		pruneNow(t, db, d)
	}
}

// timeouts are those that ovs-vswitchd gives a connection that is committed in a zone.
func timeouts(o *ovstest.OVS, zone string) string {
	trace := o.Appctl("ofproto/trace-packet-out", "br-int", "in_port=LOCAL,tcp,tcp_dst=1", "ct(commit,zone="+zone+")")
	_, actions, _ := strings.Cut(trace, "Datapath actions: ")
	return strings.TrimSpace(actions)
}

// Connections of a zone get its timeouts, of all that are wanted and of no other, at the start and again after the
// bridge was removed by hand.
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
	settle(t, db, withZones(40960))
	taken("40960")
	settle(t, db, withZones(40960, 45056))
	taken("40960", "45056")
	o.Ctl("del-br", "br-int")
	settle(t, db, withZones(40960, 45056))
	taken("40960", "45056")
	settle(t, db, withZones(45056))
	taken("45056")
	settle(t, db, desired("a"))
	taken()
}

// Timeouts of zones that somebody else has given them stay, and external changes of ours are reverted.
func TestZonesOfOthers(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	ensureNow(t, db, desired("a"))
	o.Ctl("--", "--id=@d", "create", "Datapath", "external_ids:of=another", "--", "set", "Open_vSwitch", ".", "datapaths:dummy=@d")
	o.Ctl("add-zone-tp", "dummy", "zone=7", "tcp_close=9")
	o.Ctl("add-zone-tp", "dummy", "zone=40960", "tcp_close=8")
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
		if settle(t, db, d) == 0 {
			t.Errorf("%s: not seen", change)
		}
		if got := list(); got != theirs+ours {
			t.Errorf("%s: zones: %s", change, got)
		}
	}
	settle(t, db, desired("a"))
	if got := list(); got != theirs {
		t.Errorf("without zones of ours: %s", got)
	}
}

// One policy serves all zones, also those that come later.
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
