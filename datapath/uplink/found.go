package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
)

// traces are what an uplink leaves on a node, as far as it can be observed without its journal.
type traces struct {
	device netlink.Link // br-uplink; nil: there is none
	mute   string       // the text of the nft table; empty: there is none
	pinned bool         // programs of mode steer
	rows   rows.Found
	dbErr  error
}

// rebuildJournal derives the journal from what can be read of it, and from the kernel and OVSDB. The journal that it
// returns leads back to detached, and is nil if there are no traces of an uplink on the node.
func (u *Uplink) rebuildJournal(ctx context.Context, r journal.Record) (*Journal, error) {
	j, why := Journal{}, r.Err
	if r.Parts != nil {
		j = *r.Parts
	} else if why == nil {
		why = fmt.Errorf("the uplink's journal %s is missing", u.path)
	}
	t, err := u.readTraces(ctx, &j, r.Parts == nil)
	if err != nil || !t.ofUplink(r.Parts) {
		return nil, err
	}
	nic, err := t.nic(j.NIC.Name)
	if err != nil {
		return nil, fmt.Errorf("%w; %w", why, err)
	}
	if j.Phase != Detached || j.BootID != u.bootID || t.inKernel() || t.rows.Ours {
		j.Phase = Restoring
	}
	phase := j.Phase
	journal.StartRestore(&j, why.Error())
	j.Version, j.Phase, j.Mode = journal.Version, phase, t.mode(j)
	if j.BootID, err = u.bootOf(j, t); err != nil {
		return nil, err
	}
	if err := findNIC(&j, nic, t.device); err != nil {
		return nil, err
	}
	j.Bridge = rows.Bridge{Name: BridgeName, Patch: PatchPort, Peer: PeerPort, MAC: j.NIC.MAC, MTU: j.NIC.MTU,
		BootID: j.BootID, Datapath: cmp.Or(t.rows.Datapath, j.Bridge.Datapath, t.datapath())}
	if j.Mode == api.UplinkSteer {
		j.Pins = cmp.Or(j.Pins, u.pins)
		journal.LeaveWithHost(&j)
	} else {
		j.Pins, j.Hooks = "", ""
	}
	return &j, j.Check()
}

func (t traces) inKernel() bool { return t.device != nil || t.mute != "" || t.pinned }

// ofUplink reports whether they are an uplink's. A bridge of that name may be another program's; without the database
// that is unknown, and an attach will detect it.
func (t traces) ofUplink(parts *Journal) bool {
	if t.dbErr != nil {
		return parts != nil || t.mute != "" || t.pinned
	}
	return !t.rows.Foreign && (t.rows.Ours || t.inKernel() || parts != nil && parts.NIC.Name != "")
}

// datapath returns the type of datapath that created br-uplink.
func (t traces) datapath() string {
	if t.device != nil && t.device.Type() == "openvswitch" {
		return api.DatapathSystem
	}
	return api.DatapathNetdev
}

// readTraces reads the traces from kernel and database, and completes the database's location in j.
func (u *Uplink) readTraces(ctx context.Context, j *Journal, missing bool) (t traces, err error) {
	if t.device, err = findLink(BridgeName); err != nil {
		return t, err
	}
	if t.device != nil && t.device.Type() != "openvswitch" && t.device.Type() != "tuntap" {
		t.device = nil // another program's
	}
	_, t.mute = muted()
	if t.pinned = pinned(cmp.Or(j.Pins, u.pins)); missing && !t.inKernel() {
		return t, nil // detached, or never attached
	}
	if _, err := os.Stat(j.DB.RunDir); err != nil { // damaged, or Open vSwitch was removed
		j.DB = rows.Find(u.runDir)
	}
	t.rows, t.dbErr = j.DB.FindBridge(ctx, BridgeName, PatchPort)
	return t, nil
}

