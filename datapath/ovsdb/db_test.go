package ovsdb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// desired is a bridge with gateway, tunnel and the pods of the given names.
func desired(pods ...string) Desired {
	d := Desired{
		Bridge: "br-int", DatapathType: "dummy",
		Prefixes: map[int][]string{0: {"nw_src", "ipv6_src"}, 3: {"nw_dst", "ipv6_dst"}},
		Gateway:  GatewayPort{Name: "fairlead-gw0", MAC: api.MAC{2, 0, 0, 0, 1, 1}, MTU: 1410},
		Tunnel:   &TunnelPort{Name: "fairlead-tun0", Type: "geneve", DstPort: 6081, LocalIP: netip.MustParseAddr("192.0.2.2")},
	}
	for _, p := range pods {
		d.Pods = append(d.Pods, attachment(p))
	}
	return d
}

func (d Desired) names() []string {
	var names []string
	for _, w := range d.ports() {
		names = append(names, w.name)
	}
	return names
}

func connect(t *testing.T, o *ovstest.OVS) *DB {
	t.Helper()
	db, err := Connect(soon(t), "unix:"+o.DBSocket, testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// patience is far more than anything here takes on a machine that is not overloaded.
const patience = time.Minute

// soon is a context that ends when patience does.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ensureNow and pruneNow are Ensure and Prune without the list of changes.
func ensureNow(t *testing.T, db *DB, d Desired) {
	t.Helper()
	_, err := db.Ensure(soon(t), d)
	must(t, err)
}

func pruneNow(t *testing.T, db *DB, d Desired, gone ...string) {
	t.Helper()
	_, err := db.Prune(soon(t), d, gone...)
	must(t, err)
}

func mustObserve(t *testing.T, db *DB) Observed {
	t.Helper()
	o, err := db.Observe("br-int")
	must(t, err)
	return o
}

func hostIfs(o Observed) (names []string) {
	for _, p := range o.Pods {
		names = append(names, p.HostIf)
	}
	return names
}

func TestEnsure(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	if got := mustObserve(t, db); got.BridgePresent {
		t.Errorf("a bridge exists before Ensure: %+v", got)
	}
	d := desired("a", "b")
	ensureNow(t, db, d)
	// The replica must include the agent's own writes: the loop decides by it.
	if got := hostIfs(mustObserve(t, db)); !slices.Equal(got, []string{"fla", "flb"}) {
		t.Errorf("right after Ensure the pods are %v", got)
	}
	must(t, db.WaitOFPorts(soon(t), d.names()...))

	got := mustObserve(t, db)
	if !got.BridgePresent || !got.BridgeOurs || got.DatapathType != "dummy" || len(got.Broken)+len(got.Foreign) != 0 {
		t.Errorf("observed %+v", got)
	}
	if got.Tunnel != (Port{Present: true, Name: "fairlead-tun0", OFPort: 1}) || got.Gateway != (Port{Present: true, Name: "fairlead-gw0", OFPort: 2}) {
		t.Errorf("tunnel %+v, gateway %+v", got.Tunnel, got.Gateway)
	}
	for i, p := range got.Pods {
		if !p.Attachment.Equal(d.Pods[i]) || p.OFPort == 0 || p.OFPort != o.OFPort(p.HostIf) {
			t.Errorf("pod %+v, want %+v and port %d", p, d.Pods[i], o.OFPort(p.HostIf))
		}
	}
	for _, c := range []struct{ table, row, column, want string }{
		{"Bridge", "br-int", "fail_mode", "secure"},
		{"Bridge", "br-int", "protocols", "OpenFlow10 OpenFlow13 OpenFlow15"},
		{"Interface", "fairlead-gw0", "type", "internal"},
		{"Interface", "fairlead-gw0", "mac", "02:00:00:00:01:01"},
		{"Interface", "fairlead-gw0", "mtu_request", "1410"},
		{"Interface", "fairlead-tun0", "type", "geneve"},
		{"Interface", "fairlead-tun0", "options:remote_ip", "flow"},
		{"Interface", "fairlead-tun0", "options:local_ip", "192.0.2.2"},
		{"Interface", "br-int", "type", "internal"},
	} {
		printed := strings.TrimSpace(o.Ctl("get", c.table, c.row, c.column))
		if got := strings.NewReplacer(`"`, "", ",", "", "[", "", "]", "").Replace(printed); got != c.want {
			t.Errorf("%s %s %s is %q, want %q", c.table, c.row, c.column, got, c.want)
		}
	}
	before := o.Ctl("get", "Open_vSwitch", ".", "next_cfg")
	ensureNow(t, db, d)
	pruneNow(t, db, d)
	if after := o.Ctl("get", "Open_vSwitch", ".", "next_cfg"); after != before {
		t.Errorf("a second Ensure and Prune wrote: next_cfg %s, was %s", after, before)
	}
}

// Every drift is reverted, in one transaction.
func TestDrift(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	show := func() string {
		var out string
		for _, c := range []string{"Bridge name,datapath_type,fail_mode,protocols,external_ids,controller,stp_enable,rstp_enable", "Port name,external_ids",
			"Flow_Table prefixes",
			"Interface name,type,mac,mtu_request,options,ofport_request"} {
			table, columns, _ := strings.Cut(c, " ")
			lines := strings.Split(o.Ctl("--format=csv", "--columns="+columns, "list", table), "\n")
			slices.Sort(lines)
			out += strings.Join(lines, "\n")
		}
		return out
	}
	want := show()
	for _, drift := range []string{
		"del-port fla",
		"del-port fairlead-gw0",
		"del-port fairlead-tun0",
		"del-br br-int",
		"set Bridge br-int fail_mode=standalone",
		"clear Bridge br-int fail_mode -- clear Bridge br-int protocols",
		"set Bridge br-int datapath_type=netdev",
		"clear Bridge br-int external_ids",
		"clear Bridge br-int flow_tables",
		"remove Bridge br-int flow_tables 3",
		"set Flow_Table %table0 prefixes=nw_dst",
		"clear Port fla external_ids",
		"remove Port fla external_ids fairlead-pod-name",
		"set Port fla external_ids:fairlead-mac=junk external_ids:fairlead-extra=1",
		"set Port fairlead-gw0 external_ids:fairlead=pod",
		"clear Port fairlead-tun0 external_ids",
		`set Interface fairlead-gw0 mac="02:00:00:00:09:09" mtu_request=9000 ofport_request=77`,
		"clear Interface fairlead-gw0 mac -- clear Interface fairlead-gw0 mtu_request",
		"set Interface fairlead-tun0 type=vxlan",
		"set Interface fairlead-tun0 options:remote_ip=192.0.2.9 options:csum=true",
		"set Interface fla type=internal",
		"set-controller br-int tcp:127.0.0.1:9",
		"set Bridge br-int stp_enable=true",
		"set Bridge br-int rstp_enable=true",
	} {
		if strings.Contains(drift, "%table0") {
			drift = strings.ReplaceAll(drift, "%table0", o.Ctl("get", "Bridge", "br-int", "flow_tables:0"))
		}
		o.Ctl(strings.Fields(drift)...)
		waitChanged(t, db, func() bool { return db.differs(t, d) }, "to see the drift "+drift)
		ensureNow(t, db, d)
		if got := show(); got != want {
			t.Fatalf("after %q:\n%s\nwant\n%s", drift, got, want)
		}
		must(t, db.WaitOFPorts(soon(t), d.names()...))
	}
}

// differs reports whether Ensure would write.
func (db *DB) differs(t *testing.T, d Desired) bool {
	t.Helper()
	_, s, err := db.snapshot(soon(t))
	must(t, err)
	p, err := ensure(s, d)
	must(t, err)
	return len(p.ops) > 0
}

// waitChanged waits for done and checks again only when Changed signals.
func waitChanged(t *testing.T, db *DB, done func() bool, what string) {
	t.Helper()
	limit := time.After(patience)
	for !done() {
		select {
		case <-db.Changed():
		case <-limit:
			t.Fatalf("waited %v for Changed %s", patience, what)
		}
	}
}

// Other programs' keys and ports stay unchanged.
func TestForeignThingsStay(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b")
	ensureNow(t, db, d)
	o.Ctl("set", "Port", "fla", "external_ids:theirs=1", "external_ids:fairlead-pod-name=wrong", "--",
		"set", "Bridge", "br-int", "external_ids:theirs=1", "--", "remove", "Bridge", "br-int", "external_ids", "fairlead", "--",
		"add-port", "br-int", "foreign", "--", "set", "Interface", "foreign", "type=internal")
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Foreign) > 0 && db.differs(t, d) }, "to see the foreign port")
	ensureNow(t, db, d)
	pruneNow(t, db, Desired{Bridge: "br-int"})
	got := mustObserve(t, db)
	if len(got.Pods) != 0 || got.Gateway.Present || got.Tunnel.Present || !slices.Equal(got.Foreign, []string{"foreign"}) {
		t.Errorf("after pruning everything: %+v", got)
	}
	removeRetired(t, db, "br-int", "fla", "flb")
	if out := o.Ctl("list-ports", "br-int"); out != "foreign\n" {
		t.Errorf("ports %q, want foreign only", out)
	}
	if out := o.Ctl("get", "Bridge", "br-int", "external_ids"); !strings.Contains(out, "theirs") || !strings.Contains(out, "fairlead=bridge") {
		t.Errorf("external_ids of the bridge are %s", out)
	}
}

