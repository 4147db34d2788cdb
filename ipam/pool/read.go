package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// Read validates and parses an IPPool. The error is a message for the administrator: it names the pool and the field,
// and says what to write instead.
func Read(p api.IPPool) (Pool, error) {
	out, err := read(p)
	if err != nil {
		return Pool{}, fmt.Errorf("IPPool %s: %w", p.Name, err)
	}
	return out, nil
}

func read(p api.IPPool) (Pool, error) {
	out := Pool{Name: p.Name, Scope: p.Annotations[api.AnnotationNetwork], Created: p.CreationTimestamp.Time}
	if out.Scope != "" && len(validation.IsDNS1123Label(out.Scope)) > 0 {
		return Pool{}, fmt.Errorf("annotation %s: %q is not a DNS label: use at most 63 of a-z, 0-9 and -, with no - "+
			"at the ends", api.AnnotationNetwork, out.Scope)
	}
	if err := checkForm(p.Spec); err != nil {
		return Pool{}, err
	}
	var err error
	if out.Ranges, err = readRanges(p.Spec); err != nil {
		return Pool{}, err
	}
	out.Family = netaddr.Family(out.Ranges[0].First)
	excluded, err := readExcludes(p.Spec.Excludes, out.Family)
	if err != nil {
		return Pool{}, err
	}
	out.spans = allocatable(out.Ranges, excluded)
	if len(out.spans) == 0 {
		return Pool{}, errors.New("no address is left for pods: spec.ipRanges has only the gateway, network and broadcast addresses, and spec.excludes. Add a range")
	}
	out.Free = readFreeMap(p.Status, out.Family, out.Total())
	return out, nil
}

// checkForm checks which of the two forms a spec has, and that it is not mixed.
func checkForm(s api.IPPoolSpec) error {
	switch {
	case len(s.IPRanges) == 0:
		return errors.New("spec.ipRanges is empty: add a range with cidr, or with start and end")
	case s.IPVersion != 0 && s.SubnetInfo != nil:
		return errors.New("spec has ipVersion and subnetInfo, which are two forms of a pool: remove ipVersion, " +
			"or remove subnetInfo and give each range its own gateway, prefixLength and vlan")
	case s.IPVersion == 0 && s.SubnetInfo == nil:
		return errors.New("spec has neither subnetInfo nor ipVersion: add subnetInfo with gateway and prefixLength, or " +
			"ipVersion (4 or 6) and gateway and prefixLength in each range")
	case s.SubnetInfo == nil && s.IPVersion != 4 && s.IPVersion != 6:
		return fmt.Errorf("spec.ipVersion is %d: set 4 or 6", s.IPVersion)
	}
	return nil
}

func readRanges(s api.IPPoolSpec) ([]Range, error) {
	var out []Range
	want := s.IPVersion
	for i, written := range s.IPRanges {
		at := fmt.Sprintf("spec.ipRanges[%d]", i)
		r, err := readRange(s, written, at)
		if err != nil {
			return nil, err
		}
		if want == 0 {
			want = netaddr.Family(r.First)
		}
		if netaddr.Family(r.First) != want {
			return nil, fmt.Errorf("%s: %s is IPv%d, and the pool is IPv%d: put it into another pool",
				at, r.Span, netaddr.Family(r.First), want)
		}
		out = append(out, r)
	}
	return out, checkDisjoint(out)
}

// readRange parses the range in the field at.
func readRange(s api.IPPoolSpec, written api.IPRange, at string) (Range, error) {
	ends, err := readEnds(written)
	if err != nil {
		return Range{}, fmt.Errorf("%s: %w", at, err)
	}
	subnet, where := written.SubnetInfo, at
	if s.SubnetInfo != nil {
		if subnet != (api.SubnetInfo{}) {
			return Range{}, fmt.Errorf("%s has gateway, prefixLength or vlan, and so has spec.subnetInfo: remove them "+
				"from the range, or use ipVersion instead of subnetInfo", at)
		}
		subnet, where = *s.SubnetInfo, "spec.subnetInfo"
	}
	r := Range{Span: ends, Bits: subnet.PrefixLength}
	if r.VLAN, err = readVLAN(subnet.VLAN); err != nil {
		return Range{}, fmt.Errorf("%s.vlan %w", where, err)
	}
	if most := ends.First.BitLen() - 1; r.Bits < 1 || r.Bits > most {
		return Range{}, fmt.Errorf("%s.prefixLength is %d: set the length of the underlay's subnet, 1 to %d for IPv%d",
			where, r.Bits, most, netaddr.Family(ends.First))
	}
	if r.Gateway, err = readGateway(subnet.Gateway, ends); err != nil {
		return Range{}, fmt.Errorf("%s.gateway %w", where, err)
	}
	return r, checkSubnet(r, at)
}

