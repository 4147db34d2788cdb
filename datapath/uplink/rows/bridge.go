package rows

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

const (
	markKey, markUplink = "fairlead", "uplink"
	bootKey             = "fairlead-boot-id"
)

// BridgeName is the bridge's name, and that of the interface that has the node's addresses while attached.
const BridgeName = "br-uplink"

// PatchPort is br-uplink's port towards the pods' bridge; PeerPort is its other end, there.
const (
	PatchPort = "fairlead-up1"
	PeerPort  = "fairlead-up0"
)

// Bridge is br-uplink as wanted.
type Bridge struct {
	// Name is the name of the bridge and its own port. Patch is the patch port; its other end, Peer, is on the pods'
	// bridge.
	Name, Patch, Peer string
	// Datapath is "system" or "netdev", as for the pods' bridge.
	Datapath string
	// MAC and MTU are the NIC's.
	MAC string
	MTU int
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
}

// State is what the database says about the bridge and a NIC.
type State struct {
	// Present: the bridge exists. Ours: with Fairlead's mark. BootID is the boot in which it was created.
	Present, Ours bool
	BootID        string
	// Complete: it matches Bridge in every column, and so do its ports, the NIC's included if that is one. Wrong lists
	// what does not, if the bridge exists.
	Complete bool
	Wrong    []string
	// NIC: the NIC is a port of it. Elsewhere is another bridge that has it.
	NIC       bool
	Elsewhere string
	// OFPort is the NIC's OpenFlow port number, 0 while it has none; Error says why.
	OFPort int
	Error  string

	bridge, patch, nicPort, root string // UUIDs
	ports                        []string
	patchRight                   bool // the patch port is the bridge's, and as wanted
}

// Read reads the state.
func (db DB) Read(ctx context.Context, b Bridge, nic string) (State, error) {
	results, err := db.transact(ctx,
		ovsop.Select("Bridge", nil, "_uuid", "name", "ports", "external_ids", "datapath_type", "fail_mode", "other_config",
			"controller", "mirrors", "flood_vlans", "stp_enable", "rstp_enable"),
		ovsop.Select("Port", ovsop.Is("name", nic), "_uuid", "tag", "trunks", "vlan_mode", "protected"),
		ovsop.Select("Port", ovsop.Is("name", b.Patch), "_uuid", "tag", "trunks", "vlan_mode", "protected"),
		ovsop.Select("Interface", ovsop.Is("name", nic), "ofport", "error", "type"),
		ovsop.Select("Interface", ovsop.Is("name", b.Patch), "type", "options"),
		ovsop.Select("Interface", ovsop.Is("name", b.Name), "mtu_request", "type"),
		ovsop.Select(database, nil, "_uuid"),
		ovsop.Select("Port", ovsop.Is("name", b.Name), "tag", "trunks", "vlan_mode", "protected"))
	if err != nil {
		return State{}, fmt.Errorf("reading the rows of %s: %w", b.Name, err)
	}
	s := State{nicPort: uuid(first(results[1])), patch: uuid(first(results[2])), root: uuid(first(results[6]))}
	for _, row := range results[0].Rows {
		ports := refs(row, "ports")
		has := s.nicPort != "" && slices.Contains(ports, s.nicPort)
		if name := text(row, "name"); name == b.Name {
			ids := textMap(row, "external_ids")
			s.Present, s.bridge, s.ports, s.NIC = true, uuid(row), ports, has
			s.Ours, s.BootID = ids[markKey] == markUplink, ids[bootKey]
			wrongPatch := b.wrongPatch(results)
			s.Wrong = slices.Concat(b.wrongColumns(row), b.wrongPorts(results, nic), wrongPatch)
			s.patchRight = len(wrongPatch) == 0 && slices.Contains(ports, s.patch)
			if s.BootID != b.BootID || !slices.Contains(ports, s.patch) {
				s.Wrong = append(s.Wrong, "mark or patch port")
			}
			s.Complete = s.Ours && len(s.Wrong) == 0
		} else if has {
			s.Elsewhere = name
		}
	}
	if s.NIC {
		s.OFPort, s.Error = max(number(first(results[3]), "ofport"), 0), text(first(results[3]), "error")
	}
	return s, nil
}

// wrongPorts returns the columns of the bridge's own port and the NIC's, if there is one, that are not as wanted, given
// what Read has read.
func (b Bridge) wrongPorts(results []ovsdb.OperationResult, nic string) (wrong []string) {
	wrong = slices.Concat(notPlain(nic, first(results[1])), notPlain(b.Name, first(results[7])))
	own := first(results[5])
	for _, x := range []struct {
		column string
		right  bool
	}{{"interface " + nic + ": type", isSystem(first(results[3]))},
		{"interface " + b.Name + ": type", text(own, "type") == "internal"},
		{"interface " + b.Name + ": mtu_request", number(own, "mtu_request") == b.MTU}} {
		if !x.right {
			wrong = append(wrong, x.column)
		}
	}
	return wrong
}

