package ovsdb

import "github.com/ovn-org/libovsdb/cache"

// snapshot is the database at one instant. Rows must not be changed: they
// share memory with the replica.
type snapshot struct {
	root    openVSwitch
	bridges map[string]bridge // by name
	ports   map[string]port   // by UUID
	ifaces  map[string]iface  // by UUID
	tables  map[string]flowTable
}

// portIface is a port with its first interface; only bonds have more.
type portIface struct {
	port
	iface iface
}

// portsOf lists the ports of a bridge by name.
func (s snapshot) portsOf(b bridge) map[string]portIface {
	out := make(map[string]portIface, len(b.Ports))
	for _, uuid := range b.Ports {
		p := s.ports[uuid]
		out[p.Name] = portIface{p, s.ifaces[p.Interfaces[0]]}
	}
	return out
}

// whole reports that no reference leads nowhere. The library applies an update
// table by table, so a reader may come in between.
func (s snapshot) whole() bool {
	if s.root.UUID == "" {
		return false
	}
	byUUID := map[string]bool{}
	for _, b := range s.bridges {
		byUUID[b.UUID] = true
		for _, uuid := range b.FlowTables {
			if _, ok := s.tables[uuid]; !ok {
				return false
			}
		}
		for _, uuid := range b.Ports {
			p, ok := s.ports[uuid]
			if !ok || len(p.Interfaces) == 0 {
				return false
			}
			if _, ok := s.ifaces[p.Interfaces[0]]; !ok {
				return false
			}
		}
	}
	for _, uuid := range s.root.Bridges {
		if !byUUID[uuid] {
			return false
		}
	}
	return true
}

func readSnapshot(t *cache.TableCache) snapshot {
	s := snapshot{bridges: map[string]bridge{}, ports: map[string]port{}, ifaces: map[string]iface{},
		tables: map[string]flowTable{}}
	for _, row := range t.Table("Open_vSwitch").RowsShallow() {
		s.root = *row.(*openVSwitch)
	}
	for _, row := range t.Table("Bridge").RowsShallow() {
		b := row.(*bridge)
		s.bridges[b.Name] = *b
	}
	for uuid, row := range t.Table("Port").RowsShallow() {
		s.ports[uuid] = *row.(*port)
	}
	for uuid, row := range t.Table("Flow_Table").RowsShallow() {
		s.tables[uuid] = *row.(*flowTable)
	}
	for uuid, row := range t.Table("Interface").RowsShallow() {
		s.ifaces[uuid] = *row.(*iface)
	}
	return s
}
