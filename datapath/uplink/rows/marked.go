package rows

import (
	"context"
	"fmt"
	"slices"
)

const (
	markBridge = "bridge"
	// Keys of the Open_vSwitch row: see package ovsdb.
	waitKey, waitOurs, restoredKey = "flow-restore-wait", "True", "fairlead-restored"
)

// Marked is all that the database has of Fairlead, by name.
type Marked struct {
	// Bridges are those that bear its mark, with all their ports. Ports are its ports on other bridges, or on one that
	// somebody else has ports on, which stays.
	Bridges, Ports []string
	// Devices are the interfaces of the node that ovs-vswitchd has made for them.
	Devices []string
	// Others: there are other bridges.
	Others bool
	// Keys: something of it is in the Open_vSwitch row.
	Keys bool

	bridges, ports map[string][]string // UUIDs of bridges to go, and of ports to go by that of their bridge
	unmark         []string            // UUIDs of bridges that stay and bear the mark
	root           string
}

// Empty: there is nothing.
func (m Marked) Empty() bool {
	return len(m.Bridges)+len(m.Ports) == 0 && !m.Keys && len(m.unmark) == 0
}

// FindMarked reads it.
func (db DB) FindMarked(ctx context.Context) (Marked, error) {
	results, err := db.transact(ctx,
		op{"op": "select", "table": "Bridge", "where": []any{}, "columns": []string{"_uuid", "name", "ports", "external_ids"}},
		op{"op": "select", "table": "Port", "where": []any{}, "columns": []string{"_uuid", "name", "external_ids"}},
		op{"op": "select", "table": "Interface", "where": []any{}, "columns": []string{"name", "type"}},
		op{"op": "select", "table": database, "where": []any{}, "columns": []string{"_uuid", "other_config", "external_ids"}})
	if err != nil {
		return Marked{}, fmt.Errorf("listing Fairlead's rows in Open vSwitch's database: %w", err)
	}
	m := Marked{bridges: map[string][]string{}, ports: map[string][]string{}}
	if len(results[3].Rows) == 0 {
		return m, nil // never initialised
	}
	root := results[3].Rows[0]
	m.root = uuid(root)
	_, restored := mapOf(root["external_ids"])[restoredKey]
	m.Keys = restored || mapOf(root["other_config"])[waitKey] == waitOurs
	ports := map[string]map[string]any{}
	for _, row := range results[1].Rows {
		ports[uuid(row)] = row
	}
	internal := map[string]bool{}
	for _, row := range results[2].Rows {
		internal[text(row["name"])] = text(row["type"]) == "internal"
	}
	for _, row := range results[0].Rows {
		m.sort(row, ports, internal)
	}
	slices.Sort(m.Bridges)
	slices.Sort(m.Ports)
	return m, nil
}

// sort says what of a bridge goes, and what stays.
func (m *Marked) sort(bridge map[string]any, ports map[string]map[string]any, internal map[string]bool) {
	name, id, mark := text(bridge["name"]), uuid(bridge), mapOf(bridge["external_ids"])[markKey]
	var ours []string // names
	var ids []string
	foreign := false
	for _, port := range uuids(bridge["ports"]) {
		n := text(ports[port]["name"])
		switch {
		case mapOf(ports[port]["external_ids"])[markKey] != "":
			ours, ids = append(ours, n), append(ids, port)
		case n != name:
			foreign = true
		}
	}
	switch {
	case mark == markUplink, mark == markBridge && !foreign:
		m.Bridges, m.bridges[id] = append(m.Bridges, name), nil
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

// RemoveMarked takes out of the database what FindMarked has found.
func (db DB) RemoveMarked(ctx context.Context, m Marked) error {
	if m.Empty() {
		return nil
	}
	var ops []op
	var gone []any
	for id := range m.bridges {
		gone = append(gone, []any{"uuid", id})
	}
	for id, ports := range m.ports {
		var refs []any
		for _, p := range ports {
			refs = append(refs, []any{"uuid", p})
		}
		ops = append(ops, op{"op": "mutate", "table": "Bridge", "where": is("_uuid", []any{"uuid", id}),
			"mutations": []any{[]any{"ports", "delete", set(refs...)}}})
	}
	for _, id := range m.unmark {
		ops = append(ops, op{"op": "mutate", "table": "Bridge", "where": is("_uuid", []any{"uuid", id}),
			"mutations": []any{[]any{"external_ids", "delete", set(markKey)}}})
	}
	// Another's flow-restore-wait stays: to delete by key and value leaves other values alone.
	ops = append(ops, db.onRoot(State{root: m.root}, []any{"bridges", "delete", set(gone...)},
		[]any{"external_ids", "delete", set(restoredKey)},
		[]any{"other_config", "delete", omap(map[string]string{waitKey: waitOurs})}))
	if _, err := db.transact(ctx, ops...); err != nil {
		return fmt.Errorf("removing Fairlead's rows from Open vSwitch's database: %w", err)
	}
	return nil
}
