package apply

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// inPlace is what an applier has applied: nothing at first, and unknown after a failure.
type inPlace[T any] struct {
	what    T
	unknown bool
}

func (p *inPlace[T]) is(want T) bool { return !p.unknown && reflect.DeepEqual(p.what, want) }

// record records the outcome of applying what.
func (p *inPlace[T]) record(what T, err error) { p.what, p.unknown = what, err != nil }

// Steer syncs the bridged pods to the programs of uplink mode steer. It runs before the flows, so that a new pod's
// first frame is delivered, and no frame for a deleted pod reaches the next one.
type Steer struct {
	sync    func([]steer.Entry) error
	inPlace inPlace[[]steer.Entry]
}

// NewSteer returns the applier that syncs the eBPF maps with sync.
func NewSteer(sync func([]steer.Entry) error) *Steer { return &Steer{sync: sync} }

// Name implements Applier.
func (*Steer) Name() string { return "steer" }

// Apply implements Applier.
func (s *Steer) Apply(_ context.Context, r *Round) (c Changes, err error) {
	if !r.Verify && s.inPlace.is(r.Want.Steer) {
		return c, nil
	}
	err = s.sync(r.Want.Steer)
	s.inPlace.record(r.Want.Steer, err)
	return c, err
}

// Gateway applies the gateway's interface: addresses, MAC, MTU, sysctls.
type Gateway struct{ inPlace inPlace[link.GatewayLink] }

// Name implements Applier.
func (*Gateway) Name() string { return "gateway" }

// Apply implements Applier.
func (g *Gateway) Apply(_ context.Context, r *Round) (c Changes, err error) {
	same := g.inPlace.is(r.Want.Gateway)
	if same && !r.Verify {
		return c, nil
	}
	changes, err := link.EnsureGateway(r.Want.Gateway)
	g.inPlace.record(r.Want.Gateway, err)
	c = sorted(changes, r.Settled && same)
	if err != nil {
		return c, fmt.Errorf("gateway: %w", err)
	}
	return c, nil
}

// Forwarding enables the kernel's forwarding for the families that pods have.
type Forwarding struct{ inPlace inPlace[families] }

// families are those of IP.
type families struct{ ipv4, ipv6 bool }

// Name implements Applier.
func (*Forwarding) Name() string { return "forwarding" }

// Apply implements Applier.
func (f *Forwarding) Apply(_ context.Context, r *Round) (c Changes, err error) {
	ipv4, ipv6 := desired.Families(r.Want.NAT.PodCIDRs)
	want := families{ipv4 || r.Want.Gateway.IPv4, ipv6 || r.Want.Gateway.IPv6}
	same := f.inPlace.is(want)
	if same && !r.Verify {
		return c, nil
	}
	changes, err := route.EnableForwarding(want.ipv4, want.ipv6)
	f.inPlace.record(want, err)
	c = sorted(changes, r.Settled && same)
	if err != nil {
		return c, fmt.Errorf("forwarding: %w", err)
	}
	return c, nil
}

// Veths keeps the host ends of pods' veths as they were created, and finds pods whose MTU differs from what pods get
// now.
type Veths struct {
	podMTU, bridgedMTU int
	otherMTU           []string // host ends, as of the last check
}

// Name implements Applier.
func (*Veths) Name() string { return "veth" }

// Apply implements Applier.
func (v *Veths) Apply(_ context.Context, r *Round) (c Changes, err error) {
	if r.Verify || v.podMTU != r.Want.PodMTU || v.bridgedMTU != r.Want.BridgedMTU {
		var other []string
		c.Repaired, other, err = link.EnsureHosts(mtuByHost(r.Want)) // each was up and in no bridge when it was created
		if err == nil {
			v.otherMTU, v.podMTU, v.bridgedMTU = other, r.Want.PodMTU, r.Want.BridgedMTU
		}
	}
	c.Degraded = otherMTU(r.Want, v.otherMTU)
	return c, err
}

// mtuByHost are the MTUs that pods get now, by host end.
func mtuByHost(want desired.State) map[string]int {
	out := map[string]int{}
	for _, a := range want.OVSDB.Pods {
		out[a.HostIf] = want.PodMTU
		if a.Bridged {
			out[a.HostIf] = want.BridgedMTU
		}
	}
	return out
}

// otherMTU names the pods whose MTU differs from what pods get now, as after a change of the traffic mode; nil if there
// are none. hosts are their host ends, and may include those of deleted pods.
func otherMTU(want desired.State, hosts []string) error {
	var pods []string
	for _, a := range want.OVSDB.Pods {
		if slices.Contains(hosts, a.HostIf) {
			pods = append(pods, a.Pod())
		}
	}
	if len(pods) == 0 {
		return nil
	}
	slices.Sort(pods)
	return fmt.Errorf("pods have another MTU than %d, which pods get now, because the traffic mode, defaultMTU or the "+
		"underlay has changed: large packets from or to them may be lost. Delete them so that they are recreated (%s)",
		want.PodMTU, report.Some(pods))
}

// Routes applies the routes to other nodes' pods and to bridged pods.
type Routes struct{ inPlace inPlace[route.Desired] }

// Name implements Applier.
func (*Routes) Name() string { return "routes" }

// Apply implements Applier.
func (a *Routes) Apply(ctx context.Context, r *Round) (c Changes, err error) {
	same := a.inPlace.is(r.Want.Routes)
	if same && !r.Verify {
		return c, nil
	}
	changes, err := route.Apply(ctx, r.Want.Routes)
	a.inPlace.record(r.Want.Routes, err)
	if changes != (route.Changes{}) {
		c = sorted([]string{fmt.Sprintf("%+v", changes)}, r.Settled && same)
	}
	if err != nil {
		return c, fmt.Errorf("routes: %w", err)
	}
	return c, nil
}

// Ahead is the route applier that runs before the flow applier: see its Apply. g is the node's gateway applier.
func (a *Routes) Ahead(g *Gateway) *RoutesAhead { return &RoutesAhead{a, g} }

// RoutesAhead applies what Routes would apply later, where that depends on nothing in between.
type RoutesAhead struct {
	routes  *Routes
	gateway *Gateway
}

// Name implements Applier.
func (*RoutesAhead) Name() string { return "routes" }

// Apply implements Applier. It acts only if nothing but routes into the tunnel differs, as when a Node is added or
// removed, and the gateway is as desired: when its MTU rises, the kernel raises that of IPv6 routes that have the old
// one. At each change of a route, ovs-vswitchd empties the routing table of its userspace datapath and reads the
// kernel's; packets to the tunnel that need a lookup meanwhile are dropped. As all of them need one when flows have
// changed, flows are written after the routes. An error is left to Routes, which runs in the same round.
func (a *RoutesAhead) Apply(ctx context.Context, r *Round) (c Changes, _ error) {
	was, want := &a.routes.inPlace, r.Want.Routes
	if was.unknown || was.is(want) || !a.gateway.inPlace.is(r.Want.Gateway) ||
		!reflect.DeepEqual(withoutTunnelled(was.what), withoutTunnelled(want)) {
		return c, nil
	}
	c, _ = a.routes.Apply(ctx, r)
	return c, nil
}

// withoutTunnelled is d without the routes into the tunnel.
func withoutTunnelled(d route.Desired) route.Desired {
	all := d.Routes
	d.Routes = nil
	for _, r := range all {
		if !r.Tunnelled() {
			d.Routes = append(d.Routes, r)
		}
	}
	return d
}
