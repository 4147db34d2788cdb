package allocation

import (
	"fmt"
	"net/netip"
	"strings"
)

// Name is the name of an address's allocation: [SCOPE.]ADDRESS, IPv6 with all its digits and dashes for colons. It is a
// DNS subdomain, as the API server requires of names. scope is a DNS label or empty.
func Name(scope string, addr netip.Addr) string {
	name := strings.ReplaceAll(addr.StringExpanded(), ":", "-")
	if scope != "" {
		return scope + "." + name
	}
	return name
}

// ParseName is the inverse of Name.
func ParseName(name string) (scope string, addr netip.Addr, err error) {
	text := name
	// IPv4 has three dots of its own, IPv6 has none.
	if dots := strings.Count(name, "."); dots == 4 || dots == 1 {
		scope, text, _ = strings.Cut(name, ".")
	}
	if !strings.Contains(text, ".") {
		text = strings.ReplaceAll(text, "-", ":")
	}
	addr, err = netip.ParseAddr(text)
	if err != nil || Name(scope, addr) != name {
		return "", netip.Addr{}, fmt.Errorf("%q is not the name of an allocation: want [SCOPE.]ADDRESS", name)
	}
	return scope, addr, nil
}
