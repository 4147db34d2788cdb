package link

import (
	"fmt"
	"path"
	"strings"
)

// IsPattern reports whether name has characters that only patterns have (path.Match), not interface names.
func IsPattern(name string) bool { return strings.ContainsAny(name, `*?[\`) }

// Matches reports whether an interface name equals pattern, or matches it as in path.Match.
func Matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// MatchOne returns the one of names that equals pattern or matches it. If there is none, or several, the error says
// what to set instead.
func MatchOne(pattern string, names []string) (string, error) {
	var fit []string
	for _, n := range names {
		if Matches(pattern, n) {
			fit = append(fit, n)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) == 0 && IsPattern(pattern):
		return "", fmt.Errorf("no interface matches %s: name an interface of the node (ip link lists them), or use another pattern", pattern)
	case len(fit) == 0:
		return "", fmt.Errorf("there is no interface %s: name an interface of the node (ip link lists them), or use a pattern", pattern)
	}
	return "", fmt.Errorf("the pattern %s matches several interfaces, %s: use one that matches only the NIC",
		pattern, strings.Join(fit, ", "))
}
