package controlplane

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kcmPod is the Pod that represents kube-controller-manager, like kubelet's mirror Pod of a static Pod: it shows the
// component's command. It belongs to no node, so no controller deletes it.
const kcmPod = "kube-controller-manager-control-plane"

// showTimeout is the time limit for kube-controller-manager to create the ServiceAccount that a Pod needs.
const showTimeout = time.Minute

// show creates the Pod of kube-controller-manager with this command.
func (p Plane) show(ctx context.Context, command []string) error {
	client, err := p.Client()
	if err != nil {
		return err
	}
	pods := client.CoreV1().Pods(metav1.NamespaceSystem)
	now := int64(0)
	err = pods.Delete(ctx, kcmPod, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("replacing Pod kube-system/%s: %w", kcmPod, err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: kcmPod, Labels: map[string]string{"component": "kube-controller-manager"},
			Annotations: map[string]string{"kubernetes.io/config.source": "file"}},
		Spec: corev1.PodSpec{HostNetwork: true, SchedulerName: "none", Containers: []corev1.Container{
			{Name: "kube-controller-manager", Image: "none", Command: command}}},
	}
	for limit := time.Now().Add(showTimeout); ; time.Sleep(100 * time.Millisecond) {
		_, err = pods.Create(ctx, pod, metav1.CreateOptions{})
		if err == nil || time.Now().After(limit) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("making Pod kube-system/%s: %w", kcmPod, err)
	}
	return p.showReady(ctx, corev1.ConditionTrue)
}

// showReady writes to the Pod's status whether kube-controller-manager runs. Before the first start there is no Pod.
func (p Plane) showReady(ctx context.Context, ready corev1.ConditionStatus) error {
	client, err := p.Client()
	if err != nil {
		return err
	}
	pods := client.CoreV1().Pods(metav1.NamespaceSystem)
	pod, err := pods.Get(ctx, kcmPod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("the status of Pod kube-system/%s: %w", kcmPod, err)
	}
	return nil
}
