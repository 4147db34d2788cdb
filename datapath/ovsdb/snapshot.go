package ovsdb

// snapshot is the database at one instant. It must not be changed: it shares memory with the replica and its other
// readers.
type snapshot struct {
	number  int // unique for each that a replica reads
	root    openVSwitch
	bridges map[string]bridge // by name
	ports   map[string]*port  // by UUID
	ifaces  map[string]*iface // by UUID
	tables  map[string]flowTable
	// Of conntrack, by UUID.
	datapaths map[string]datapath
	zones     map[string]ctZone
	policies  map[string]ctTimeoutPolicy
	records   map[string]*record              // of pods' ports, by UUID; what is missing is read from the port
	listed    map[string]map[string]portIface // what portsOf has listed, by UUID of the bridge; nil: it keeps nothing
}

// portIface is a port with its first interface; only bonds have several.
type portIface struct {
	*port
	iface  *iface
	record *record // of a port with the mark of a pod, else nil
}

// portsOf returns the ports of a bridge by name; in an inconsistent snapshot only the complete ones.
func (s snapshot) portsOf(b bridge) map[string]portIface {
	if out, ok := s.listed[b.UUID]; ok {
		return out
	}
	out := make(map[string]portIface, len(b.Ports))
	for _, uuid := range b.Ports {
		p := s.ports[uuid]
		if p == nil || len(p.Interfaces) == 0 || s.ifaces[p.Interfaces[0]] == nil {
			continue
		}
		r := s.records[uuid]
		if r == nil {
			r = recordOf(p)
		}
		out[p.Name] = portIface{p, s.ifaces[p.Interfaces[0]], r}
	}
	return out
}

// consistent reports that no reference is dangling. The library applies an update table by table, so a reader may see
// part of it.
func (s snapshot) consistent() bool {
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
	return s.consistentZones()
}

// pending reports that ovs-vswitchd has not applied the last change.
func (s snapshot) pending() bool { return s.root.CurCfg < s.root.NextCfg }

func (s snapshot) consistentZones() bool {
	for _, uuid := range s.root.Datapaths {
		dp, ok := s.datapaths[uuid]
		if !ok {
			return false
		}
		for _, uuid := range dp.CTZones {
			zone, ok := s.zones[uuid]
			if !ok {
				return false
			}
			if zone.TimeoutPolicy == nil {
				continue
			}
			if _, ok := s.policies[*zone.TimeoutPolicy]; !ok {
				return false
			}
		}
	}
	return true
}
