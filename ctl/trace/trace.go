// Package trace explains the path of a packet through a node's Open vSwitch, as ovs-vswitchd simulates it. Nothing is
// sent.
package trace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ctl/inforce"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/openflow/explain"
)

// Tracer traces one packet.
type Tracer struct {
	// Client connects to the Kubernetes API, which not every trace needs.
	Client func() (*kube.Client, error)
	// Config is that of this node's agent.
	Config api.AgentConfig
	seen   ovsdb.Observed
}

// Traced is the result of a trace.
type Traced struct {
	// Service is set if a port was named.
	Service *Service `json:"service,omitempty"`

	Packet string   `json:"packet"`
	Steps  []string `json:"steps"`
	// Next says where the packet's path continues.
	Next string `json:"next,omitempty"`
}

// end is one end of the path.
type end struct {
	pod  string // namespace/name; empty: an address that no known pod has
	ips  []netip.Addr
	here bool
	// node and its address, for pods on other nodes.
	node     string
	nodeAddr netip.Addr
}

// Write writes it as text.
func (t Traced) Write(p *report.Printer) {
	if t.Service != nil {
		t.Service.Write(p)
	}
	p.Line("packet %s", t.Packet)
	for _, s := range t.Steps {
		p.Line("%s", s)
	}
	if t.Next != "" {
		p.Text("next: ", t.Next)
	}
}

// Run traces what a pod sends to a destination: an address, a pod, or a port of a Service or address.
func (t *Tracer) Run(ctx context.Context, pod, destination string) (*Traced, error) {
	db, err := nodestate.OVS(ctx, t.Config)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if t.seen, err = db.Observe(t.Config.OVSBridge); err != nil {
		return nil, err
	}
	from, err := t.find(ctx, inforce.Name(pod))
	if err != nil {
		return nil, err
	}
	if r, is := parseRequested(destination); is {
		return t.request(ctx, from, r)
	}
	var to end
	if a, aerr := netip.ParseAddr(destination); aerr == nil {
		to = t.owner(a.Unmap())
	} else if to, err = t.find(ctx, inforce.Name(destination)); err != nil {
		return nil, fmt.Errorf("%w, and %s is not an IP address either", err, destination)
	}
	return t.way(ctx, from, to)
}

// way traces the part of the path that is on this node.
func (t *Tracer) way(ctx context.Context, from, to end) (*Traced, error) {
	dst, err := common(from, to)
	if err != nil {
		return nil, err
	}
	packet, err := explain.Echo(from.ips, dst)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", from.pod, err)
	}
	ports := verdict.Ports(t.seen)
	var in string
	switch {
	case from.here:
		in = ports.FromPod(from.pod)
	case to.here:
		in, err = t.arrival(ports, from, to)
	default:
		err = fmt.Errorf("neither is on this node: pod %s is on node %s%s. Run it there", from.pod, from.node, onNodeOf(to))
	}
	if err != nil {
		return nil, err
	}
	text, err := vswitchd.Trace(ctx, t.Config.OVSRunDir, t.Config.OVSBridge, in+","+packet)
	if err != nil {
		return nil, err
	}
	out := &Traced{Packet: in + "," + packet, Steps: explain.Trace(text, ports.Names)}
	left := explain.Leaves(out.Steps, explain.TheTunnel) || explain.Leaves(out.Steps, explain.TheUplink) ||
		explain.Leaves(out.Steps, explain.TheNode)
	switch {
	case from.here && left && to.node != "":
		out.Next = fmt.Sprintf("it goes to node %s; run the same command there for the rest", to.node)
	case !from.here:
		out.Next = fmt.Sprintf("this is its arrival from node %s; run the same command there for its departure", from.node)
	}
	return out, nil
}

func onNodeOf(to end) string {
	if to.pod == "" {
		return ""
	}
	return fmt.Sprintf(", pod %s on node %s", to.pod, to.node)
}

// common is the receiver's address of a family that the sender has.
func common(from, to end) (netip.Addr, error) {
	for _, a := range to.ips {
		if slices.ContainsFunc(from.ips, func(b netip.Addr) bool { return a.Is6() == b.Is6() }) {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("pod %s and the destination have no addresses of the same family: %v and %v", from.pod, from.ips, to.ips)
}

// arrival is how a packet from a pod on another node arrives here.
func (t *Tracer) arrival(ports explain.Ports, from, to end) (string, error) {
	switch {
	case ports.Pods[to.pod].Bridged:
		return ports.OutOfUplink(to.pod)
	case t.seen.Tunnel.Present:
		return ports.OutOfTunnel(from.nodeAddr)
	}
	return ports.FromNode()
}

// local is a pod of this node.
func local(a ovsdb.PodPort) end {
	e := end{pod: a.Pod(), here: true}
	for _, p := range a.Addrs {
		e.ips = append(e.ips, p.Addr())
	}
	return e
}

// owner is the pod of this node that has the address, if any.
func (t *Tracer) owner(a netip.Addr) end {
	for _, p := range t.seen.Pods {
		if e := local(p); slices.Contains(e.ips, a) {
			e.ips = []netip.Addr{a}
			return e
		}
	}
	return end{ips: []netip.Addr{a}}
}

// find looks a pod up, on this node or in the Kubernetes API.
func (t *Tracer) find(ctx context.Context, name string) (end, error) {
	for _, p := range t.seen.Pods {
		if p.Pod() == name {
			return local(p), nil
		}
	}
	client, err := t.Client()
	if err != nil {
		return end{}, fmt.Errorf("pod %s is not on this node, and the Kubernetes API cannot be read: %w", name, err)
	}
	namespace, short, _ := strings.Cut(name, "/")
	pod, err := client.Kubernetes.CoreV1().Pods(namespace).Get(ctx, short, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return end{}, fmt.Errorf("there is no pod %s", name)
	}
	if err != nil {
		return end{}, fmt.Errorf("pod %s is not on this node; reading it from the Kubernetes API: %w", name, err)
	}
	e := end{pod: name, node: pod.Spec.NodeName}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			e.ips = append(e.ips, a)
		}
	}
	if len(e.ips) == 0 {
		return end{}, fmt.Errorf("pod %s has no address yet", name)
	}
	e.nodeAddr, err = nodeAddress(ctx, client, e.node)
	return e, err
}

// nodeAddress is the first internal address of a node. It lists: this may run with the rights of the agent, which may
// list Nodes but not get one.
func nodeAddress(ctx context.Context, client *kube.Client, node string) (netip.Addr, error) {
	list, err := client.Kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("reading Node %s: %w", node, err)
	}
	if len(list.Items) == 0 {
		return netip.Addr{}, fmt.Errorf("there is no Node %s", node)
	}
	for _, a := range list.Items[0].Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil {
			return ip, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("Node %s has no internal address", node)
}
