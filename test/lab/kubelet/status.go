package kubelet

import (
	"encoding/json"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// node is the Node that a kubelet registers.
func node(name string, addrs []netip.Addr) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}}}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
	now := metav1.Now()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady", Message: "a node of a lab", LastHeartbeatTime: now, LastTransitionTime: now}}
	room := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")}
	n.Status.Capacity, n.Status.Allocatable = room, room
	return n
}

// patchType merges lists of conditions by their type.
const patchType = types.StrategicMergePatchType

// statusPatch is the patch from the Pod's status to the sandbox's state. It is nil if nothing changes.
func statusPatch(pod *corev1.Pod, rec *sandbox.Record, nodeAddrs []netip.Addr) ([]byte, error) {
	after := pod.DeepCopy()
	setStatus(after, rec, nodeAddrs)
	if pod.Status.Phase == after.Status.Phase && slices.Equal(pod.Status.PodIPs, after.Status.PodIPs) {
		return nil, nil
	}
	before := pod.DeepCopy()
	before.UID = "" // so that it is in the patch, which then fails for another Pod of the same name
	oldJSON, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	newJSON, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(oldJSON, newJSON, &corev1.Pod{})
}

func setStatus(pod *corev1.Pod, rec *sandbox.Record, nodeAddrs []netip.Addr) {
	s := &pod.Status
	s.Phase, s.PodIP, s.PodIPs, s.HostIP, s.HostIPs = corev1.PodPending, "", nil, "", nil
	for _, a := range nodeAddrs {
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: a.String()})
	}
	if len(s.HostIPs) > 0 {
		s.HostIP = s.HostIPs[0].IP
	}
	for _, ip := range rec.IPs {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if rec.State == sandbox.HostNetwork {
		for _, h := range s.HostIPs {
			s.PodIPs = append(s.PodIPs, corev1.PodIP(h))
		}
	}
	ready := corev1.ConditionFalse
	if len(s.PodIPs) > 0 {
		s.Phase, s.PodIP, ready = corev1.PodRunning, s.PodIPs[0].IP, corev1.ConditionTrue
	}
	begun := metav1.NewTime(rec.Since).Rfc3339Copy()
	s.StartTime, s.Conditions, s.ContainerStatuses = &begun, nil, nil
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized,
		corev1.PodReadyToStartContainers, corev1.ContainersReady, corev1.PodReady} {
		value := ready
		if c == corev1.PodScheduled {
			value = corev1.ConditionTrue
		}
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: c, Status: value, LastTransitionTime: begun})
	}
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, containerStatus(c, rec, s.Phase == corev1.PodRunning))
	}
}

// containerStatus reports a container as running, though a lab starts none: pods have only a network.
func containerStatus(c corev1.Container, rec *sandbox.Record, running bool) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: running, Started: &running}
	if running {
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(rec.Since)}
		s.ContainerID = "lab://" + rec.ContainerID
	} else {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return s
}
