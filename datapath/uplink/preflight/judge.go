package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
)

// nicFacts are what judge needs about the NIC besides hoststate.Link.
type nicFacts struct {
	kind     string // of link: "", "veth", "bond", …
	ether    bool
	wireless bool
	master   string // name and kind of the link it belongs to
	mKind    string
	uppers   []upper
	bond     *netlink.Bond
	xdp      bool
	manager  manager
	unseen   string // why the manager is unknown
	hasOther bool   // a device called br-uplink that Open vSwitch has not created

	bridge        string // of Open vSwitch that has the NIC
	ovsErr        error
	foreignBridge bool
	noVswitchd    bool
	hungVswitchd  bool
	noIPv6        bool // for its MTU
	noNFT         bool
	allowManaged  bool
	// IPv6 addresses: duplicate address detection still running; failed; temporary (RFC 8981).
	tentative, taken, temporary []string
}

// upper is an interface on top of the NIC.
type upper struct {
	name, kind string
	vlan       int
}

// manager is a program that configures the NIC; remedy is how to make it leave the NIC alone.
type manager struct{ name, remedy string }

// judge is the pure part of Bridge.
func judge(nic hoststate.Link, f nicFacts) Report {
	r := NewReport(nic.Name, api.UplinkBridge)
	r.refuseKind(nic, f)
	r.refuseMaster(nic, f)
	r.judgeUppers(f)
	if f.noIPv6 {
		r.refuse("its MTU is %[1]d, and the kernel has no IPv6 on interfaces below %[2]d, so its IPv6 configuration cannot be "+
			"kept: ip link set %[3]s mtu %[2]d, or more", nic.MTU, hoststate.LeastMTU, nic.Name)
	}
	r.judgeAddresses(nic, f)
	r.judgeManager(f)
	r.refuseOVS(nic, f)
	for _, o := range slices.Concat(nic.Addresses, nic.Routes, nic.Rules, nic.Neighbours) {
		r.Moves = append(r.Moves, o.Text)
	}
	return r
}

// judgeSteer reports what prevents mode steer. tunnels: of the userspace datapath. kernelErr is why the kernel rejects
// the programs.
func judgeSteer(nic hoststate.Link, f nicFacts, tunnels bool, kernelErr error) Report {
	r := NewReport(nic.Name, api.UplinkSteer)
	if tunnels {
		r.refuse("on the userspace datapath a tunnel endpoint must be on a bridge of Open vSwitch (trafficEncapMode: noEncap has no tunnel)")
	}
	if kernelErr != nil {
		r.refuse("%v", kernelErr)
	}
	r.refuseKind(nic, f)
	r.refuseMaster(nic, f)
	r.refuseOVS(nic, f)
	for _, c := range f.uppers {
		switch c.kind {
		case "macvlan", "macvtap", "ipvlan", "ipvtap":
			r.addNote("the %s interface %s is on top of it: if it is moved to another network namespace, this node's bridged pods cannot reach it", c.kind, c.name)
		}
	}
	if f.xdp {
		r.addNote("an XDP program on the NIC processes its frames first, and may drop or redirect some")
	}
	return r
}

func (r *Report) refuse(format string, args ...any) {
	r.Refused = append(r.Refused, fmt.Sprintf(format, args...))
}
func (r *Report) addNote(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *Report) refuseKind(nic hoststate.Link, f nicFacts) {
	switch {
	case nic.Flags&unix.IFF_LOOPBACK != 0:
		r.refuse("it is the loopback interface: name the one that leads to the underlay (transportInterface)")
	case !f.ether:
		r.refuse("it does not carry Ethernet frames (a tunnel, for example): name the interface below it (transportInterface)")
	case f.wireless:
		r.refuse("it is wireless: an access point accepts no frames from other MAC addresses. Use a wired interface")
	}
	switch f.kind {
	case "tun", "tap", "vxlan", "geneve", "gretap", "ip6gretap", "bareudp":
		r.refuse("it is a %s interface, not a NIC: name the NIC below it (transportInterface)", f.kind)
	case "macvlan", "macvtap", "ipvlan", "ipvtap":
		r.refuse("it is a %s: it accepts no frames for other MAC addresses. Use the NIC below it (transportInterface)", f.kind)
	case "bridge", "openvswitch", "vrf", "team":
		r.refuse("it is a %s, not a NIC: use a NIC, a bond or a VLAN interface (transportInterface)", f.kind)
	case "bond":
		r.refuseBond(f.bond)
	}
	if nic.Flags&unix.IFF_UP == 0 {
		r.refuse("it is down: configure it and set it up, then try again")
	}
	if strings.ContainsFunc(nic.Name, func(c rune) bool { return c == '"' || c == '\\' || c < ' ' || c > '~' }) {
		r.refuse("its name has characters that nft and Open vSwitch do not accept: rename it")
	}
}

