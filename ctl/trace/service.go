package trace

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ctl/inforce"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/explain"
)

// requested is the port that a connection is traced to: of a named Service, or of an address.
type requested struct {
	service  string // namespace/name; empty: addr
	addr     netip.Addr
	port     string // a number, or the name of a Service's port
	protocol uint8
}

// parseRequested reads "SERVICE:PORT[/UDP]", "ADDRESS:PORT[/UDP]" and "[ADDRESS]:PORT[/UDP]"; anything else is no port.
func parseRequested(text string) (r requested, is bool) {
	r.protocol = clusterip.TCP
	text, udp := strings.CutSuffix(text, "/UDP")
	if udp {
		r.protocol = clusterip.UDP
	}
	text, _ = strings.CutSuffix(text, "/TCP")
	if _, err := netip.ParseAddr(text); err == nil {
		return r, false
	}
	if to, err := netip.ParseAddrPort(text); err == nil {
		r.addr, r.port = to.Addr().Unmap(), strconv.Itoa(int(to.Port()))
		return r, true
	}
	i := strings.LastIndex(text, ":")
	if i < 1 || i == len(text)-1 {
		return r, false
	}
	r.service, r.port = inforce.Name(text[:i]), text[i+1:]
	return r, true
}

// Service is what a trace says about a Service.
type Service struct {
	Service  string         `json:"service,omitempty"`
	To       netip.AddrPort `json:"to"`
	Protocol string         `json:"protocol"`
	// Endpoints are those in force in this node's Open vSwitch.
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// Chosen is the one that the traced packet goes to; invalid if one is chosen for each connection, or there is none.
	// It is Kept if the client has had it before, by session affinity.
	Chosen netip.AddrPort `json:"chosen,omitzero"`
	Kept   bool           `json:"kept,omitempty"`
	// Connections counts the pod's connections in conntrack, by endpoint.
	Connections map[netip.AddrPort]int `json:"connections,omitempty"`
	// Why there are none.
	Why string `json:"why,omitempty"`
}

// Write writes it as text.
func (s Service) Write(p *report.Printer) {
	name := fmt.Sprintf("%s/%s", s.To, s.Protocol)
	if s.Service != "" {
		name = s.Service + ", " + name
	}
	p.Line("service %s", name)
	if s.Why != "" {
		p.Text("endpoints: none: ", s.Why)
		return
	}
	p.Text("endpoints: ", report.Join(s.Endpoints, ", "))
	switch {
	case s.Kept:
		p.Line("chosen: %s, which the pod has had before (session affinity)", s.Chosen)
	case s.Chosen.IsValid() && len(s.Endpoints) > 1:
		p.Line("chosen: %s, which the pod then keeps (session affinity)", s.Chosen)
	case s.Chosen.IsValid():
		p.Line("chosen: %s", s.Chosen)
	default:
		p.Line("chosen: for each connection separately; below is the path to the first")
	}
	for _, e := range slices.SortedFunc(maps.Keys(s.Connections), netip.AddrPort.Compare) {
		p.Line("in conntrack: %s of this pod to %s", report.Count(s.Connections[e], "1 connection", "%d connections"), e)
	}
}

// request traces the first packet of a connection to a port.
func (t *Tracer) request(ctx context.Context, from end, r requested) (*Traced, error) {
	if !from.here {
		return nil, fmt.Errorf("pod %s is on node %s, where its connections are translated. Run it there", from.pod, from.node)
	}
	s, view, err := t.resolve(ctx, from, r)
	if err != nil {
		return nil, err
	}
	if err := t.endpoints(ctx, s, view, r.protocol); err != nil {
		return nil, err
	}
	out := &Traced{Service: s}
	text, err := t.packet(ctx, out, from, s.To, r.protocol)
	if err != nil {
		return nil, err
	}
	out.Packet = text.packet
	if len(s.Endpoints) == 0 {
		return out, nil
	}
	if s.Connections, err = t.connections(ctx, from, s, explain.Zone(text.trace)); err != nil {
		return nil, err
	}
	to := s.Endpoints[0]
	if s.Chosen, s.Kept = explain.Chosen(text.trace); s.Chosen.IsValid() {
		to = s.Chosen
	} else {
		out.Steps = append(out.Steps, "to "+to.String()+", as if it had been sent there:")
		if _, err := t.packet(ctx, out, from, to, r.protocol); err != nil {
			return nil, err
		}
	}
	if t.owner(to.Addr()).pod == "" {
		out.Next = fmt.Sprintf("the endpoint %s is not a pod of this node; if it is one of another node, run "+
			`"fairleadctl trace %s %s" there for the rest`, to, from.pod, to.Addr())
	}
	return out, nil
}

