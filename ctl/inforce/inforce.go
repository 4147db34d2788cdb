// Package inforce shows where a node sends connections to a Service: it compares what the Kubernetes API has with the
// flows and groups of the node's Open vSwitch. It changes nothing.
package inforce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fairlead-cni/fairlead/agent/services"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
)

// Name is NAMESPACE/NAME of an argument with or without a Namespace.
func Name(arg string) string {
	if strings.Contains(arg, "/") {
		return arg
	}
	return metav1.NamespaceDefault + "/" + arg
}

// Service is a Service as this node serves it.
type Service struct {
	Service string `json:"service"`
	Node    string `json:"node"`
	// Translated: by Open vSwitch, as set by services: ovs.
	Translated bool   `json:"translated"`
	Ports      []Port `json:"ports"`
	// Note is about the Service as a whole.
	Note string `json:"note,omitempty"`
}

// Port is a port of a ClusterIP.
type Port struct {
	To        netip.AddrPort `json:"to"`
	Protocol  string         `json:"protocol"`
	Name      string         `json:"name,omitempty"`
	Endpoints []Endpoint     `json:"endpoints,omitempty"`
	// Why no endpoint is in force; empty: there is one.
	Why string `json:"why,omitempty"`
}

// Endpoint is an endpoint of a Port.
type Endpoint struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	Node     string         `json:"node,omitempty"`
	InForce  bool           `json:"inForce"`
	Why      string         `json:"why,omitempty"`
}

// Write writes it as a table.
func (v Service) Write(p *report.Printer) {
	p.Line("Service %s on node %s", v.Service, v.Node)
	if v.Note != "" {
		p.Text("note: ", v.Note)
	}
	if len(v.Ports) == 0 {
		return
	}
	rows := [][]string{{"TO", "ENDPOINT", "ON", "IN FORCE"}}
	for _, port := range v.Ports {
		to := port.String()
		for _, e := range port.Endpoints {
			is := "yes"
			if e.Why != "" { // also for one that is in force and should not be
				is = map[bool]string{true: "yes, but ", false: "no: "}[e.InForce] + e.Why
			}
			rows = append(rows, []string{to, e.Endpoint.String(), e.Node, is})
		}
		if len(port.Endpoints) == 0 {
			rows = append(rows, []string{to, "", "", "no: " + port.Why})
		}
	}
	p.Table(rows...)
}

// String returns ADDRESS:PORT/PROTOCOL.
func (p Port) String() string { return p.To.String() + "/" + p.Protocol }

// Read compares what the Kubernetes API has of a Service with what this node's Open vSwitch does.
func Read(ctx context.Context, client *kube.Client, cfg api.AgentConfig, name string) (Service, error) {
	svc, endpoints, err := readService(ctx, client, name)
	if err != nil {
		return Service{}, err
	}
	here, err := thisNode(ctx, client, cfg)
	if err != nil {
		return Service{}, err
	}
	v := Service{Service: name, Node: here.Name, Translated: cfg.Services == api.ServicesOVS}
	var sw *openflow.Switch
	if v.Translated {
		if sw, err = nodestate.Switch(ctx, cfg); err != nil {
			return v, err
		}
		defer sw.Close()
	}
	read, err := inputs.ServiceFrom(svc)
	if err != nil {
		return v, err
	}
	v.Note = serviceNote(read, v.Translated)
	all := services.Explain(read, endpoints, here)
	for _, ip := range read.ClusterIPs {
		for _, p := range read.Ports {
			port := Port{To: netip.AddrPortFrom(ip, p.Port), Protocol: Protocol(p.Protocol), Name: p.Name}
			known := all[services.Key{Addr: ip, Protocol: p.Protocol, Port: p.Port}]
			var has []netip.AddrPort
			if sw != nil {
				if has, err = sw.Endpoints(ctx, port.To, p.Protocol); err != nil {
					return v, err
				}
			}
			port.fill(known, has, sw != nil && clusterip.Translated(p.Protocol))
			port.explain(svc, endpoints)
			v.Ports = append(v.Ports, port)
		}
	}
	return v, nil
}

// serviceNote is about a Service as a whole.
func serviceNote(s inputs.Service, translated bool) string {
	switch {
	case len(s.ClusterIPs) == 0:
		return "it has no ClusterIP that Fairlead would translate: it is headless, of type ExternalName, or left to another proxy " +
			"(service.kubernetes.io/service-proxy-name)"
	case !translated:
		return "kube-proxy translates on this node (services: host): this is what the Kubernetes API has"
	case s.Affinity > clusterip.MostAffinity:
		return fmt.Sprintf("its session affinity is set to last %s, but lasts %s: Open vSwitch has no longer timeouts "+
			"(fairleadctl doctor services)", s.Affinity, clusterip.MostAffinity)
	}
	return ""
}

