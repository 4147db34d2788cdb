// Package ovsop builds the operations of an OVSDB transaction (RFC 7047, 5.2) in libovsdb's types, and reads rows from
// the results. Where a UUID is expected, a name refers to a row that the same transaction inserts.
package ovsop

import "github.com/ovn-org/libovsdb/ovsdb"

// Select returns columns of the rows that meet all conditions.
func Select(table string, where []ovsdb.Condition, columns ...string) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationSelect, Table: table, Where: where, Columns: columns}
}

// Insert inserts a row, which the transaction may refer to by uuidName.
func Insert(table, uuidName string, row ovsdb.Row) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUIDName: uuidName, Row: row}
}

// Update sets columns of rows.
func Update(table string, where []ovsdb.Condition, row ovsdb.Row) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: table, Where: where, Row: row}
}

// Mutate changes columns of one row.
func Mutate(table, uuid string, m ...ovsdb.Mutation) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationMutate, Table: table, Where: ByUUID(uuid), Mutations: m}
}

// Is is the condition that column equals value.
func Is(column string, value any) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition(column, ovsdb.ConditionEqual, value)}
}

// ByUUID is the condition for one row.
func ByUUID(uuid string) []ovsdb.Condition { return Is("_uuid", ovsdb.UUID{GoUUID: uuid}) }

// Add adds to a set or map; an existing key keeps its value.
func Add(column string, value any) ovsdb.Mutation {
	return ovsdb.Mutation{Column: column, Mutator: ovsdb.MutateOperationInsert, Value: value}
}

// Delete removes values from a set, or keys, with or without given values, from a map.
func Delete(column string, value any) ovsdb.Mutation {
	return ovsdb.Mutation{Column: column, Mutator: ovsdb.MutateOperationDelete, Value: value}
}

// RaiseNextCfg asks ovs-vswitchd to confirm the transaction, by cur_cfg of the Open_vSwitch row.
func RaiseNextCfg() ovsdb.Mutation {
	return ovsdb.Mutation{Column: "next_cfg", Mutator: ovsdb.MutateOperationAdd, Value: 1}
}

// Set is a set of strings.
func Set(values ...string) ovsdb.OvsSet {
	var s ovsdb.OvsSet
	for _, v := range values {
		s.GoSet = append(s.GoSet, v)
	}
	return s
}

// Refs is a set of references to rows.
func Refs(uuids ...string) ovsdb.OvsSet {
	var s ovsdb.OvsSet
	for _, u := range uuids {
		s.GoSet = append(s.GoSet, ovsdb.UUID{GoUUID: u})
	}
	return s
}

// Map is a map of strings.
func Map(m map[string]string) ovsdb.OvsMap {
	o := ovsdb.OvsMap{GoMap: map[any]any{}}
	for k, v := range m {
		o.GoMap[k] = v
	}
	return o
}
