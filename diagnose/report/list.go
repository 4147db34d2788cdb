package report

import (
	"fmt"
	"strings"
)

// Some keeps a list in a message short: its first five, and how many more there are.
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
