package preflight

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
)

func healthy() (hoststate.Link, nicFacts) {
	nic := hoststate.Link{Iface: hoststate.Iface{Name: "eth0", Index: 2}, MAC: "02:00:00:00:00:11", MTU: 1500,
		Flags: unix.IFF_UP, Sysctls: map[string]string{hoststate.AddrGenMode: "0"}}
	return nic, nicFacts{kind: "device", ether: true}
}

// Each NIC that can't be attached safely is refused, with a remedy.
func TestPreflightRefuses(t *testing.T) {
	if r := judge(healthy()); len(r.Refused) > 0 {
		t.Fatalf("a healthy NIC is refused: %v", r.Refused)
	}
	for want, spoil := range map[string]func(*hoststate.Link, *nicFacts){
		"loopback":                 func(l *hoststate.Link, _ *nicFacts) { l.Flags |= unix.IFF_LOOPBACK },
		"not carry Ethernet":       func(_ *hoststate.Link, f *nicFacts) { f.ether = false },
		"wireless":                 func(_ *hoststate.Link, f *nicFacts) { f.wireless = true },
		"it is a tap":              func(_ *hoststate.Link, f *nicFacts) { f.kind = "tap" },
		"it is a macvlan":          func(_ *hoststate.Link, f *nicFacts) { f.kind = "macvlan" },
		"it is a team":             func(_ *hoststate.Link, f *nicFacts) { f.kind = "team" },
		"it is down":               func(l *hoststate.Link, _ *nicFacts) { l.Flags = 0 },
		"its name has":             func(l *hoststate.Link, _ *nicFacts) { l.Name = `a"b` },
		"a member of bond bond0":   func(_ *hoststate.Link, f *nicFacts) { f.master, f.mKind = "bond0", "bond" },
		"Linux bridge br0":         func(_ *hoststate.Link, f *nicFacts) { f.master, f.mKind = "br0", "bridge" },
		"VRF red":                  func(_ *hoststate.Link, f *nicFacts) { f.master, f.mKind = "red", "vrf" },
		"kernel's Open vSwitch":    func(_ *hoststate.Link, f *nicFacts) { f.master, f.mKind = "ovs-system", "openvswitch" },
		"bridge br-ex: remove it":  func(_ *hoststate.Link, f *nicFacts) { f.bridge = "br-ex" },
		"does not answer: refused": func(_ *hoststate.Link, f *nicFacts) { f.ovsErr = errors.New("refused") },
		"a bridge br-uplink":       func(_ *hoststate.Link, f *nicFacts) { f.foreignBridge = true },
		"an interface br-uplink":   func(_ *hoststate.Link, f *nicFacts) { f.hasOther = true },
		"does not answer: see":     func(_ *hoststate.Link, f *nicFacts) { f.hungVswitchd = true },
		"its MTU is 1000":          func(l *hoststate.Link, f *nicFacts) { l.MTU, f.noIPv6 = 1000, true },
		"ovs-vswitchd is not":      func(_ *hoststate.Link, f *nicFacts) { f.noVswitchd = true },
		"nft is missing":           func(_ *hoststate.Link, f *nicFacts) { f.noNFT = true },
		"NetworkManager manages":   func(_ *hoststate.Link, f *nicFacts) { f.manager = manager{"NetworkManager", "leave it"} },
		"macvlan interface mv0":    func(_ *hoststate.Link, f *nicFacts) { f.uppers = []upper{{"mv0", "macvlan", 0}} },
		"addr_gen_mode 3":          func(l *hoststate.Link, _ *nicFacts) { l.Sysctls[hoststate.AddrGenMode] = "3" },
		"detection of fe80::1":     func(_ *hoststate.Link, f *nicFacts) { f.tentative = []string{"fe80::1"} },
		"has the address fd00::1":  func(_ *hoststate.Link, f *nicFacts) { f.taken = []string{"fd00::1"} },
		"mode balance-alb": func(_ *hoststate.Link, f *nicFacts) {
			f.kind, f.bond = "bond", &netlink.Bond{Mode: netlink.BOND_MODE_BALANCE_ALB}
		},
		"fail_over_mac=active": func(_ *hoststate.Link, f *nicFacts) {
			f.kind, f.bond = "bond", &netlink.Bond{FailOverMac: netlink.BOND_FAIL_OVER_MAC_ACTIVE}
		},
	} {
		nic, f := healthy()
		spoil(&nic, &f)
		r := judge(nic, f)
		if len(r.Refused) != 1 || !strings.Contains(r.Refused[0], want) {
			t.Errorf("%s: refused %q", want, r.Refused)
		}
	}
}

