package checks

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/podcidr"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Report is the result about the podCIDRs of a cluster.
type Report struct {
	Ranges       []podcidr.Range `json:"ranges,omitempty"`
	RangesFrom   string          `json:"rangesFrom,omitempty"`
	Services     []netip.Prefix  `json:"services,omitempty"`
	ServicesFrom string          `json:"servicesFrom,omitempty"`
	// Allocator names what assigns podCIDRs to Nodes.
	Allocator string           `json:"allocator"`
	Nodes     []Node           `json:"nodes"`
	Problems  []report.Finding `json:"problems,omitempty"`
	// Unread is what could not be read, and is therefore unknown.
	Unread []string `json:"unread,omitempty"`
}

// Node is one line of the table.
type Node struct {
	Name      string         `json:"name"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs,omitempty"`
	Addresses []netip.Addr   `json:"addresses,omitempty"`
	// Problems are numbers in Report.Problems, from 1.
	Problems []int `json:"problems,omitempty"`
}

// Severity is that of the worst problem.
func (r *Report) Severity() report.Severity {
	worst := report.Healthy
	for _, p := range r.Problems {
		worst = max(worst, p.Severity)
	}
	return worst
}

// PodCIDRs examines the podCIDRs of all nodes. The error says why Nodes could not be read; everything else that could
// not be read is in Unread.
func PodCIDRs(ctx context.Context, client *kube.Client) (*Report, error) {
	list, err := client.Kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	nodes, bad := inputs.Nodes(list.Items)
	facts := podcidr.Read(ctx, client.Kubernetes, client.Dynamic)
	facts.Unread = append(facts.Unread, bad...)
	pods, err := podAddresses(ctx, client.Kubernetes)
	if err != nil {
		facts.Unread = append(facts.Unread, fmt.Sprintf("the Pods could not be read: %v", err))
	}
	r := &Report{Ranges: facts.Ranges, RangesFrom: facts.RangesFrom, Services: facts.Services,
		ServicesFrom: facts.ServicesFrom, Allocator: allocator(facts), Unread: facts.Unread}
	facts.Unread = nil // reported once, at the top
	r.Problems = append(podcidr.FindAll(nodes, facts, time.Now()), podcidr.OutsidePods(nodes, pods)...)
	for _, n := range list.Items {
		if node, ok := nodes[n.Name]; ok {
			r.Nodes = append(r.Nodes, Node{Name: n.Name, PodCIDRs: node.PodCIDRs, Addresses: node.Addresses,
				Problems: r.problemsOf(n.Name)})
		}
	}
	return r, nil
}

func (r *Report) problemsOf(node string) []int {
	var out []int
	for i, p := range r.Problems {
		if slices.Contains(p.About, node) {
			out = append(out, i+1)
		}
	}
	return out
}

func allocator(f podcidr.Facts) string {
	switch {
	case f.NodeIPAM != nil && f.Runs == podcidr.No:
		return "fairlead-controller is not running: " + f.RunsNot
	case f.NodeIPAM != nil && f.NodeIPAM.Stopped != "":
		return "none: fairlead-controller has stopped, because another allocator is active"
	case f.NodeIPAM != nil:
		return "fairlead-controller (nodeIPAM.enableNodeIPAM)"
	case f.Runs == podcidr.No:
		return "kube-controller-manager is not running: " + f.RunsNot
	case f.Allocates == podcidr.No:
		return "off: " + f.AllocatesNot
	case f.Allocates == podcidr.Yes:
		return "kube-controller-manager"
	}
	return "unknown"
}

// podAddresses are the addresses of pods that have one in a podCIDR: those with host network and those that request an
// IPPool are excluded.
func podAddresses(ctx context.Context, client kubernetes.Interface) ([]podcidr.PodAddress, error) {
	pooled := map[string]bool{}
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, n := range namespaces.Items {
		pooled[n.Name] = n.Annotations[api.AnnotationPools] != ""
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "status.phase=Running"})
	if err != nil {
		return nil, err
	}
	var out []podcidr.PodAddress
	for _, p := range pods.Items {
		if p.Spec.HostNetwork || pooled[p.Namespace] || p.Annotations[api.AnnotationPools] != "" {
			continue
		}
		out = append(out, podcidr.PodAddress{Pod: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, IPs: addresses(&p)})
	}
	return out, nil
}

func addresses(p *corev1.Pod) []netip.Addr {
	var out []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}
