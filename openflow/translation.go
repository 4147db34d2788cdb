package openflow

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// Endpoints lists, sorted, the endpoints to which the switch sends new connections to a port of a Service; protocol is
// IANA's number. None: it does not translate them.
func (s *Switch) Endpoints(ctx context.Context, service netip.AddrPort, protocol uint8) ([]netip.AddrPort, error) {
	list, err := s.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	buckets := map[uint32][]Bucket{}
	note := func(g nx.Listed) { buckets[g.ID] = g.Buckets }
	if err := s.eachGroup(ctx, func(m ofconn.Message) error { return nx.ReadGroups(m, note) }); err != nil {
		return nil, fmt.Errorf("listing groups: %w", err)
	}
	all := map[Translation]struct{}{}
	for i := range list {
		f := &list[i].flow
		if m := f.Match; f.ofService() && m.Protocol == uint16(protocol)+1 && m.Dst.Addr() == service.Addr() &&
			m.DstPort.Value == service.Port() {
			translations(f, buckets[f.group()], all)
		}
	}
	out := make([]netip.AddrPort, 0, len(all))
	for t := range all {
		out = append(out, t.Endpoint)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out, nil
}

// group returns the group to which the flow leads; 0: none.
func (f *Flow) group() uint32 {
	for _, a := range f.Actions {
		if to, ok := a.(ToGroup); ok {
			return uint32(to)
		}
	}
	return 0
}

// translations adds the translations of one flow.
func translations(f *Flow, buckets []Bucket, to map[Translation]struct{}) {
	add := func(n NAT) {
		if n.Kind == NATDst {
			service := netip.AddrPortFrom(f.Match.Dst.Addr(), f.Match.DstPort.Value)
			to[Translation{service, netip.AddrPortFrom(n.Addr, n.First)}] = struct{}{}
		}
	}
	for _, a := range f.Actions {
		switch a := a.(type) {
		case Conntrack:
			add(a.NAT)
		case ToGroup:
			for _, b := range buckets {
				add(b.Action.NAT)
			}
		}
	}
}