func TestEnsureKeepsForeignKeysOfAPort(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a")
	ensureNow(t, db, d)
	o.Ctl("set", "Port", "fla", "external_ids:theirs=1", "external_ids:fairlead-pod-name=wrong")
	waitChanged(t, db, func() bool { return db.differs(t, d) }, "to see the drift")
	ensureNow(t, db, d)
	if out := o.Ctl("get", "Port", "fla", "external_ids"); !strings.Contains(out, "theirs") || !strings.Contains(out, "fairlead-pod-name=a") {
		t.Errorf("external_ids of the port are %s", out)
	}
}

func TestRefuseForeignBridge(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-int", ovstest.Port{Name: "p2", Type: "internal"}, ovstest.Port{Name: "p1", Type: "internal"})
	db := connect(t, o)
	before := o.Ctl("show")
	_, err := db.Ensure(soon(t), desired("a"))
	for _, want := range []string{"not Fairlead's", "p1, p2", "set ovsBridge", "ovs-vsctl del-br br-int"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if after := o.Ctl("show"); after != before {
		t.Errorf("the foreign bridge was changed:\n%s\nwas\n%s", after, before)
	}
	o.Ctl("del-port", "p1", "--", "del-port", "p2")
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Foreign) == 0 }, "to see the ports go")
	ensureNow(t, db, desired("a"))
	if !mustObserve(t, db).BridgeOurs {
		t.Error("an empty bridge was not taken over")
	}
}

