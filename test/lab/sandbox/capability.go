package sandbox

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// portMapping and bandwidth have the form of CNI's well-known capabilities (CONVENTIONS.md of the CNI project).
type portMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// bandwidth is in bits per second, its bursts in bits.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// capabilities are the arguments that kubelet and containerd pass to plugins that declare them: host ports from the
// Pod's containers, rates from its annotations.
func capabilities(pod *corev1.Pod) (map[string]any, error) {
	args := map[string]any{}
	if ports := portMappings(pod); len(ports) > 0 {
		args["portMappings"] = ports
	}
	b, err := bandwidthOf(pod)
	if err != nil {
		return nil, err
	}
	if b != nil {
		args["bandwidth"] = b
	}
	return args, nil
}

func portMappings(pod *corev1.Pod) []portMapping {
	var out []portMapping
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			protocol := strings.ToLower(string(p.Protocol))
			if protocol == "" {
				protocol = "tcp"
			}
			out = append(out, portMapping{p.HostPort, p.ContainerPort, protocol, p.HostIP})
		}
	}
	return out
}

func bandwidthOf(pod *corev1.Pod) (*bandwidth, error) {
	in, err := rate(pod, "kubernetes.io/ingress-bandwidth")
	if err != nil {
		return nil, err
	}
	out, err := rate(pod, "kubernetes.io/egress-bandwidth")
	if err != nil || in == 0 && out == 0 {
		return nil, err
	}
	b := &bandwidth{}
	if in > 0 {
		b.IngressRate, b.IngressBurst = in, math.MaxUint32 // the burst that containerd sets
	}
	if out > 0 {
		b.EgressRate, b.EgressBurst = out, math.MaxUint32
	}
	return b, nil
}

func rate(pod *corev1.Pod, annotation string) (uint64, error) {
	text, ok := pod.Annotations[annotation]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() <= 0 {
		return 0, fmt.Errorf("annotation %s: %q is not a rate such as 10M", annotation, text)
	}
	return uint64(q.Value()), nil
}
