package rows

import "github.com/ovn-org/libovsdb/ovsdb"

// Columns of a selected row. A missing or empty one reads as the zero value.

func text(row ovsdb.Row, column string) string {
	s, _ := row[column].(string)
	return s
}

func number(row ovsdb.Row, column string) int {
	n, _ := row[column].(float64)
	return int(n)
}

// empty reports whether an optional or set column has no value.
func empty(row ovsdb.Row, column string) bool {
	v, there := row[column]
	set, isSet := v.(ovsdb.OvsSet)
	return !there || isSet && len(set.GoSet) == 0
}

func textMap(row ovsdb.Row, column string) map[string]string {
	out := map[string]string{}
	m, _ := row[column].(ovsdb.OvsMap)
	for k, v := range m.GoMap {
		key, _ := k.(string)
		out[key], _ = v.(string)
	}
	return out
}

// refs reads a set of references; a single one is not written as a set.
func refs(row ovsdb.Row, column string) (uuids []string) {
	values := []any{row[column]}
	if s, ok := row[column].(ovsdb.OvsSet); ok {
		values = s.GoSet
	}
	for _, v := range values {
		if u, ok := v.(ovsdb.UUID); ok {
			uuids = append(uuids, u.GoUUID)
		}
	}
	return uuids
}

// uuid returns the row's UUID, empty for no row.
func uuid(row ovsdb.Row) string {
	u, _ := row["_uuid"].(ovsdb.UUID)
	return u.GoUUID
}

// first returns the first row of a result, nil if there is none.
func first(r ovsdb.OperationResult) ovsdb.Row {
	if len(r.Rows) == 0 {
		return nil
	}
	return r.Rows[0]
}
