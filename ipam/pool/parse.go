package pool

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/api"
)

// readEnds parses the first and last address of a range.
func readEnds(r api.IPRange) (Span, error) {
	switch {
	case r.CIDR != "" && (r.Start != "" || r.End != ""):
		return Span{}, errors.New("has cidr and start or end: keep cidr, or keep start and end")
	case r.CIDR != "":
		return parseCIDR(r.CIDR)
	case r.Start == "" && r.End == "":
		return Span{}, errors.New("has no addresses: set cidr, or start and end")
	case r.Start == "":
		return Span{}, fmt.Errorf("has end %s and no start: set start too", r.End)
	case r.End == "":
		return Span{}, fmt.Errorf("has start %s and no end: set end too", r.Start)
	}
	return parseEnds(r.Start, r.End)
}

func parseEnds(start, end string) (Span, error) {
	first, err := parseAddr(start)
	if err != nil {
		return Span{}, err
	}
	last, err := parseAddr(end)
	if err != nil {
		return Span{}, err
	}
	switch {
	case first.Is4() != last.Is4():
		return Span{}, fmt.Errorf("%s and %s are of different families: set both of one family", first, last)
	case last.Less(first):
		return Span{}, fmt.Errorf("start %s is above end %s: swap them", first, last)
	}
	return checkUnicast(Span{first, last})
}

func parseCIDR(text string) (Span, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return Span{}, fmt.Errorf("%q is not a CIDR such as 10.2.0.0/24", text)
	case p.Addr().Is4In6():
		return Span{}, fmt.Errorf("%s is IPv4 written as IPv6: write it as IPv4", text)
	case p != p.Masked():
		return Span{}, fmt.Errorf("%s has host bits set: did you mean %s?", text, p.Masked())
	}
	return checkUnicast(Span{p.Addr(), last(p)})
}

func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q is not an IP address", text)
	case a.Is4In6():
		return a, fmt.Errorf("%s is IPv4 written as IPv6: write %s", text, a.Unmap())
	case a.Zone() != "":
		return a, fmt.Errorf("%s has a zone: write %s", text, a.WithZone(""))
	}
	return a, nil
}

// notPods are addresses that no pod may have, and why.
var notPods = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), `"this network" (RFC 1122)`},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved (RFC 1112)"},
	{netip.MustParsePrefix("::/127"), "unspecified and loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4 written as IPv6"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

func checkUnicast(s Span) (Span, error) {
	for _, n := range notPods {
		if first, both := s.overlap(Span{n.prefix.Addr(), last(n.prefix)}); both {
			return Span{}, fmt.Errorf("%s has %s, which is %s: use addresses of your network", s, first, n.why)
		}
	}
	return s, nil
}