// connections counts the pod's connections to the Service, by endpoint.
func (t *Tracer) connections(ctx context.Context, from end, s *Service, zone string) (
	map[netip.AddrPort]int, error) {
	i := slices.IndexFunc(from.ips, func(a netip.Addr) bool { return a.Is4() == s.To.Addr().Is4() })
	if zone == "" || i < 0 {
		return nil, nil
	}
	dump, err := vswitchd.Appctl(ctx, t.Config.OVSRunDir, "dpctl/dump-conntrack", "zone="+zone)
	return explain.Connections(dump, from.ips[i], s.To, strings.ToLower(s.Protocol)), err
}

// tracedText is one trace, as ovs-vswitchd prints it.
type tracedText struct{ packet, trace string }

// packet traces one packet, and adds its steps.
func (t *Tracer) packet(ctx context.Context, out *Traced, from end, to netip.AddrPort, protocol uint8) (
	tracedText, error) {
	packet, err := explain.Request(from.ips, to, protocol)
	if err != nil {
		return tracedText{}, fmt.Errorf("pod %s: %w", from.pod, err)
	}
	ports := verdict.Ports(t.seen)
	packet = ports.FromPod(from.pod) + "," + packet
	text, err := vswitchd.Trace(ctx, t.Config.OVSRunDir, t.Config.OVSBridge, packet)
	out.Steps = append(out.Steps, explain.Trace(text, ports.Names)...)
	return tracedText{packet, text}, err
}

// resolve finds the address and the port's number, and for a named Service what the Kubernetes API has about the port.
func (t *Tracer) resolve(ctx context.Context, from end, r requested) (*Service, *inforce.Service, error) {
	s := &Service{Service: r.service, Protocol: inforce.Protocol(r.protocol)}
	if r.service == "" {
		n, err := strconv.ParseUint(r.port, 10, 16)
		s.To = netip.AddrPortFrom(r.addr, uint16(n))
		return s, nil, err
	}
	client, err := t.Client()
	if err != nil {
		return nil, nil, fmt.Errorf("reading Service %s needs the Kubernetes API (%w); without it, name a ClusterIP: trace %s 10.96.0.1:443",
			r.service, err, from.pod)
	}
	view, err := inforce.Read(ctx, client, t.Config, r.service)
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(view.Ports, func(p inforce.Port) bool {
		return p.Protocol == s.Protocol && (p.Name == r.port || strconv.Itoa(int(p.To.Port())) == r.port) &&
			slices.ContainsFunc(from.ips, func(a netip.Addr) bool { return a.Is4() == p.To.Addr().Is4() })
	})
	if i < 0 {
		var has []string
		for _, p := range view.Ports {
			has = append(has, p.String())
		}
		return nil, nil, fmt.Errorf("Service %s has no port %s/%s on a ClusterIP of a family that pod %s has: %s %s", r.service,
			r.port, s.Protocol, from.pod, strings.Join(has, ", "), view.Note)
	}
	s.To = view.Ports[i].To
	view.Ports = view.Ports[i : i+1]
	return s, &view, nil
}

// endpoints fills in the endpoints in force, or else why there are none.
func (t *Tracer) endpoints(ctx context.Context, s *Service, view *inforce.Service, protocol uint8) error {
	if t.Config.Services != api.ServicesOVS {
		s.Why = "with services: host, Open vSwitch translates nothing; the packet goes to kube-proxy on the node"
		return nil
	}
	sw, err := nodestate.Switch(ctx, t.Config)
	if err != nil {
		return err
	}
	defer sw.Close()
	if s.Endpoints, err = sw.Endpoints(ctx, s.To, protocol); err != nil || len(s.Endpoints) > 0 {
		return err
	}
	s.Why = "Open vSwitch on this node does not translate this port. The node refuses it, unless kube-proxy translates it"
	if view != nil {
		s.Why = view.Ports[0].WhyNone() + ". The node refuses it"
	}
	return nil
}
