package scale

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeName is the name of Node(i).
func NodeName(i int) string { return fmt.Sprintf("worker-%d.example.internal", i) }

// Node is the i-th of up to 16,384 Nodes, as large as kubelet's, about 10 kB: labels, annotations, conditions and the
// names of 50 images. Its podCIDR is in 10.128.0.0/9, its InternalIP in 100.64.0.0/10.
func Node(i int) *corev1.Node {
	cidr := fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName(i), Labels: map[string]string{
			"kubernetes.io/hostname": NodeName(i), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"topology.kubernetes.io/zone": fmt.Sprint("zone", i%3)},
			Annotations: map[string]string{"csi.volume.kubernetes.io/nodeid": strings.Repeat("x", 100)}},
		Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{}, Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("100.%d.%d.10", 64+i/256, i%256)},
			{Type: corev1.NodeHostName, Address: NodeName(i)}},
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", OSImage: "Debian GNU/Linux 12 (bookworm)",
				ContainerRuntimeVersion: "containerd://2.4.2", Architecture: "amd64", OperatingSystem: "linux"}}}
	for j := range 12 {
		n.Labels[fmt.Sprintf("topology.example.com/label-%d", j)] = fmt.Sprintf("value-%d-%d", i, j)
		n.Status.Capacity[corev1.ResourceName(fmt.Sprintf("example.com/r%d", j))] = resource.MustParse("12Gi")
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Status: corev1.ConditionFalse,
			Type: corev1.NodeConditionType(fmt.Sprintf("C%d", j)), Message: strings.Repeat("message ", 10)})
	}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady,
		Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
	for j := range 50 {
		image := fmt.Sprintf("registry.example.com/some/path/image-%d", j)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 1 << 27,
			Names: []string{fmt.Sprintf("%s@sha256:%064x", image, i*j), fmt.Sprintf("%s:v1.%d", image, i)}})
	}
	return n
}

// Pod is the i-th Pod of the namespace default, on the Node of that name.
func Pod(i int, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod", i), Labels: map[string]string{"app": "scale"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Image: "registry.example.com/team-1/some-application:v1.2.3", Args: []string{"serve", "--port=8080"}}}}}
}
