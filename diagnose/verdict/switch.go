package verdict

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/openflow/explain"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Connection is a new connection; an end that is a pod is named. Without a Protocol it is a ping.
type Connection struct {
	FromPod, ToPod policy.PodKey
	From, To       netip.Addr
	Protocol       policy.Protocol
	Port           uint16
}

// Switch is this node's Open vSwitch.
type Switch struct {
	config api.AgentConfig
	seen   ovsdb.Observed
}

// Open reads from the node's Open vSwitch which pods it has.
func Open(ctx context.Context, cfg api.AgentConfig) (*Switch, error) {
	db, err := nodestate.OVS(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	seen, err := db.Observe(cfg.OVSBridge)
	if err != nil {
		return nil, err
	}
	return &Switch{config: cfg, seen: seen}, nil
}

// Has reports whether a pod is on this node.
func (s *Switch) Has(key policy.PodKey) bool {
	return slices.ContainsFunc(s.seen.Pods, func(p ovsdb.PodPort) bool { return p.Pod() == key.String() })
}

// Pods are the pods on this node.
func (s *Switch) Pods() (out []policy.PodKey) {
	for _, p := range s.seen.Pods {
		if p.PodName != "" {
			out = append(out, policy.PodKey{Namespace: p.PodNamespace, Name: p.PodName})
		}
	}
	return out
}

// Ports are the ports of an observed bridge.
func Ports(o ovsdb.Observed) explain.Ports {
	p := explain.NewPorts()
	for _, one := range []struct {
		port   ovsdb.Port
		called string
	}{{o.Gateway, explain.TheNode}, {o.Tunnel, explain.TheTunnel}, {o.Uplink, explain.TheUplink}} {
		if one.port.Present {
			p.Add(one.port.Name, one.called)
		}
	}
	for _, a := range o.Pods {
		p.AddPod(a.Pod(), explain.Pod{Port: a.HostIf, MAC: a.MAC.String(), Bridged: a.Bridged, VLAN: a.VLAN})
	}
	return p
}

// Answer is what happens to a connection's first packet, according to the switch and to the rules of its ends on this
// node.
type Answer struct {
	Packet string   `json:"packet"`
	Steps  []string `json:"steps"`
	// DeniedIn is the policy table that drops it, if one does.
	DeniedIn string `json:"deniedIn,omitempty"`
	// Differs says how the switch deviates from the rules, if it does.
	Differs string `json:"differs,omitempty"`
}

// Evaluate has the switch simulate a connection's first packet, on its path through this node, and compares the result
// with the rules.
func (s *Switch) Evaluate(ctx context.Context, cluster *Cluster, c Connection) (a Answer, err error) {
	ports := Ports(s.seen)
	in, err := s.enters(ports, cluster, c)
	if err != nil {
		return a, err
	}
	packet, err := explain.Echo([]netip.Addr{c.From}, c.To)
	if c.Protocol != 0 {
		packet, err = explain.Request([]netip.Addr{c.From}, netip.AddrPortFrom(c.To, c.Port), uint8(c.Protocol))
	}
	if err != nil {
		return a, err
	}
	a.Packet = in + "," + packet
	text, err := vswitchd.Trace(ctx, s.config.OVSRunDir, s.config.OVSBridge, a.Packet)
	if err != nil {
		return a, err
	}
	a.Steps, a.DeniedIn = explain.Trace(text, ports.Names), explain.DeniedIn(text)
	egress, ingress := s.verdict(cluster, policy.Egress, c), s.verdict(cluster, policy.Ingress, c)
	passes := !explain.Dropped(text)
	reaches := explain.Leaves(a.Steps, "pod "+c.ToPod.String())
	switch {
	case a.DeniedIn != "" && egress != policy.Deny && ingress != policy.Deny:
		a.Differs = fmt.Sprintf("Open vSwitch denies it, in %s, but no rule does", a.DeniedIn)
	case passes && egress == policy.Deny:
		a.Differs = fmt.Sprintf("the rules of %s deny it as egress, but Open vSwitch does not", c.FromPod)
	case reaches && ingress == policy.Deny:
		a.Differs = fmt.Sprintf("the rules of %s deny it as ingress, but Open vSwitch does not", c.ToPod)
	}
	return a, nil
}

// enters is how the packet enters the bridge.
func (s *Switch) enters(ports explain.Ports, cluster *Cluster, c Connection) (string, error) {
	switch {
	case s.Has(c.FromPod):
		return ports.FromPod(c.FromPod.String()), nil
	case !s.Has(c.ToPod):
		return "", fmt.Errorf("neither end is a pod on this node")
	case ports.Pods[c.ToPod.String()].Bridged:
		return ports.OutOfUplink(c.ToPod.String())
	}
	node, known := cluster.nodes[cluster.homes[c.FromPod]]
	if known && s.seen.Tunnel.Present {
		return ports.OutOfTunnel(node)
	}
	return ports.FromNode()
}

// verdict is the verdict at one end, 0 if that is not a pod on this node.
func (s *Switch) verdict(cluster *Cluster, d policy.Direction, c Connection) policy.Verdict {
	about := compile.Connection{Direction: d, Pod: c.FromPod, Peer: c.To, Protocol: c.Protocol, Port: c.Port}
	if d == policy.Ingress {
		about.Pod, about.Peer = c.ToPod, c.From
	}
	if !s.Has(about.Pod) {
		return 0
	}
	v, _ := cluster.Compiler.Judge(about)
	return v.Verdict
}