// Mode steer leaves the host's configuration in place, and refuses less.
func TestPreflightOfSteer(t *testing.T) {
	for want, spoil := range map[string]func(*hoststate.Link, *nicFacts){
		"":                         func(*hoststate.Link, *nicFacts) {},
		"wireless":                 func(_ *hoststate.Link, f *nicFacts) { f.wireless = true },
		"it is down":               func(l *hoststate.Link, _ *nicFacts) { l.Flags = 0 },
		"a member of bond bond0":   func(_ *hoststate.Link, f *nicFacts) { f.master, f.mKind = "bond0", "bond" },
		"Linux bridge br0":         func(_ *hoststate.Link, f *nicFacts) { f.master, f.mKind = "br0", "bridge" },
		"bridge br-ex: remove it":  func(_ *hoststate.Link, f *nicFacts) { f.bridge = "br-ex" },
		"does not answer: refused": func(_ *hoststate.Link, f *nicFacts) { f.ovsErr = errors.New("refused") },
		"an interface br-uplink":   func(_ *hoststate.Link, f *nicFacts) { f.hasOther = true },
	} {
		nic, f := healthy()
		// What mode bridge refuses.
		f.manager, f.tentative, f.taken = manager{"NetworkManager", "leave it"}, []string{"fe80::1"}, []string{"fd00::1"}
		f.uppers, f.noNFT = []upper{{"mv0", "macvlan", 0}, {"eth0.10", "vlan", 10}}, false
		nic.Sysctls[hoststate.AddrGenMode] = "3"
		spoil(&nic, &f)
		r := judgeSteer(nic, f, false, nil)
		if want == "" && len(r.Refused) > 0 || want != "" && (len(r.Refused) != 1 || !strings.Contains(r.Refused[0], want)) {
			t.Errorf("%q: refused %q", want, r.Refused)
		}
	}
	nic, f := healthy()
	for want, r := range map[string]Report{"be on a bridge of Open vSwitch": judgeSteer(nic, f, true, nil),
		"no such call": judgeSteer(nic, f, false, errors.New("no such call"))} {
		if len(r.Refused) != 1 || !strings.Contains(r.Refused[0], want) {
			t.Errorf("%s: refused %q", want, r.Refused)
		}
	}
	f.uppers, f.xdp = []upper{{"mv0", "macvlan", 0}, {"ip0", "ipvlan", 0}}, true
	if r := judgeSteer(nic, f, false, nil); len(r.Notes) != 3 || len(r.Refused) > 0 {
		t.Errorf("notes %q, refused %q", r.Notes, r.Refused)
	}
}

// What is only worth noting is no reason to refuse.
func TestPreflightNotes(t *testing.T) {
	nic, f := healthy()
	f.uppers = []upper{{"eth0.10", "vlan", 10}, {"veth1", "veth", 0}}
	f.temporary, f.xdp, f.allowManaged = []string{"fd00::77"}, true, true
	f.manager = manager{"systemd-networkd", "leave it"}
	f.kind, f.bond = "bond", &netlink.Bond{Mode: netlink.BOND_MODE_802_3AD}
	r := judge(nic, f)
	if len(r.Refused) > 0 {
		t.Errorf("refused: %q", r.Refused)
	}
	for _, want := range []string{"VLAN 10", "eth0.10", "XDP", "fd00::77", "systemd-networkd", "no addresses"} {
		if !strings.Contains(strings.Join(r.Notes, "\n"), want) {
			t.Errorf("%q says nothing of %s", r.Notes, want)
		}
	}
	if len(r.VLANs) != 1 || r.VLANs[0] != 10 {
		t.Errorf("VLANs are %v", r.VLANs)
	}
	if text := r.String(); !strings.Contains(text, "eth0 can be attached") || !strings.Contains(text, "VLAN 10") {
		t.Errorf("it reads\n%s", text)
	}
}