// fill compares the API's endpoints with those in Open vSwitch, if Open vSwitch translates the port.
func (p *Port) fill(known []services.Endpoint, has []netip.AddrPort, translated bool) {
	most := len(has) >= openflow.MaxBuckets
	for _, e := range known {
		v := Endpoint{Endpoint: e.To, Node: e.Node, InForce: e.Why == "", Why: e.Why}
		i := slices.Index(has, e.To)
		switch {
		case translated && v.InForce && i < 0 && most:
			v.InForce, v.Why = false, fmt.Sprintf("Open vSwitch takes at most %d endpoints of a port, and has others", openflow.MaxBuckets)
		case translated && v.InForce && i < 0:
			v.InForce, v.Why = false, "Open vSwitch does not have it (is the agent ready? fairleadctl doctor agent)"
		case !v.InForce && i >= 0:
			v.InForce, v.Why = true, ""
		}
		if i >= 0 {
			has = slices.Delete(slices.Clone(has), i, i+1)
		}
		p.Endpoints = append(p.Endpoints, v)
	}
	for _, e := range has {
		p.Endpoints = append(p.Endpoints, Endpoint{Endpoint: e, InForce: true, Why: "the Kubernetes API no longer has it"})
	}
}

// explain says why no endpoint is in force.
func (p *Port) explain(svc *corev1.Service, all []inputs.EndpointSlice) {
	selector := labels.FormatLabels(svc.Spec.Selector)
	empty := !slices.ContainsFunc(all, func(s inputs.EndpointSlice) bool { return len(s.Endpoints) > 0 })
	switch {
	case slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.InForce }):
	case len(p.Endpoints) > 0:
		p.Why = report.Count(len(p.Endpoints), "its endpoint is not in force", "none of its %d endpoints is in force")
	case p.Protocol == "SCTP":
		p.Why = "SCTP is left to kube-proxy"
	case empty && len(svc.Spec.Selector) > 0:
		p.Why = "no running Pod has the labels of its selector, " + selector
	case empty:
		p.Why = "it has no selector, and no EndpointSlice with endpoints has the label " + discoveryv1.LabelServiceName + "=" + svc.Name
	default:
		p.Why = fmt.Sprintf("no EndpointSlice of this family has its port (named %q)", p.Name)
	}
}

// readService reads a Service and its EndpointSlices. It lists: the agent, whose rights this may have, may not get any.
func readService(ctx context.Context, client *kube.Client, name string) (
	*corev1.Service, []inputs.EndpointSlice, error) {
	namespace, short, _ := strings.Cut(name, "/")
	found, err := client.Kubernetes.CoreV1().Services(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + short})
	if err != nil {
		return nil, nil, fmt.Errorf("reading Service %s: %w", name, err)
	}
	if len(found.Items) == 0 {
		return nil, nil, fmt.Errorf("there is no Service %s", name)
	}
	list, err := client.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + short})
	if err != nil {
		return nil, nil, fmt.Errorf("reading EndpointSlices of Service %s: %w", name, err)
	}
	var all []inputs.EndpointSlice
	for i := range list.Items {
		s, err := inputs.EndpointSliceFrom(&list.Items[i])
		if err != nil {
			return nil, nil, err
		}
		all = append(all, s)
	}
	return &found.Items[0], all, nil
}

// thisNode is the node that the local agent serves, with its zone.
func thisNode(ctx context.Context, client *kube.Client, cfg api.AgentConfig) (services.Node, error) {
	s, err := nodestate.Agent(ctx, cfg)
	if err != nil {
		return services.Node{}, fmt.Errorf("querying the agent for the name of this node: %w", err)
	}
	list, err := client.Kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.Node})
	if err != nil {
		return services.Node{}, fmt.Errorf("reading Node %s: %w", s.Node, err)
	}
	here := services.Node{Name: s.Node}
	for i := range list.Items {
		here.Zone = list.Items[i].Labels[corev1.LabelTopologyZone]
	}
	return here, nil
}

// Protocol is the name of the protocol with that IANA number.
func Protocol(protocol uint8) string {
	switch protocol {
	case clusterip.TCP:
		return "TCP"
	case clusterip.UDP:
		return "UDP"
	}
	return "SCTP"
}

// WhyNone says why no endpoint is in force, with the reason for each.
func (p Port) WhyNone() string {
	var each []string
	for _, e := range p.Endpoints {
		each = append(each, e.Endpoint.String()+" is "+e.Why)
	}
	if len(each) == 0 {
		return p.Why
	}
	return p.Why + ": " + report.Some(each)
}
