package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	markKey, markUplink = "fairlead", "uplink"
	bootKey             = "fairlead-boot-id"
)

// Bridge is br-uplink as it shall be.
type Bridge struct {
	// Name is the bridge's and its own port's. Patch is the port whose other end, Peer, is on the bridge of the pods.
	Name, Patch, Peer string
	// Datapath is "system" or "netdev", as the bridge of the pods has.
	Datapath string
	// MAC and MTU are the NIC's.
	MAC string
	MTU int
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
}

// State is what the database says about the bridge and a NIC.
type State struct {
	// Present: the bridge is there. Ours: with our mark. BootID is the boot in which it was made.
	Present, Ours bool
	BootID        string
	// Complete: it is in every column as Bridge says.
	Complete bool
	// NIC: the NIC is a port of it. Elsewhere is another bridge that has it.
	NIC       bool
	Elsewhere string
	// OFPort is the NIC's OpenFlow port number, 0 while it has none; Error is why.
	OFPort int
	Error  string

	bridge, own, nicPort, root string // UUIDs
	ports                      []string
}

// Read reads the state.
func (db DB) Read(ctx context.Context, b Bridge, nic string) (State, error) {
	results, err := db.transact(ctx,
		op{"op": "select", "table": "Bridge", "where": []any{}, "columns": []string{"_uuid", "name", "ports", "external_ids",
			"datapath_type", "fail_mode", "other_config", "controller"}},
		op{"op": "select", "table": "Port", "where": is("name", nic), "columns": []string{"_uuid"}},
		op{"op": "select", "table": "Port", "where": is("name", b.Patch), "columns": []string{"_uuid"}},
		op{"op": "select", "table": "Interface", "where": is("name", nic), "columns": []string{"ofport", "error"}},
		op{"op": "select", "table": "Interface", "where": is("name", b.Patch), "columns": []string{"type", "options"}},
		op{"op": "select", "table": "Interface", "where": is("name", b.Name), "columns": []string{"_uuid", "mtu_request"}},
		op{"op": "select", "table": database, "where": []any{}, "columns": []string{"_uuid"}})
	if err != nil {
		return State{}, fmt.Errorf("reading the rows of %s: %w", b.Name, err)
	}
	var s State
	first := func(i int) map[string]any {
		if len(results[i].Rows) == 0 {
			return nil
		}
		return results[i].Rows[0]
	}
	s.root = uuid(first(6))
	s.nicPort = uuid(first(1))
	s.own = uuid(first(5))
	patch := uuid(first(2))
	for _, row := range results[0].Rows {
		ports := uuids(row["ports"])
		has := s.nicPort != "" && slices.Contains(ports, s.nicPort)
		if text(row["name"]) != b.Name {
			if has {
				s.Elsewhere = text(row["name"])
			}
			continue
		}
		ids, other := mapOf(row["external_ids"]), mapOf(row["other_config"])
		s.Present, s.bridge, s.ports, s.NIC = true, uuid(row), ports, has
		s.Ours, s.BootID = ids[markKey] == markUplink, ids[bootKey]
		s.Complete = s.Ours && s.BootID == b.BootID && datapath(text(row["datapath_type"])) == datapath(b.Datapath) &&
			text(row["fail_mode"]) == "standalone" && len(uuids(row["controller"])) == 0 &&
			contains(other, b.otherConfig()) && patch != "" && slices.Contains(ports, patch) &&
			text(first(4)["type"]) == "patch" && mapOf(first(4)["options"])["peer"] == b.Peer &&
			whole(first(5)["mtu_request"]) == b.MTU
	}
	if s.NIC {
		s.OFPort, s.Error = max(whole(first(3)["ofport"]), 0), text(first(3)["error"])
	}
	return s, nil
}

// uuid is the row's own, empty for no row.
func uuid(row map[string]any) string {
	if pair, ok := row["_uuid"].([]any); ok && len(pair) == 2 {
		return text(pair[1])
	}
	return ""
}

func datapath(column string) string {
	if column == "" {
		return "system"
	}
	return column
}

