package rows

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

const (
	markBridge = "bridge"
	// Keys of the Open_vSwitch row: see package ovsdb.
	waitKey, waitOurs, restoredKey = "flow-restore-wait", "True", "fairlead-restored"
)

// Marked is all that Fairlead has in the database, by name.
type Marked struct {
	// Bridges are those with its mark, with all their ports. Ports are its ports on other bridges, or on a bridge that
	// also has other ports, which stays.
	Bridges, Ports []string
	// Devices are the node's interfaces that ovs-vswitchd has created for them.
	Devices []string
	// Others: other bridges exist.
	Others bool
	// Keys: the Open_vSwitch row has keys of Fairlead's.
	Keys bool
	// Zones are conntrack zones with its timeouts.
	Zones int

	// UUIDs of bridges to remove, of ports to remove by their bridge's, and of marked bridges that stay.
	bridges []string
	ports   map[string][]string
	unmark  []string
	root    string
	// The keys of those zones by UUID of their datapath, and datapaths to remove, by type.
	zones     map[string]ovsdb.OvsSet
	datapaths map[string]string
}

// Empty reports whether there is nothing of Fairlead's.
func (m Marked) Empty() bool {
	return len(m.Bridges)+len(m.Ports)+len(m.unmark)+len(m.zones)+len(m.datapaths) == 0 && !m.Keys
}

// FindMarked reads all that Fairlead has in the database.
func (db DB) FindMarked(ctx context.Context) (Marked, error) {
	results, err := db.transact(ctx,
		ovsop.Select("Bridge", nil, "_uuid", "name", "ports", "external_ids"),
		ovsop.Select("Port", nil, "_uuid", "name", "external_ids"),
		ovsop.Select("Interface", nil, "name", "type"),
		ovsop.Select(database, nil, "_uuid", "other_config", "external_ids", "datapaths"),
		ovsop.Select("Datapath", nil, "_uuid", "ct_zones", "external_ids"),
		ovsop.Select("CT_Zone", nil, "_uuid", "external_ids"))
	if err != nil {
		return Marked{}, fmt.Errorf("listing Fairlead's rows in Open vSwitch's database: %w", err)
	}
	root := first(results[3]) // none: never initialised, and empty
	m := Marked{ports: map[string][]string{}, root: uuid(root)}
	_, restored := textMap(root, "external_ids")[restoredKey]
	m.Keys = restored || textMap(root, "other_config")[waitKey] == waitOurs
	ports := map[string]ovsdb.Row{}
	for _, row := range results[1].Rows {
		ports[uuid(row)] = row
	}
	internal := map[string]bool{}
	for _, row := range results[2].Rows {
		internal[text(row, "name")] = text(row, "type") == "internal"
	}
	for _, row := range results[0].Rows {
		m.sort(row, ports, internal)
	}
	m.sortZones(root, results[4].Rows, results[5].Rows)
	slices.Sort(m.Bridges)
	slices.Sort(m.Ports)
	return m, nil
}

// sort decides what of a bridge is removed, and what stays.
func (m *Marked) sort(bridge ovsdb.Row, ports map[string]ovsdb.Row, internal map[string]bool) {
	name, id, mark := text(bridge, "name"), uuid(bridge), textMap(bridge, "external_ids")[markKey]
	var ours []string // names
	var ids []string
	foreign := false
	for _, port := range refs(bridge, "ports") {
		n := text(ports[port], "name")
		switch {
		case textMap(ports[port], "external_ids")[markKey] != "":
			ours, ids = append(ours, n), append(ids, port)
		case n != name:
			foreign = true
		}
	}
	switch {
	case mark == markUplink, mark == markBridge && !foreign:
		m.Bridges, m.bridges = append(m.Bridges, name), append(m.bridges, id)
		ours = append(ours, name)
	case mark == markBridge:
		m.unmark = append(m.unmark, id)
		fallthrough
	default:
		m.Others = true
		m.Ports = append(m.Ports, ours...)
		if len(ids) > 0 {
			m.ports[id] = ids
		}
	}
	for _, n := range ours {
		if internal[n] {
			m.Devices = append(m.Devices, n)
		}
	}
}

// sortZones decides which zones of which datapaths are removed, and which datapaths: those added for them.
func (m *Marked) sortZones(root ovsdb.Row, datapaths, zones []ovsdb.Row) {
	marked := map[string]bool{}
	for _, row := range zones {
		marked[uuid(row)] = textMap(row, "external_ids")[markKey] != ""
	}
	m.zones, m.datapaths = map[string]ovsdb.OvsSet{}, map[string]string{}
	for _, row := range datapaths {
		var ours ovsdb.OvsSet
		all, _ := row["ct_zones"].(ovsdb.OvsMap)
		for number, zone := range all.GoMap {
			if id, ok := zone.(ovsdb.UUID); ok && marked[id.GoUUID] {
				ours.GoSet = append(ours.GoSet, number)
			}
		}
		if m.Zones += len(ours.GoSet); len(ours.GoSet) > 0 {
			m.zones[uuid(row)] = ours
		}
		if textMap(row, "external_ids")[markKey] == "" || len(ours.GoSet) < len(all.GoMap) {
			continue
		}
		types, _ := root["datapaths"].(ovsdb.OvsMap)
		for kind, id := range types.GoMap {
			if id == (ovsdb.UUID{GoUUID: uuid(row)}) {
				m.datapaths[fmt.Sprint(kind)] = uuid(row)
			}
		}
	}
}

// RemoveMarked removes from the database what FindMarked has found.
func (db DB) RemoveMarked(ctx context.Context, m Marked) error {
	if m.Empty() {
		return nil
	}
	var ops []ovsdb.Operation
	for id, ports := range m.ports {
		ops = append(ops, ovsop.Mutate("Bridge", id, ovsop.Delete("ports", ovsop.Refs(ports...))))
	}
	for _, id := range m.unmark {
		ops = append(ops, ovsop.Mutate("Bridge", id, ovsop.Delete("external_ids", ovsop.Set(markKey))))
	}
	for id, numbers := range m.zones {
		ops = append(ops, ovsop.Mutate("Datapath", id, ovsop.Delete("ct_zones", numbers)))
	}
	kinds := slices.Collect(maps.Keys(m.datapaths))
	// A flow-restore-wait that is not Fairlead's stays: deleting by key and value leaves other values alone.
	ops = append(ops, onRoot(State{root: m.root}, ovsop.Delete("bridges", ovsop.Refs(m.bridges...)),
		ovsop.Delete("datapaths", ovsop.Set(kinds...)),
		ovsop.Delete("external_ids", ovsop.Set(restoredKey)),
		ovsop.Delete("other_config", ovsop.Map(map[string]string{waitKey: waitOurs}))))
	if _, err := db.transact(ctx, ops...); err != nil {
		return fmt.Errorf("removing Fairlead's rows from Open vSwitch's database: %w", err)
	}
	return nil
}