// wrongPatch does the same for the patch port.
func (b Bridge) wrongPatch(results []ovsdb.OperationResult) []string {
	wrong := notPlain(b.Patch, first(results[2]))
	if !b.hasPatch(first(results[4])) {
		wrong = append(wrong, "interface "+b.Patch+": type or peer")
	}
	return wrong
}

// wrongColumns returns the columns of the bridge's own row that are not as wanted, except the mark.
func (b Bridge) wrongColumns(row ovsdb.Row) (wrong []string) {
	other := textMap(row, "other_config")
	for k, v := range b.otherConfig() {
		if other[k] != v {
			wrong = append(wrong, "bridge: other_config:"+k)
		}
	}
	for _, x := range []struct {
		column string
		right  bool
	}{{"datapath_type", datapath(text(row, "datapath_type")) == datapath(b.Datapath)},
		{"fail_mode", text(row, "fail_mode") == "standalone"}, {"controller", empty(row, "controller")},
		{"mirrors", empty(row, "mirrors")}, {"flood_vlans", empty(row, "flood_vlans")},
		{"stp_enable", row["stp_enable"] != true}, {"rstp_enable", row["rstp_enable"] != true}} {
		if !x.right {
			wrong = append(wrong, "bridge: "+x.column)
		}
	}
	return wrong
}

// notPlain returns the columns that keep a Port from passing all VLANs, to and from all others.
func notPlain(port string, row ovsdb.Row) (wrong []string) {
	for _, column := range []string{"tag", "trunks", "vlan_mode"} {
		if !empty(row, column) {
			wrong = append(wrong, "port "+port+": "+column)
		}
	}
	if row["protected"] == true {
		wrong = append(wrong, "port "+port+": protected")
	}
	return wrong
}

// plainColumns make a Port pass all VLANs, to and from all others.
func plainColumns() ovsdb.Row {
	return ovsdb.Row{"tag": ovsop.Set(), "trunks": ovsop.Set(), "vlan_mode": ovsop.Set(), "protected": false}
}

// isSystem reports whether an Interface is one of the kernel's: the NIC.
func isSystem(row ovsdb.Row) bool { return cmp.Or(text(row, "type"), "system") == "system" }

func (b Bridge) hasPatch(row ovsdb.Row) bool {
	return text(row, "type") == "patch" && textMap(row, "options")["peer"] == b.Peer
}

func datapath(column string) string { return cmp.Or(column, "system") }

// otherConfig: without forward-bpdu NORMAL drops LLDP, LACP and 802.1X.
func (b Bridge) otherConfig() map[string]string {
	return map[string]string{"forward-bpdu": "true", "hwaddr": b.MAC}
}

// Ensure creates the bridge with its own port and the patch port, or corrects what differs, including the NIC's port if
// that is one of the bridge's.
func (db DB) Ensure(ctx context.Context, b Bridge, nic string) error {
	s, err := db.Read(ctx, b, nic)
	if err != nil {
		return err
	}
	if s.Present && !s.Ours {
		return fmt.Errorf("there is already a bridge %s that Fairlead did not create: rename or delete it", b.Name)
	}
	if s.Complete {
		return nil
	}
	// Every column is written again. The patch port is replaced only if it is wrong: that costs packets.
	var ops []ovsdb.Operation
	if !s.patchRight {
		ops = addPort(b.Patch, ovsdb.Row{"type": "patch", "options": ovsop.Map(map[string]string{"peer": b.Peer})})
	}
	row := ovsdb.Row{"datapath_type": b.Datapath, "fail_mode": "standalone", "controller": ovsop.Set(),
		"other_config": ovsop.Map(b.otherConfig()), "mirrors": ovsop.Set(), "flood_vlans": ovsop.Set(),
		"stp_enable": false, "rstp_enable": false,
		"external_ids": ovsop.Map(map[string]string{markKey: markUplink, bootKey: b.BootID})}
	if s.Present {
		if !s.patchRight {
			others := slices.DeleteFunc(s.ports, func(id string) bool { return id == s.patch })
			row["ports"] = ovsop.Refs(append(others, portRef(b.Patch))...)
		}
		ops = append(ops, ovsop.Update("Bridge", ovsop.ByUUID(s.bridge), row),
			ovsop.Update("Interface", ovsop.Is("name", b.Name), ovsdb.Row{"mtu_request": b.MTU, "type": "internal"}),
			ovsop.Update("Port", ovsop.Is("name", b.Name), plainColumns()), onRoot(s))
		if s.NIC {
			ops = append(ops, ovsop.Update("Port", ovsop.ByUUID(s.nicPort), plainColumns()),
				ovsop.Update("Interface", ovsop.Is("name", nic), ovsdb.Row{"type": ""}))
		}
	} else {
		row["name"], row["ports"] = b.Name, ovsop.Refs(portRef(b.Name), portRef(b.Patch))
		ops = append(ops, addPort(b.Name, ovsdb.Row{"type": "internal", "mtu_request": b.MTU})...)
		ops = append(ops, ovsop.Insert("Bridge", "bridge", row), onRoot(s, ovsop.Add("bridges", ovsop.Refs("bridge"))))
	}
	if _, err := db.transact(ctx, ops...); err != nil {
		return fmt.Errorf("creating bridge %s: %w", b.Name, err)
	}
	return nil
}