// pinned reports whether programs are pinned in dir, or were: no pin outlives a boot.
func pinned(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// mutedNIC is the device in the text of the nft table.
var mutedNIC = regexp.MustCompile(`device "([^"]+)"`)

// nic returns the name of the NIC: from the database, or from the journal if that interface exists, or the one whose
// frames the kernel drops, or the only interface with br-uplink's MAC.
func (t traces) nic(journals string) (string, error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return "", fmt.Errorf("listing interfaces: %w", err)
	}
	there := func(name string) bool {
		return slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
	}
	if len(t.rows.NICs) == 1 {
		return t.rows.NICs[0], nil
	}
	if there(journals) {
		return journals, nil
	}
	if m := mutedNIC.FindStringSubmatch(t.mute); m != nil && there(m[1]) {
		return m[1], nil
	}
	mac := t.rows.MAC
	if t.device != nil {
		mac = cmp.Or(mac, t.device.Attrs().HardwareAddr.String())
	}
	same := slices.DeleteFunc(links, func(l netlink.Link) bool {
		a := l.Attrs()
		return a.HardwareAddr.String() != mac || a.Name == BridgeName || a.ParentIndex != 0 && l.Type() == "vlan"
	})
	if mac != "" && len(same) == 1 {
		return same[0].Attrs().Name, nil
	}
	if journals != "" {
		return journals, nil // it is gone
	}
	return "", errors.New("and it is unknown which NIC is attached. See docs/uplink.md, Restoring the NIC manually")
}

func (t traces) mode(j Journal) string {
	switch {
	case j.Mode == api.UplinkSteer, j.Mode == api.UplinkBridge:
		return j.Mode
	case t.pinned && len(t.rows.NICs) == 0 && t.mute == "":
		return api.UplinkSteer
	}
	return api.UplinkBridge
}

// bootOf returns the boot of an uplink: this one, if journal or database say so, programs are pinned, or br-uplink has
// addresses.
func (u *Uplink) bootOf(j Journal, t traces) (string, error) {
	if j.BootID == u.bootID || t.rows.BootID == u.bootID || t.pinned {
		return u.bootID, nil
	}
	if t.device != nil {
		addresses, err := hoststate.AddressesOf(iface(t.device))
		if err != nil || len(addresses) > 0 {
			return u.bootID, err
		}
	}
	return cmp.Or(j.BootID, t.rows.BootID, "unknown"), nil
}

// findNIC completes what the host had on the NIC with what is there and on br-uplink.
func findNIC(j *Journal, name string, device netlink.Link) error {
	had := j.NIC
	link, err := findLink(name)
	if err != nil {
		return err
	}
	j.NIC = hoststate.Link{Iface: hoststate.Iface{Name: name, Index: math.MaxInt32}, MTU: 1500, Sysctls: had.Sysctls,
		ReadAt: hoststate.SinceBoot()}
	if link == nil { // it is gone, and nothing can be restored to it
		return nil
	}
	now, err := hoststate.Read(name)
	if err != nil {
		return err
	}
	j.NIC.Iface, j.NIC.MAC, j.NIC.MTU, j.NIC.Flags = now.Iface, now.MAC, now.MTU, had.Flags
	if j.NIC.Flags&unix.IFF_UP == 0 {
		j.NIC.Flags = now.Flags&^unix.IFF_PROMISC | unix.IFF_UP
	}
	if had.Index == now.Index {
		j.NIC.Add(had)
	}
	j.NIC.Add(now.On(now.Iface))
	there := hoststate.Link{Iface: hoststate.Iface{Name: BridgeName}, ReadAt: now.ReadAt}
	if device != nil {
		if there, err = hoststate.Read(BridgeName); err != nil {
			return err
		}
	} else if there.Rules, err = hoststate.RulesOf(there.Iface); err != nil {
		return err // rules outlive the interface
	}
	j.NIC.Add(there.On(now.Iface))
	j.NIC.Sysctls = ipv6Before(had.Sysctls, now.Sysctls, there.Sysctls)
	return nil
}

// ipv6Before returns whether the NIC had IPv6, and how its link-local address was generated. An attached NIC has no
// IPv6, and br-uplink has what the NIC had.
func ipv6Before(journal, nic, device map[string]string) map[string]string {
	out := map[string]string{}
	for _, parameter := range []string{hoststate.DisableIPv6, hoststate.AddrGenMode} {
		value, known := journal[parameter]
		switch {
		case known:
		case nic[hoststate.DisableIPv6] != "1":
			value, known = nic[parameter]
		default:
			if value, known = device[parameter]; !known {
				value, known = "0", len(nic) > 0
			}
		}
		if known {
			out[parameter] = value
		}
	}
	return out
}
