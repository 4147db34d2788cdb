package config

import (
	"fmt"
	"strings"
)

// hint says where an unknown key of the file in belongs, or which known key is probably meant; here are the keys known
// in that file. It is empty, or begins with punctuation.
func hint(key string, in File, here known) string {
	other := (Agent | Controller) ^ in
	there := knownIn(other)
	if there.sections[key] || there.entries[key].Key != "" {
		return fmt.Sprintf(": it belongs in %s", other)
	}
	sameLeaf := func(name string) bool { return strings.EqualFold(leaf(name), leaf(key)) }
	longer := func(name string) bool {
		return strings.HasPrefix(name, key) && strings.Count(name, ".") == strings.Count(key, ".")
	}
	for _, found := range []string{here.only(sameLeaf), here.nearest(key), here.only(longer)} {
		if found != "" {
			return fmt.Sprintf("; did you mean %s?", found)
		}
	}
	if found := there.only(sameLeaf); found != "" {
		return fmt.Sprintf("; did you mean %s in %s?", found, other)
	}
	return ""
}

// only returns the name that match is true for, if there is exactly one: many sections have an "enable", but only one
// has "clusterCIDRs".
func (k known) only(match func(string) bool) string {
	found := ""
	for _, n := range k.names {
		if !match(n) {
			continue
		}
		if found != "" {
			return ""
		}
		found = n
	}
	return found
}

// nearest returns the key with the most similar spelling, if any is similar: one letter in four may differ.
func (k known) nearest(key string) string {
	best, distance := "", max(1, len(leaf(key))/4)+1
	for _, n := range k.names {
		if d := edits(strings.ToLower(n), strings.ToLower(key), distance); d < distance {
			best, distance = n, d
		}
	}
	return best
}

// edits counts the letters to insert, delete or replace to turn a into b (Levenshtein distance). It stops at limit and
// returns limit.
func edits(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return min(row[len(b)], limit)
}
