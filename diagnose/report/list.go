package report

import (
	"fmt"
	"strings"
)

// Some shortens a list for a message, to its first five items and the number of the others.
func Some(list []string) string {
	const most = 5
	switch {
	case len(list) == 0:
		return "none"
	case len(list) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// Count is a count with its noun, in singular or plural.
func Count(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(many, n)
}

// Join lists values with a separator.
func Join[T fmt.Stringer](list []T, separator string) string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, separator)
}
