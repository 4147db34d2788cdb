package ovsdb

import (
	"maps"
	"slices"
	"strings"

	"github.com/ovn-org/libovsdb/ovsdb"
)

// ourIDs are the keys of external_ids that are ours.
func ourIDs(ids map[string]string) map[string]string {
	ours := map[string]string{}
	for k, v := range ids {
		if k == markKey || strings.HasPrefix(k, recordPrefix) {
			ours[k] = v
		}
	}
	return ours
}

// setIDs replaces our keys in external_ids and keeps those of others.
func (p *plan) setIDs(table, uuid string, have, want map[string]string) {
	var old []any
	for _, k := range slices.Sorted(maps.Keys(ourIDs(have))) {
		old = append(old, k)
	}
	mutations := []ovsdb.Mutation{insert("external_ids", omap(want))}
	if len(old) > 0 { // "insert" leaves a key alone that is there
		mutations = append([]ovsdb.Mutation{remove("external_ids", old...)}, mutations...)
	}
	p.mutate(table, uuid, mutations...)
}

// seal asks ovs-vswitchd to confirm the transaction, if there is any.
func (p *plan) seal(root openVSwitch) {
	if len(p.ops) > 0 {
		p.mutate("Open_vSwitch", root.UUID, ovsdb.Mutation{Column: "next_cfg", Mutator: ovsdb.MutateOperationAdd, Value: 1})
	}
}

func (p *plan) update(table, uuid string, row ovsdb.Row) {
	p.ops = append(p.ops, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: table, Where: byUUID(uuid), Row: row})
}

func (p *plan) mutate(table, uuid string, m ...ovsdb.Mutation) {
	p.ops = append(p.ops, ovsdb.Operation{Op: ovsdb.OperationMutate, Table: table, Where: byUUID(uuid), Mutations: m})
}

func byUUID(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
}

func insert(column string, value any) ovsdb.Mutation {
	return ovsdb.Mutation{Column: column, Mutator: ovsdb.MutateOperationInsert, Value: value}
}

// remove takes keys out of a map.
func remove(column string, keys ...any) ovsdb.Mutation {
	return ovsdb.Mutation{Column: column, Mutator: ovsdb.MutateOperationDelete, Value: ovsdb.OvsSet{GoSet: keys}}
}

func set(values []string) ovsdb.OvsSet {
	var s ovsdb.OvsSet
	for _, v := range values {
		s.GoSet = append(s.GoSet, v)
	}
	return s
}

func omap(m map[string]string) ovsdb.OvsMap {
	o := ovsdb.OvsMap{GoMap: map[any]any{}}
	for k, v := range m {
		o.GoMap[k] = v
	}
	return o
}
