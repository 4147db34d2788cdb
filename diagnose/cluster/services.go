package cluster

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Service is what matters here of a Service.
type Service struct {
	inputs.Service
	// Entrances are entries other than ClusterIPs: "NodePort 30080", "external IP 192.0.2.1". Only kube-proxy serves them.
	Entrances []string
}

func (s Service) String() string { return s.Namespace + "/" + s.Name }

// Services are all Services of a cluster with their endpoints.
type Services struct {
	All    []Service
	Slices []inputs.EndpointSlice
	// Ranges are those of the ServiceCIDR objects; none before Kubernetes 1.33.
	Ranges []netip.Prefix
	// Nodes are the names of all Nodes.
	Nodes map[string]bool
}

// ReadServices reads them. It leaves out invalid ones, as agents do, which log them.
func ReadServices(ctx context.Context, client *kube.Client) (out Services, err error) {
	all, api := metav1.ListOptions{}, client.Kubernetes
	err = each(ctx, all, api.CoreV1().Services(metav1.NamespaceAll).List, func(s *corev1.Service) {
		if read, rerr := inputs.ServiceFrom(s); rerr == nil {
			out.All = append(out.All, Service{Service: read, Entrances: entrances(s)})
		}
	})
	if err != nil {
		return out, Explain("Services", err)
	}
	err = each(ctx, all, api.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List, func(s *discoveryv1.EndpointSlice) {
		if read, rerr := inputs.EndpointSliceFrom(s); rerr == nil {
			out.Slices = append(out.Slices, read)
		}
	})
	if err != nil {
		return out, Explain("EndpointSlices", err)
	}
	err = each(ctx, all, api.NetworkingV1().ServiceCIDRs().List, func(c *networkingv1.ServiceCIDR) {
		for _, text := range c.Spec.CIDRs {
			if p, perr := netip.ParsePrefix(text); perr == nil {
				out.Ranges = append(out.Ranges, p)
			}
		}
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return out, Explain("ServiceCIDRs", err)
	}
	out.Nodes = map[string]bool{}
	err = each(ctx, all, api.CoreV1().Nodes().List, func(n *corev1.Node) { out.Nodes[n.Name] = true })
	if err != nil {
		err = Explain("Nodes", err)
	}
	return out, err
}

func entrances(s *corev1.Service) (out []string) {
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, fmt.Sprintf("NodePort %d", p.NodePort))
		}
	}
	for _, ip := range s.Spec.ExternalIPs {
		out = append(out, "external IP "+ip)
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			out = append(out, "load balancer "+i.IP)
		}
	}
	return out
}
