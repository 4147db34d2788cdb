package nodecidr

import (
	"fmt"
	"net/netip"
	"strings"
)

// Name is the name of a podCIDR's claim, and of a range: ADDRESS-LENGTH, IPv6 with all its digits and dashes for
// colons. It is a DNS subdomain, as the API server requires of names.
func Name(p netip.Prefix) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(p.Masked().Addr().StringExpanded(), ":", "-"), p.Bits())
}