// addPort inserts a port with its interface, which the transaction refers to as portRef.
func addPort(name string, iface ovsdb.Row) []ovsdb.Operation {
	iface["name"] = name
	ref := "i" + portRef(name)
	return []ovsdb.Operation{ovsop.Insert("Interface", ref, iface),
		ovsop.Insert("Port", portRef(name), ovsdb.Row{"name": name, "interfaces": ovsop.Refs(ref)})}
}

// portRef is a name that RFC 7047 accepts as an <id>: interface names may have other characters.
func portRef(name string) string { return "p" + hex.EncodeToString([]byte(name)) }

// onRoot changes the Open_vSwitch row, and has ovs-vswitchd confirm what it has applied.
func onRoot(s State, mutations ...ovsdb.Mutation) ovsdb.Operation {
	return ovsop.Mutate(database, s.root, append(mutations, ovsop.RaiseNextCfg())...)
}

// AddNIC makes the NIC a port of the bridge, and Retranslate follows.
func (db DB) AddNIC(ctx context.Context, b Bridge, nic string) error {
	s, err := db.Read(ctx, b, nic)
	if err != nil || s.NIC {
		return err
	}
	if s.Elsewhere != "" {
		return fmt.Errorf("%s is already a port of bridge %s", nic, s.Elsewhere)
	}
	if !s.Present {
		return fmt.Errorf("there is no bridge %s", b.Name)
	}
	port := addPort(nic, ovsdb.Row{})
	port[1].Row["protected"] = true // until Retranslate; a bridge's only protected port is like any other
	ops := append(port, ovsop.Mutate("Bridge", s.bridge, ovsop.Add("ports", ovsop.Refs(portRef(nic)))), onRoot(s))
	if _, err := db.transact(ctx, ops...); err != nil {
		return fmt.Errorf("adding %s to bridge %s: %w", nic, b.Name, err)
	}
	return nil
}

// Retranslate has ovs-vswitchd revalidate all megaflows once it has the NIC's port. Between the kernel's attach and
// that point it drops each flow that arrives ("received packet on unassociated datapath port" in its log), and a
// megaflow for that may survive the revalidation that the new port causes, until the next one, half a second later.
// Clearing protected on a Port causes a revalidation, and changes nothing else.
func (db DB) Retranslate(ctx context.Context, b Bridge, nic string) error {
	if err := db.WaitApplied(ctx); err != nil {
		return err
	}
	s, err := db.Read(ctx, b, nic)
	if err != nil || !s.NIC || !s.Ours {
		return err
	}
	if _, err := db.transact(ctx, ovsop.Update("Port", ovsop.ByUUID(s.nicPort), plainColumns()), onRoot(s)); err != nil {
		return fmt.Errorf("changing port %s: %w", nic, err)
	}
	return nil
}

// RemoveNIC removes the NIC's port from the bridge. A missing one is not an error.
func (db DB) RemoveNIC(ctx context.Context, b Bridge, nic string) error {
	s, err := db.Read(ctx, b, nic)
	if err != nil || !s.NIC || !s.Ours {
		return err
	}
	_, err = db.transact(ctx, ovsop.Mutate("Bridge", s.bridge, ovsop.Delete("ports", ovsop.Refs(s.nicPort))), onRoot(s))
	if err != nil {
		return fmt.Errorf("removing %s from bridge %s: %w", nic, b.Name, err)
	}
	return nil
}

// Remove removes the whole bridge, if it is Fairlead's.
func (db DB) Remove(ctx context.Context, b Bridge) error {
	s, err := db.Read(ctx, b, "")
	if err != nil || !s.Ours {
		return err
	}
	if _, err := db.transact(ctx, onRoot(s, ovsop.Delete("bridges", ovsop.Refs(s.bridge)))); err != nil {
		return fmt.Errorf("removing bridge %s: %w", b.Name, err)
	}
	return nil
}

// WaitApplied waits until ovs-vswitchd has applied what was written so far.
func (db DB) WaitApplied(ctx context.Context) error {
	goal := -1
	for {
		// callLimit bounds it, not ctx: most of the wait is here, and the error would blame ovsdb-server.
		results, err := db.transact(context.WithoutCancel(ctx), ovsop.Select(database, nil, "next_cfg", "cur_cfg"))
		if err != nil {
			return err
		}
		if row := first(results[0]); row != nil {
			if goal < 0 {
				goal = number(row, "next_cfg")
			}
			if number(row, "cur_cfg") >= goal {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("ovs-vswitchd does not answer: it has not applied the change. Is it running?")
		case <-time.After(time.Millisecond):
		}
	}
}
