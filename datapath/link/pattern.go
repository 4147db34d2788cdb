package link

import (
	"fmt"
	"path"
	"strings"
)

// IsPattern reports whether name has what only patterns of interface names have, as path.Match knows them.
func IsPattern(name string) bool { return strings.ContainsAny(name, `*?[\`) }

// Fits reports whether an interface's name is pattern, or fits it as path.Match has it.
func Fits(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// OneName is the one of names that is pattern or fits it. The error says what to name instead where there is none, or
// where there are several.
func OneName(pattern string, names []string) (string, error) {
	var fit []string
	for _, n := range names {
		if Fits(pattern, n) {
			fit = append(fit, n)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) == 0 && IsPattern(pattern):
		return "", fmt.Errorf("no interface fits %s: name the node's (ip link lists them), or use another pattern", pattern)
	case len(fit) == 0:
		return "", fmt.Errorf("there is no interface %s: name the node's (ip link lists them), or use a pattern", pattern)
	}
	return "", fmt.Errorf("the pattern %s fits several interfaces, %s: use one that fits the NIC only",
		pattern, strings.Join(fit, ", "))
}
