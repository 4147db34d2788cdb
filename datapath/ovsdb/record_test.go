package ovsdb

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// attachment is the record of one pod, distinct for each name.
func attachment(name string) api.Attachment {
	n := byte(len(name)*7) + name[len(name)-1]
	return api.Attachment{
		ContainerID: "container-" + name, IfName: "eth0", Netns: "/run/netns/" + name, Network: "fairlead",
		PodNamespace: "default", PodName: name, PodUID: "uid-" + name, HostIf: "fl" + name, MAC: api.MAC{2, 0, 0, 0, 0, n},
		Addrs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, n}), 24), netip.MustParsePrefix("fd00:1::5/64")},
		BootID: "boot-1",
	}
}

// bridged is attachment with addresses of two pools.
func bridged(name string) api.Attachment {
	a := attachment(name)
	a.Bridged, a.VLAN, a.Pools = true, 10, []string{"pool-v4", "pool-v6"}
	a.Gateways = []netip.Addr{netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("fd00:1::1")}
	return a
}

func TestRecordRoundTrip(t *testing.T) {
	plain := attachment("a")
	plain.PodNamespace, plain.PodName, plain.PodUID, plain.Addrs = "", "", "", nil
	odd := attachment("b")
	odd.Netns = "/run/netns/space \"quote\" [\"map\",[]] ü"
	untagged := bridged("d")
	untagged.VLAN, untagged.Gateways = 0, nil
	for _, a := range []api.Attachment{attachment("a"), plain, odd, bridged("c"), untagged} {
		got, err := decode(a.HostIf, encode(a))
		if err != nil || !got.Equal(a) {
			t.Errorf("%+v decodes to %+v, %v", a, got, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	a := attachment("a")
	for key := range encode(a) {
		if key == markKey { // without it there is no record
			continue
		}
		ids := encode(a)
		delete(ids, key)
		if _, err := decode(a.HostIf, ids); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("without %s: error %v, want one that names the key", key, err)
		}
	}
	for key, value := range map[string]string{
		macKey: "not-a-mac", addrsKey: "10.0.0.1", recordPrefix + "container-id": "", recordPrefix + "ifname": "",
		recordPrefix + "host-if": "flother",
	} {
		ids := encode(a)
		ids[key] = value
		if _, err := decode(a.HostIf, ids); err == nil {
			t.Errorf("%s=%q is accepted", key, value)
		}
	}
}

func TestDecodeRefusesBridged(t *testing.T) {
	a := bridged("a")
	for _, c := range []struct{ key, value string }{
		{vlanKey, ""}, {vlanKey, "4095"}, {vlanKey, "-1"}, {vlanKey, "0x10"},
		{poolsKey, ""}, {poolsKey, "pool-v4"}, {gatewaysKey, "10.0.1.1/24"},
	} {
		ids := encode(a)
		ids[c.key] = c.value
		if _, err := decode(a.HostIf, ids); err == nil || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s=%q: error %v, want one that names the key", c.key, c.value, err)
		}
	}
}

// A routed pod's record is the same as before bridged pods existed, so that an upgrade rewrites none.
func TestRecordOfRouted(t *testing.T) {
	for key := range encode(attachment("a")) {
		if key == vlanKey || key == poolsKey || key == gatewaysKey {
			t.Errorf("a routed pod's record has %s", key)
		}
	}
}

func TestCheckText(t *testing.T) {
	for _, bad := range []string{"a\x00b", "\xff"} {
		a := attachment("a")
		a.Netns = bad
		if err := checkText(a); err == nil || !strings.Contains(err.Error(), "netns of pod") {
			t.Errorf("%q: error %v", bad, err)
		}
	}
	a := bridged("a")
	a.Pools[1] = "\xff"
	if err := checkText(a); err == nil || !strings.Contains(err.Error(), "ippools of pod") {
		t.Errorf("a pool name that is not text: error %v", err)
	}
	if err := checkText(attachment("a")); err != nil {
		t.Error(err)
	}
}

// external_ids may contain anything. What decode accepts must survive an encode and decode unchanged.
func FuzzDecode(f *testing.F) {
	a := attachment("a")
	ids := encode(a)
	f.Add(a.HostIf, ids[macKey], ids[addrsKey], a.ContainerID, a.IfName)
	f.Add("", "", "", "", "")
	f.Add("x", "02:00:00:00:00:01", "10.0.0.1/33 ::/0", "c", "eth0")
	f.Add("x", "02:00:00:00:00:01", "fe80::1%eth0/64", "c", "eth0")
	f.Fuzz(func(t *testing.T, name, mac, addrs, container, ifName string) {
		ids := maps.Clone(ids)
		ids[macKey], ids[addrsKey] = mac, addrs
		ids[recordPrefix+"container-id"], ids[recordPrefix+"ifname"], ids[recordPrefix+"host-if"] = container, ifName, name
		got, err := decode(name, ids)
		if err != nil {
			return
		}
		again, err := decode(name, encode(got))
		if err != nil || !again.Equal(got) {
			t.Errorf("%+v decodes to %+v, %v", got, again, err)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		t    TunnelPort
		want map[string]string
	}{
		{TunnelPort{Type: "geneve"}, map[string]string{"remote_ip": "flow", "key": "flow"}},
		{TunnelPort{Type: "vxlan", DstPort: 8472, Csum: true, LocalIP: netip.MustParseAddr("fd00::7")},
			map[string]string{"remote_ip": "flow", "key": "flow", "dst_port": "8472", "csum": "true", "local_ip": "fd00::7"}},
	} {
		if got := c.t.options(); !maps.Equal(got, c.want) {
			t.Errorf("%+v has options %v, want %v", c.t, got, c.want)
		}
	}
}

func TestDesiredRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Desired)
		says   string
	}{
		"no bridge":         {func(d *Desired) { d.Bridge = "" }, "no name"},
		"no gateway":        {func(d *Desired) { d.Gateway.Name = "" }, "no name"},
		"gateway is bridge": {func(d *Desired) { d.Gateway.Name = d.Bridge }, "duplicate port name"},
		"pod twice":         {func(d *Desired) { d.Pods = append(d.Pods, d.Pods[0]) }, "duplicate port name fla"},
		"pod without port":  {func(d *Desired) { d.Pods[0].HostIf = "" }, "no port name"},
		"pod without ID":    {func(d *Desired) { d.Pods[0].ContainerID = "" }, "container ID"},
		"pool's name":       {func(d *Desired) { d.Pods[0] = bridged("a"); d.Pods[0].Pools[0] = "a b" }, "3 names for 2"},
		"VLAN of routed":    {func(d *Desired) { d.Pods[0].VLAN = 7 }, "its record would be"},
		"uplink without":    {func(d *Desired) { d.Uplink = &UplinkPort{} }, "uplink port has no port name"},
		"not text":          {func(d *Desired) { d.Pods[0].PodName = "\xff" }, "not text"},
		"tunnel type":       {func(d *Desired) { d.Tunnel.Type = "ipip" }, `tunnel type "ipip"`},
		"gre port":          {func(d *Desired) { d.Tunnel.Type, d.Tunnel.DstPort = "gre", 47 }, "cannot use destination port"},
		"port too high":     {func(d *Desired) { d.Tunnel.DstPort = 65536 }, "cannot use destination port"},
	} {
		d := desired("a")
		c.change(&d)
		if err := d.validate(d.ports(), nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one containing %q", name, err, c.says)
		}
	}
}

// A read may happen between the parts of an update.
func TestSnapshotWhole(t *testing.T) {
	full := func() snapshot {
		return snapshot{
			root:    openVSwitch{UUID: "o", Bridges: []string{"b"}},
			bridges: map[string]bridge{"br-int": {UUID: "b", Name: "br-int", Ports: []string{"p"}}},
			ports:   map[string]*port{"p": {UUID: "p", Name: "p", Interfaces: []string{"i"}}},
			ifaces:  map[string]*iface{"i": {UUID: "i", Name: "p"}},
		}
	}
	if !full().consistent() {
		t.Fatal("a complete snapshot is not whole")
	}
	for name, lose := range map[string]func(*snapshot){
		"root":      func(s *snapshot) { s.root = openVSwitch{} },
		"bridge":    func(s *snapshot) { s.bridges = nil },
		"port":      func(s *snapshot) { s.ports = nil },
		"interface": func(s *snapshot) { s.ifaces = nil },
	} {
		s := full()
		lose(&s)
		if s.consistent() {
			t.Errorf("a snapshot without its %s is whole", name)
		}
		for _, b := range s.bridges {
			s.portsOf(b) // the reports of slow calls may read such a snapshot
		}
	}
}
