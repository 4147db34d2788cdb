package ovsdb

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// With real devices: the gateway's appears with its MAC and MTU, a pod's port may be written before its veth exists,
// and a port without a device is reported.
func TestRootDevices(t *testing.T) {
	node := nstest.New(t)
	o := ovstest.Start(t, ovstest.Options{Datapath: ovstest.UnderTest(t), Netns: node.Path})
	db := connect(t, o)
	d := desired("a", "b")
	d.DatapathType = string(ovstest.UnderTest(t))
	node.IP("link add fla type veth peer name pa")
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), "fla", d.Gateway.Name, d.Tunnel.Name))
	if got := node.IP("link show " + d.Gateway.Name); !strings.Contains(got, d.Gateway.MAC.String()) || !strings.Contains(got, "mtu 1410") {
		t.Errorf("the gateway's device lacks MAC or MTU: %s", got)
	}
	waitChanged(t, db, func() bool { return !mustObserve(t, db).Pending }, "to see ovs-vswitchd look for the devices")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := db.WaitOFPorts(ctx, "fla", "flb"); err == nil || !strings.Contains(err.Error(), "port flb: could not open network device flb (No such device)") {
		t.Errorf("a port without a device: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- db.WaitOFPorts(soon(t), "flb") }()
	node.IP("link add flb type veth peer name pb")
	must(t, <-done)

	// When the device is gone, that is reported, and the port is pruned even with a damaged record. The other port
	// still has its device, and stays.
	node.IP("link del flb")
	o.Ctl("remove", "Port", "fla", "external_ids", "fairlead-mac", "--", "remove", "Port", "flb", "external_ids", "fairlead-mac")
	// Prune treats a record that still looks intact as that of a deleted pod.
	waitChanged(t, db, func() bool { return len(mustObserve(t, db).Broken) == 2 }, "to see both records spoilt")
	waitChanged(t, db, func() bool {
		pruneNow(t, db, desired())
		b := mustObserve(t, db).Broken
		return len(b) == 1 && b[0].Name == "fla"
	}, "to see the port without a device pruned")

	ensureNow(t, db, d)
	node.IP("link del fla")
	// ovs-vswitchd may have looked for the device meanwhile, and reports its own error.
	waitChanged(t, db, func() bool {
		e := mustObserve(t, db).Pods[0].Error
		return e == "the device is gone" || strings.HasSuffix(e, "(No such device)")
	}, "to see the device go")
}

// Open vSwitch accepts every kind of tunnel that can be configured.
func TestRootTunnels(t *testing.T) {
	node := nstest.New(t)
	o := ovstest.Start(t, ovstest.Options{Datapath: ovstest.UnderTest(t), Netns: node.Path})
	db := connect(t, o)
	d := desired()
	d.DatapathType = string(ovstest.UnderTest(t))
	for _, tun := range []TunnelPort{
		{Type: "geneve"}, {Type: "geneve", DstPort: 16081, Csum: true, LocalIP: netip.MustParseAddr("fd00::2")},
		{Type: "vxlan", LocalIP: netip.MustParseAddr("192.0.2.2")}, {Type: "vxlan", DstPort: 8472, Csum: true},
		{Type: "gre", Csum: true, LocalIP: netip.MustParseAddr("192.0.2.2")}, {Type: "geneve"},
	} {
		tun.Name = "fairlead-tun0"
		d.Tunnel = &tun
		ensureNow(t, db, d)
		waitChanged(t, db, func() bool { return !mustObserve(t, db).Pending }, "to see the tunnel taken")
		if err := db.WaitOFPorts(soon(t), tun.Name); err != nil {
			t.Errorf("%+v: %v", tun, err)
		}
		if got := mustObserve(t, db).Tunnel; got.Error != "" {
			t.Errorf("%+v: %s", tun, got.Error)
		}
	}
}

// ofport numbers survive a crash of ovs-vswitchd, so that flows stay the same.
func TestRootNumbersOutliveVswitchd(t *testing.T) {
	node := nstest.New(t)
	o := ovstest.Start(t, ovstest.Options{Datapath: ovstest.UnderTest(t), Netns: node.Path})
	db := connect(t, o)
	d := desired("a", "b", "c")
	d.DatapathType = string(ovstest.UnderTest(t))
	for _, n := range []string{"fla", "flb", "flc"} {
		node.IP("link add " + n + " type veth peer name p" + n)
	}
	ensureNow(t, db, d)
	must(t, db.WaitOFPorts(soon(t), d.names()...))
	gone := desired("b", "c")
	pruneNow(t, db, gone)
	want := mustObserve(t, db)
	o.Vswitchd.Kill()
	o.Vswitchd.Start()
	ensureNow(t, db, gone)
	must(t, db.WaitOFPorts(soon(t), gone.names()...))
	got := mustObserve(t, db)
	for i, p := range got.Pods {
		if p.OFPort != want.Pods[i].OFPort {
			t.Errorf("%s has number %d, had %d", p.HostIf, p.OFPort, want.Pods[i].OFPort)
		}
	}
	if got.Gateway.OFPort != 2 || got.Tunnel.OFPort != 1 {
		t.Errorf("gateway %d, tunnel %d, want 2 and 1", got.Gateway.OFPort, got.Tunnel.OFPort)
	}
}