func TestRefuseNameOnOtherBridge(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-x", ovstest.Port{Name: "fairlead-gw0", Type: "internal"})
	db := connect(t, o)
	_, err := db.Ensure(soon(t), desired())
	if err == nil || !strings.Contains(err.Error(), "fairlead-gw0 is wanted on bridge br-int but is on bridge br-x") {
		t.Errorf("error %v", err)
	}
}

// A port that was moved to another bridge is moved back, with or without its record, and nothing else of that bridge
// changes.
func TestMovedPort(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-x", ovstest.Port{Name: "theirs", Type: "internal"})
	db := connect(t, o)
	d := desired("a")
	ensureNow(t, db, d)
	for _, move := range []string{
		"del-port br-int fla -- add-port br-x fla",
		"remove Bridge br-int ports %fla -- add Bridge br-x ports %fla",
		"remove Bridge br-int ports %gw -- add Bridge br-x ports %gw",
	} {
		for name, port := range map[string]string{"%fla": "fla", "%gw": "fairlead-gw0"} {
			move = strings.ReplaceAll(move, name, strings.TrimSpace(o.Ctl("get", "Port", port, "_uuid")))
		}
		o.Ctl(strings.Fields(move)...)
		waitChanged(t, db, func() bool { return db.differs(t, d) }, "to see "+move)
		changes, err := db.Ensure(soon(t), d)
		must(t, err)
		if got := strings.Join(changes, "; "); !strings.Contains(got, "moved from bridge br-x") {
			t.Errorf("changes: %s", got)
		}
		must(t, db.WaitOFPorts(soon(t), d.names()...))
		if got := hostIfs(mustObserve(t, db)); !slices.Equal(got, []string{"fla"}) || !mustObserve(t, db).Gateway.Present {
			t.Errorf("after %q the bridge has %+v", move, mustObserve(t, db))
		}
		if out := o.Ctl("list-ports", "br-x"); out != "theirs\n" {
			t.Errorf("after %q br-x has %s", move, out)
		}
	}
}

func TestPrune(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	ensureNow(t, db, desired("a", "b", "c"))
	d := desired("b")
	d.Gateway.Name, d.Tunnel = "fairlead-gw1", nil
	ensureNow(t, db, d)
	pruneNow(t, db, d)
	got := mustObserve(t, db)
	if !slices.Equal(hostIfs(got), []string{"flb"}) || got.Gateway.Name != "fairlead-gw1" || got.Tunnel.Present {
		t.Errorf("after Prune %+v", got)
	}
	removeRetired(t, db, "br-int", "fla", "flc")
	if out := o.Ctl("list-ports", "br-int"); out != "fairlead-gw1\nflb\n" {
		t.Errorf("ports %q", out)
	}
}

// A port to be removed is removed even if its record was deleted, since it will not be desired again. No other port is.
func TestPruneWithoutRecord(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b", "c", "d")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	o.Ctl("clear", "Port", "fla", "external_ids", "--", "clear", "Port", "flb", "external_ids", "--",
		"remove", "Port", "flc", "external_ids", "fairlead-container-id")
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Foreign) == 2 }, "to see 2 ports of others")
	pruneNow(t, db, desired("d"), "fla", "flc", "fld", "flx")
	removeRetired(t, db, "br-int", "fla", "flc")
	if out := o.Ctl("list-ports", "br-int"); out != "fairlead-gw0\nfairlead-tun0\nflb\nfld\n" {
		t.Errorf("ports %q", out)
	}
}

