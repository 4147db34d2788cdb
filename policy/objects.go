package policy

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/api"
)

// configHash is the annotation of static pods' objects (kubelet's ConfigHashAnnotationKey).
const configHash = "kubernetes.io/config.hash"

// FromPod returns what policies see of a Pod on the node of that name; ok is false if the pod has ended: its addresses
// may belong to another pod. Its slices and maps are kept: do not modify them.
func FromPod(o *corev1.Pod, node string) (p Pod, ok bool) {
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return Pod{}, false
	}
	p = Pod{PodKey: PodKey{o.Namespace, o.Name}, UID: string(o.UID), ConfigHash: o.Annotations[configHash],
		Labels: o.Labels, HostNetwork: o.Spec.HostNetwork,
		Created: o.CreationTimestamp.Unix(), Local: o.Spec.NodeName == node}
	ips := o.Status.PodIPs
	if len(ips) == 0 {
		ips = []corev1.PodIP{{IP: o.Status.PodIP}}
	}
	for _, ip := range ips {
		if a, err := netip.ParseAddr(ip.IP); err == nil { // an empty one: not assigned yet
			p.Addrs = append(p.Addrs, a.Unmap())
		}
	}
	for _, c := range o.Spec.Containers {
		p.addPorts(c)
	}
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways { // a sidecar
			p.addPorts(c)
		}
	}
	return p, true
}

// addPorts adds the named ports of a container.
func (p *Pod) addPorts(c corev1.Container) {
	for _, port := range c.Ports {
		protocol, err := protocolOf(port.Protocol)
		to := PodPort{NamedPort{protocol, port.Name}, uint16(port.ContainerPort)}
		if err == nil && port.Name != "" && !slices.Contains(p.Ports, to) {
			p.Ports = append(p.Ports, to)
		}
	}
}

// FromNamespace returns what policies see of a Namespace. It always has the name label, which the API server adds.
func FromNamespace(o *corev1.Namespace) Namespace {
	n := Namespace{Name: o.Name, Labels: o.Labels, LogDenied: o.Annotations[api.AnnotationLogDenied] == "true"}
	if n.Labels[corev1.LabelMetadataName] != o.Name {
		n.Labels = map[string]string{}
		maps.Copy(n.Labels, o.Labels)
		n.Labels[corev1.LabelMetadataName] = o.Name
	}
	return n
}

// FromNode returns what policies see of a Node: the addresses in its status, and its gateway addresses in the pod
// network, the first of each podCIDR.
func FromNode(o *corev1.Node) Node {
	n := Node{Name: o.Name, Labels: o.Labels}
	for _, a := range o.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // others are names
			n.Addrs = append(n.Addrs, addr.Unmap())
		}
	}
	cidrs := o.Spec.PodCIDRs
	if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
		cidrs = []string{o.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		if cidr, err := netip.ParsePrefix(text); err == nil { // an invalid one is reported where Nodes are read
			n.Addrs = append(n.Addrs, cidr.Masked().Addr().Next())
		}
	}
	slices.SortFunc(n.Addrs, netip.Addr.Compare)
	n.Addrs = slices.Compact(n.Addrs)
	return n
}