func TestManagers(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"NetworkManager/devices/2", "[device]\nmanaged=true\n", "NetworkManager"},
		{"NetworkManager/devices/2", "[device]\nmanaged=false\n", ""},
		{"NetworkManager/devices/3", "[device]\nmanaged=true\n", ""},
		{"systemd/netif/links/2", "ADMIN_STATE=configured\n", "systemd-networkd"},
		{"systemd/netif/links/2", "ADMIN_STATE=unmanaged\n", ""},
		{"systemd/netif/links/3", "ADMIN_STATE=configured\n", ""},
	} {
		run := t.TempDir()
		file := filepath.Join(run, c.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := managerOf(2, "eth0", run); got.name != c.want {
			t.Errorf("%s with %q: %q, want %q", c.file, c.text, got.name, c.want)
		}
	}
}

// The node's /run is found wherever preflight runs; if it is not visible, that is reported.
func TestNodeRun(t *testing.T) {
	for _, c := range []struct {
		name             string
		sameNet, sameMnt bool
		root, inPod      bool
		of1, unseen      bool
	}{
		{name: "on the node", sameNet: true, sameMnt: true, root: true, of1: true},
		{name: "in the agent's Pod", sameNet: true, root: true, inPod: true, of1: true},
		{name: "in a container that is no Pod", sameNet: true, root: true, of1: true},
		{name: "in a Pod without hostPID", sameNet: true, sameMnt: true, root: true, inPod: true, unseen: true},
		{name: "in a Pod without hostNetwork", root: true, inPod: true, unseen: true},
		{name: "in a Pod that is not privileged", sameNet: true, inPod: true, unseen: true},
		{name: "in a network namespace", root: true, sameMnt: true},
	} {
		proc := t.TempDir()
		link := func(name string, same bool) {
			t.Helper()
			for _, dir := range []string{"1/ns", "thread-self/ns"} {
				dir = filepath.Join(proc, dir)
				if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			ours := filepath.Join(proc, "thread-self/ns", name)
			if same {
				if err := errors.Join(os.Remove(ours), os.Symlink(filepath.Join(proc, "1/ns", name), ours)); err != nil {
					t.Fatal(err)
				}
			}
		}
		link("net", c.sameNet)
		link("mnt", c.sameMnt)
		if c.root {
			if err := os.MkdirAll(filepath.Join(proc, "1/root/run"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		run, unseen := nodeRun(proc, c.inPod)
		if (run == filepath.Join(proc, "1/root/run")) != c.of1 || (unseen != "") != c.unseen || !c.of1 && !c.unseen && run != "/run" {
			t.Errorf("%s: %q, %q", c.name, run, unseen)
		}
	}
}

// A fact that mode bridge needs but cannot read is no reason to refuse, but is reported.
func TestPreflightDoesNotKnow(t *testing.T) {
	nic, f := healthy()
	f.unseen = "no /run"
	r := judge(nic, f)
	text := r.String()
	if len(r.Refused) > 0 || len(r.Unknown) != 1 || !strings.Contains(text, "not known:\n  whether NetworkManager or systemd-networkd manages it: no /run") ||
		!strings.Contains(text, "eth0 can be attached in mode bridge, as far as is known") {
		t.Errorf("%+v\n%s", r, text)
	}
	if r := judgeSteer(nic, f, false, nil); len(r.Unknown) > 0 {
		t.Errorf("mode steer, which leaves the NIC to its manager: %q", r.Unknown)
	}
	f.allowManaged = true
	if r := judge(nic, f); len(r.Unknown) > 0 {
		t.Errorf("with uplink.allowManaged: %q", r.Unknown)
	}
}

func TestFromMAC(t *testing.T) {
	for ip, want := range map[string]bool{"fd00::ff:fe00:11": true, "fe80::ff:fe00:11": true, "fd00::11": false, "10.0.0.1": false} {
		if fromMAC(netip.MustParseAddr(ip).AsSlice(), "02:00:00:00:00:11") != want {
			t.Errorf("%s: want %v", ip, want)
		}
	}
}