// readVLAN reads a VLAN ID. IEEE 802.1Q has 12 bits for it and reserves 4095; Antrea's page once allowed that.
func readVLAN(vlan int) (uint16, error) {
	switch {
	case vlan == 4095:
		return 0, errors.New("is 4095, which IEEE 802.1Q reserves and switches drop: use 1 to 4094, or 0 for untagged")
	case vlan < 0 || vlan > 4095:
		return 0, fmt.Errorf("is %d: use 1 to 4094, or 0 for untagged", vlan)
	}
	return uint16(vlan), nil
}

func readGateway(text string, ends Span) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, errors.New("is missing: set the address of the underlay's router in this subnet")
	}
	gateway, err := parseAddr(text)
	if err != nil {
		return netip.Addr{}, err
	}
	if netaddr.Family(gateway) != netaddr.Family(ends.First) {
		return netip.Addr{}, fmt.Errorf("%s is IPv%d, and %s is IPv%d: set a router of that family",
			gateway, netaddr.Family(gateway), ends, netaddr.Family(ends.First))
	}
	if !gateway.IsGlobalUnicast() && !(gateway.Is6() && gateway.IsLinkLocalUnicast()) {
		return netip.Addr{}, fmt.Errorf("%s is not a router's address: set the underlay's router in this subnet", gateway)
	}
	return gateway, nil
}

// checkSubnet checks that range and gateway are in one subnet.
func checkSubnet(r Range, at string) error {
	subnet := r.subnet()
	if !r.Gateway.IsLinkLocalUnicast() {
		subnet = netip.PrefixFrom(r.Gateway, r.Bits).Masked()
	}
	if !subnet.Contains(r.First) || !subnet.Contains(r.Last) {
		return fmt.Errorf("%s: %s is not inside %s, the subnet of gateway %s and prefixLength %d: pods and gateway must "+
			"share a subnet. Correct the range, the gateway or the prefixLength", at, r.Span, subnet, r.Gateway, r.Bits)
	}
	return nil
}

// checkDisjoint returns an error if two ranges of a pool have an address in common.
func checkDisjoint(ranges []Range) error {
	order := make([]int, len(ranges))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return ranges[a].First.Compare(ranges[b].First) })
	for i := 1; i < len(order); i++ {
		a, b := min(order[i-1], order[i]), max(order[i-1], order[i])
		if first, both := ranges[a].overlap(ranges[b].Span); both {
			return fmt.Errorf("spec.ipRanges[%d] (%s) and spec.ipRanges[%d] (%s) both have %s: shorten one of them",
				a, ranges[a].Span, b, ranges[b].Span, first)
		}
	}
	return nil
}

func readExcludes(texts []string, want int) ([]Span, error) {
	var out []Span
	for i, text := range texts {
		s, err := ParseSpan(text)
		if err != nil {
			return nil, fmt.Errorf("spec.excludes[%d]: %w", i, err)
		}
		if netaddr.Family(s.First) != want {
			return nil, fmt.Errorf("spec.excludes[%d]: %s is IPv%d, and the pool is IPv%d: remove it", i, s,
				netaddr.Family(s.First), want)
		}
		out = append(out, s)
	}
	return out, nil
}

// readFreeMap parses the free map. Invalid entries are skipped: it is a hint. A controller that has written it has
// counted the addresses, too: if their number is not total, it is for another spec.
func readFreeMap(s api.IPPoolStatus, want int, total int64) FreeMap {
	out := FreeMap{Complete: s.Usage != nil && s.Usage.Total == total && len(s.FreeMap) < api.PoolFreeMapMost}
	for _, text := range s.FreeMap[:min(len(s.FreeMap), api.PoolFreeMapMost)] {
		s, err := ParseSpan(text)
		if err != nil || netaddr.Family(s.First) != want {
			out.Complete = false
			continue
		}
		out.Spans = append(out.Spans, s)
	}
	return out
}

// allocatable are the addresses of ranges without those excluded, sorted.
func allocatable(ranges []Range, excluded []Span) []span {
	taken := slices.Clone(excluded)
	for _, r := range ranges {
		taken = append(taken, r.reserved()...)
	}
	var out []span
	for i, r := range ranges {
		for _, s := range r.minus(taken) {
			out = append(out, span{s, i})
		}
	}
	slices.SortFunc(out, func(a, b span) int { return a.First.Compare(b.First) })
	return out
}

// reserved are addresses of the subnet that no pod may have: the gateway; with IPv4 the network address and the
// broadcast address, which a subnet of two addresses does not have (RFC 3021); with IPv6 the subnet-router anycast
// address (RFC 4291 section 2.6.1), which a /127 does not have (RFC 6164).
func (r Range) reserved() []Span {
	out := []Span{{r.Gateway, r.Gateway}}
	subnet := r.subnet()
	if r.Bits == r.First.BitLen()-1 {
		return out
	}
	out = append(out, Span{subnet.Addr(), subnet.Addr()})
	if r.First.Is4() {
		out = append(out, Span{last(subnet), last(subnet)})
	}
	return out
}