// A damaged record is reported by the port's name, and the port stays as long as it has a device.
func TestBrokenRecord(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a", "b", "c", "d")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	o.Ctl("remove", "Port", "fla", "external_ids", "fairlead-container-id", "--",
		"set", "Port", "flb", `external_ids:fairlead-mac="zz"`, "--",
		"set", "Port", "flc", "external_ids:fairlead-host-if=fld") // flc claims to be fld
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Broken) == 3 }, "to see 3 broken records")
	got := mustObserve(t, db)
	if !slices.Equal(hostIfs(got), []string{"fld"}) || len(got.Foreign) != 0 {
		t.Errorf("observed %+v", got)
	}
	for i, want := range []string{"fairlead-container-id", "fairlead-mac", `port "fld"`} {
		if b := got.Broken[i]; b.Name != "fl"+string("abc"[i]) || !strings.Contains(b.Reason, want) {
			t.Errorf("broken %+v, want one about %s", b, want)
		}
	}
	pruneNow(t, db, desired("d"))
	if n := len(mustObserve(t, db).Broken); n != 3 {
		t.Errorf("Prune removed ports that may be running pods': %d of 3 left", n)
	}
	o.Ctl("--no-wait", "set", "Interface", "flb", "type=nonsense") // stands for a device that is gone
	waitChanged(t, db, func() bool {
		pruneNow(t, db, desired("d"))
		got = mustObserve(t, db)
		return len(got.Broken) < 3
	}, "to see the port whose device fails pruned")
	if len(got.Broken) != 2 || got.Broken[0].Name != "fla" || got.Broken[1].Name != "flc" {
		t.Errorf("after Prune broken are %+v, want fla and flc", got.Broken)
	}
	ensureNow(t, db, d) // the record can be restored from its source
	if got := mustObserve(t, db); len(got.Pods) != 4 || len(got.Broken) != 0 {
		t.Errorf("after Ensure %+v", got)
	}
}

// A caller's deadline is kept, even if it is later than the default one.
func TestLimit(t *testing.T) {
	later := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(t.Context(), later)
	defer cancel()
	limited, end := limit(ctx)
	defer end()
	if got, ok := limited.Deadline(); !ok || !got.Equal(later) {
		t.Errorf("the deadline is %v, %t, want %v", got, ok, later)
	}
	limited, end = limit(t.Context())
	defer end()
	if got, ok := limited.Deadline(); !ok || !got.Before(later) {
		t.Errorf("without a deadline it is %v, %t", got, ok)
	}
}

func TestWaitOFPortsSaysWhatIsWrong(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	ensureNow(t, db, desired("a"))
	o.Ctl("--no-wait", "set", "Interface", "fla", "type=nonsense")
	waitChanged(t, db, func() bool {
		s := mustObserve(t, db)
		return !s.Pending && strings.Contains(s.Pods[0].Error, "could not open network device fla")
	}, "to see ovs-vswitchd refuse the type")
	wait := func(names ...string) string {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		return fmt.Sprint(db.WaitOFPorts(ctx, names...))
	}
	if got := wait("fairlead-gw0", "fla", "flz"); !strings.Contains(got, "port fla: could not open network device fla") ||
		!strings.Contains(got, "flz is not in the database") || strings.Contains(got, "gw0") || strings.Contains(got, "does not answer") {
		t.Errorf("with a bad port: %s", got)
	}
	o.Ctl("set", "Interface", "fla", `type=""`)
	o.Vswitchd.Kill()
	ensureNow(t, db, desired("a", "b"))
	if got := wait("flb"); !strings.Contains(got, "flb has no number") || !strings.Contains(got, "ovs-vswitchd does not answer") {
		t.Errorf("with ovs-vswitchd down: %s", got)
	}
	if !mustObserve(t, db).Pending {
		t.Error("Observe does not say that ovs-vswitchd lags")
	}
	o.Vswitchd.Start()
	must(t, db.WaitOFPorts(soon(t), "flb"))
	waitChanged(t, db, func() bool { return !mustObserve(t, db).Pending }, "to see ovs-vswitchd catch up")
}

func TestWaitOFPortsSaysThatThereIsNoBridge(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	db := connect(t, o)
	d := desired("a")
	d.DatapathType = "nonsense" // stands for "system" without the kernel's module
	ensureNow(t, db, d)
	waitChanged(t, db, func() bool { return !mustObserve(t, db).Pending }, "to see ovs-vswitchd try")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err := db.WaitOFPorts(ctx, "fairlead-gw0")
	if got := fmt.Sprint(err); !strings.Contains(got, "could not create bridge br-int with datapath type nonsense") {
		t.Errorf("without a bridge: %s", got)
	}
}