func contains(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// otherConfig: without forward-bpdu NORMAL drops LLDP, LACP and 802.1X.
func (b Bridge) otherConfig() map[string]string {
	return map[string]string{"forward-bpdu": "true", "hwaddr": b.MAC}
}

// Ensure makes the bridge with its own port and the patch port, or mends what differs, and leaves the NIC alone.
func (db DB) Ensure(ctx context.Context, b Bridge) error {
	s, err := db.Read(ctx, b, "")
	if err != nil {
		return err
	}
	if s.Present && !s.Ours {
		return fmt.Errorf("there is already a bridge %s that Fairlead did not create: rename or delete it", b.Name)
	}
	if s.Complete {
		return nil
	}
	row := map[string]any{"datapath_type": b.Datapath, "fail_mode": "standalone", "controller": set[string](),
		"other_config": omap(b.otherConfig()), "external_ids": omap(map[string]string{markKey: markUplink, bootKey: b.BootID})}
	patch := []op{
		{"op": "insert", "table": "Interface", "uuid-name": "ipatch", "row": map[string]any{"name": b.Patch, "type": "patch",
			"options": omap(map[string]string{"peer": b.Peer})}},
		{"op": "insert", "table": "Port", "uuid-name": "ppatch", "row": map[string]any{"name": b.Patch, "interfaces": named("ipatch")}},
	}
	if s.Present {
		err = db.mend(ctx, b, s, row, patch)
	} else {
		row["name"], row["ports"] = b.Name, set(named("pown"), named("ppatch"))
		ops := append(patch,
			op{"op": "insert", "table": "Interface", "uuid-name": "iown", "row": map[string]any{"name": b.Name,
				"type": "internal", "mtu_request": b.MTU}},
			op{"op": "insert", "table": "Port", "uuid-name": "pown", "row": map[string]any{"name": b.Name, "interfaces": named("iown")}},
			op{"op": "insert", "table": "Bridge", "uuid-name": "bridge", "row": row},
			db.onRoot(s, []any{"bridges", "insert", set(named("bridge"))}))
		_, err = db.transact(ctx, ops...)
	}
	if err != nil {
		return fmt.Errorf("creating bridge %s: %w", b.Name, err)
	}
	return nil
}

// mend sets every column anew. The patch port is made anew if it is not there, or not right.
func (db DB) mend(ctx context.Context, b Bridge, s State, row map[string]any, patch []op) error {
	results, err := db.transact(ctx,
		op{"op": "select", "table": "Port", "where": is("name", b.Patch), "columns": []string{"_uuid"}})
	if err != nil {
		return err
	}
	keep := slices.Clone(s.ports)
	if len(results[0].Rows) > 0 {
		keep = slices.DeleteFunc(keep, func(id string) bool { return id == uuid(results[0].Rows[0]) })
	}
	ports := []any{named("ppatch")}
	for _, id := range keep {
		ports = append(ports, []any{"uuid", id})
	}
	row["ports"] = set(ports...)
	ops := append(patch,
		op{"op": "update", "table": "Bridge", "where": is("_uuid", []any{"uuid", s.bridge}), "row": row},
		op{"op": "update", "table": "Interface", "where": is("name", b.Name), "row": map[string]any{"mtu_request": b.MTU}},
		db.onRoot(s))
	_, err = db.transact(ctx, ops...)
	return err
}

// onRoot changes the Open_vSwitch row, and asks ovs-vswitchd to confirm what it has taken.
func (db DB) onRoot(s State, mutations ...any) op {
	mutations = append(mutations, []any{"next_cfg", "+=", 1})
	return op{"op": "mutate", "table": database, "where": is("_uuid", []any{"uuid", s.root}), "mutations": mutations}
}

// AddNIC makes the NIC a port of the bridge.
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
	_, err = db.transact(ctx,
		op{"op": "insert", "table": "Interface", "uuid-name": "inic", "row": map[string]any{"name": nic}},
		op{"op": "insert", "table": "Port", "uuid-name": "pnic", "row": map[string]any{"name": nic, "interfaces": named("inic")}},
		op{"op": "mutate", "table": "Bridge", "where": is("_uuid", []any{"uuid", s.bridge}),
			"mutations": []any{[]any{"ports", "insert", set(named("pnic"))}}},
		db.onRoot(s))
	if err != nil {
		return fmt.Errorf("adding %s to bridge %s: %w", nic, b.Name, err)
	}
	return nil
}

// RemoveNIC takes the NIC's port out of the bridge. One that is not there is no error.
func (db DB) RemoveNIC(ctx context.Context, b Bridge, nic string) error {
	s, err := db.Read(ctx, b, nic)
	if err != nil || !s.NIC || !s.Ours {
		return err
	}
	_, err = db.transact(ctx,
		op{"op": "mutate", "table": "Bridge", "where": is("_uuid", []any{"uuid", s.bridge}),
			"mutations": []any{[]any{"ports", "delete", set([]any{"uuid", s.nicPort})}}},
		db.onRoot(s))
	if err != nil {
		return fmt.Errorf("removing %s from bridge %s: %w", nic, b.Name, err)
	}
	return nil
}

// Remove takes the whole bridge out, if it is ours.
func (db DB) Remove(ctx context.Context, b Bridge) error {
	s, err := db.Read(ctx, b, "")
	if err != nil || !s.Ours {
		return err
	}
	_, err = db.transact(ctx, db.onRoot(s, []any{"bridges", "delete", set([]any{"uuid", s.bridge})}))
	if err != nil {
		return fmt.Errorf("removing bridge %s: %w", b.Name, err)
	}
	return nil
}

// WaitTaken waits until ovs-vswitchd has taken what was written until now.
func (db DB) WaitTaken(ctx context.Context) error {
	goal := -1
	for {
		results, err := db.transact(ctx, op{"op": "select", "table": database, "where": []any{},
			"columns": []string{"next_cfg", "cur_cfg"}})
		if err != nil {
			return err
		}
		if len(results[0].Rows) == 1 {
			row := results[0].Rows[0]
			if goal < 0 {
				goal = whole(row["next_cfg"])
			}
			if whole(row["cur_cfg"]) >= goal {
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