func (r *Report) refuseBond(b *netlink.Bond) {
	if b == nil {
		return
	}
	if b.Mode == netlink.BOND_MODE_BALANCE_ALB || b.Mode == netlink.BOND_MODE_BALANCE_TLB {
		r.refuse("it is a bond of mode %s, which changes the frames' MAC addresses: use active-backup or 802.3ad", b.Mode)
	}
	if b.FailOverMac > 0 { // 0 is "none", -1 unknown
		r.refuse("it is a bond with fail_over_mac=%s: its MAC address changes with the active slave. Set it to none",
			b.FailOverMac)
	}
}

func (r *Report) refuseMaster(nic hoststate.Link, f nicFacts) {
	switch f.mKind {
	case "":
	case "bond", "team":
		r.refuse("it is a member of %s %s: name that instead (transportInterface)", f.mKind, f.master)
	case "bridge":
		r.refuse("it is a port of the Linux bridge %s: remove it (ip link set %s nomaster) and move the addresses of the bridge to it", f.master, nic.Name)
	case "vrf":
		r.refuse("it belongs to VRF %s: routes of a VRF cannot be moved", f.master)
	case "openvswitch":
		if f.bridge == "" && f.ovsErr == nil {
			r.refuse("it is a port of the kernel's Open vSwitch datapath but of no bridge: remove it (ovs-dpctl del-if ovs-system %s)",
				nic.Name)
		}
	default:
		r.refuse("it belongs to %s %s: remove it (ip link set %s nomaster)", f.mKind, f.master, nic.Name)
	}
}

func (r *Report) judgeUppers(f nicFacts) {
	for _, c := range f.uppers {
		switch c.kind {
		case "vlan":
			r.VLANs = append(r.VLANs, c.vlan)
			r.addNote("VLAN %d has the interface %s. It stays on the NIC and receives that VLAN's frames, so pools of this VLAN cannot be used on this node", c.vlan, c.name)
		case "macvlan", "macvtap", "ipvlan", "ipvtap":
			r.refuse("the %s interface %s is on top of it, and only one can receive the NIC's frames: remove it", c.kind, c.name)
		}
	}
	if f.xdp {
		r.addNote("an XDP program on the NIC processes its frames before Open vSwitch, and may drop or redirect some")
	}
}

func (r *Report) judgeManager(f nicFacts) {
	if f.unseen != "" && !f.allowManaged {
		r.Unknown = append(r.Unknown, "whether NetworkManager or systemd-networkd manages it: "+f.unseen)
	}
	if f.manager.name == "" {
		return
	}
	text := fmt.Sprintf("%s manages it, and may restore addresses on it, or remove those of %s, at any time: %s",
		f.manager.name, rows.BridgeName, f.manager.remedy)
	if f.allowManaged {
		r.addNote("%s (accepted by uplink.allowManaged)", text)
		return
	}
	r.refuse("%s. If you know that it does not change the interface once it is configured, set uplink.allowManaged: true", text)
}

func (r *Report) refuseOVS(nic hoststate.Link, f nicFacts) {
	switch {
	case f.ovsErr != nil:
		r.refuse("Open vSwitch does not answer: %v", f.ovsErr)
	case f.noVswitchd:
		r.refuse("ovs-vswitchd is not running: start it")
	case f.hungVswitchd:
		r.refuse("ovs-vswitchd runs, but does not answer: see its log, and restart it")
	case f.bridge != "" && f.bridge != rows.BridgeName:
		r.refuse("it is already a port of Open vSwitch's bridge %s: remove it (ovs-vsctl del-port %s %s) and move the addresses of the bridge to it", f.bridge, f.bridge, nic.Name)
	case f.foreignBridge:
		r.refuse("there is already a bridge %s that Fairlead did not create: rename or delete it", rows.BridgeName)
	}
	if f.hasOther {
		r.refuse("there is already an interface %s that Fairlead did not create: rename it", rows.BridgeName)
	}
	if f.noNFT {
		r.refuse("the program nft is missing, and the userspace datapath needs it: install the package nftables")
	}
}
