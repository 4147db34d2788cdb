package ovsdb

import (
	"maps"
	"slices"
	"strings"

	"github.com/ovn-org/libovsdb/ovsdb"

	"github.com/fairlead-cni/fairlead/datapath/internal/ovsop"
)

// ourIDs returns Fairlead's keys of external_ids.
func ourIDs(ids map[string]string) map[string]string {
	ours := map[string]string{}
	for k, v := range ids {
		if k == markKey || strings.HasPrefix(k, recordPrefix) {
			ours[k] = v
		}
	}
	return ours
}

// setIDs replaces Fairlead's keys in external_ids and keeps all others.
func (p *plan) setIDs(table, uuid string, have, want map[string]string) {
	old := slices.Sorted(maps.Keys(ourIDs(have)))
	p.mutate(table, uuid, ovsop.Delete("external_ids", ovsop.Set(old...)), ovsop.Add("external_ids", ovsop.Map(want)))
}

// seal has ovs-vswitchd confirm the transaction, if there is any.
func (p *plan) seal(root openVSwitch) {
	if len(p.ops) > 0 {
		p.mutate("Open_vSwitch", root.UUID, ovsop.RaiseNextCfg())
	}
}

func (p *plan) update(table, uuid string, row ovsdb.Row) {
	p.ops = append(p.ops, ovsop.Update(table, ovsop.ByUUID(uuid), row))
}

func (p *plan) mutate(table, uuid string, m ...ovsdb.Mutation) {
	p.ops = append(p.ops, ovsop.Mutate(table, uuid, m...))
}
