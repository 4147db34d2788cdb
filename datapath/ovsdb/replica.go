package ovsdb

import (
	"maps"
	"sync"

	"github.com/ovn-org/libovsdb/cache"
	"github.com/ovn-org/libovsdb/model"
)

// replica reads the library's copy of the database. The library replaces rows and never modifies them: what was derived
// from rows stays valid as long as they are the same.
type replica struct {
	tables *cache.TableCache

	mu   sync.Mutex
	rows [8]map[string]model.Model // of each table, by UUID, as last read
	last snapshot                  // what rows say
	seen map[string]Observed       // derived from last, for each bridge requested
}

// read returns the library's current state.
func (r *replica) read() snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	same := true
	for i, table := range [...]string{"Open_vSwitch", "Bridge", "Port", "Flow_Table", "Interface",
		"Datapath", "CT_Zone", "CT_Timeout_Policy"} {
		rows := r.tables.Table(table).RowsShallow()
		same = same && maps.Equal(rows, r.rows[i])
		r.rows[i] = rows
	}
	if !same {
		number := r.last.number + 1
		r.last, r.seen = r.snapshot(), map[string]Observed{}
		r.last.number = number
	}
	return r.last
}

// observed returns what s, which read has returned, says about the bridge called name.
func (r *replica) observed(s snapshot, name string) Observed {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.number != r.last.number {
		return observed(s, name)
	}
	o, ok := r.seen[name]
	if !ok {
		o = observed(s, name)
		r.seen[name] = o
	}
	return o
}

func (r *replica) snapshot() snapshot {
	s := snapshot{bridges: map[string]bridge{},
		ports: make(map[string]*port, len(r.rows[2])), ifaces: make(map[string]*iface, len(r.rows[4])),
		tables: map[string]flowTable{}, datapaths: map[string]datapath{}, zones: map[string]ctZone{},
		policies: map[string]ctTimeoutPolicy{}, records: make(map[string]*record, len(r.rows[2]))}
	for _, row := range r.rows[0] {
		s.root = *row.(*openVSwitch)
	}
	for _, row := range r.rows[1] {
		b := row.(*bridge)
		s.bridges[b.Name] = *b
	}
	for uuid, row := range r.rows[2] {
		p := row.(*port)
		s.ports[uuid] = p
		if before := r.last.records[uuid]; before != nil && before.row == p {
			s.records[uuid] = before
		} else if before := recordOf(p); before != nil {
			s.records[uuid] = before
		}
	}
	for uuid, row := range r.rows[3] {
		s.tables[uuid] = *row.(*flowTable)
	}
	for uuid, row := range r.rows[4] {
		s.ifaces[uuid] = row.(*iface)
	}
	for uuid, row := range r.rows[5] {
		s.datapaths[uuid] = *row.(*datapath)
	}
	for uuid, row := range r.rows[6] {
		s.zones[uuid] = *row.(*ctZone)
	}
	for uuid, row := range r.rows[7] {
		s.policies[uuid] = *row.(*ctTimeoutPolicy)
	}
	if s.consistent() {
		listed := map[string]map[string]portIface{}
		for _, b := range s.bridges {
			listed[b.UUID] = s.portsOf(b)
		}
		s.listed = listed
	}
	return s
}
