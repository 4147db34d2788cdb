// Package kubelet does what the kubelets of a lab's nodes do with the Kubernetes API: they register their Nodes, watch
// the Pods of their nodes, report each Pod's status, and delete the object of a Pod that has ended. Sandboxes are
// created by package runner.
package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// Kubelet represents the kubelets of all nodes.
type Kubelet struct {
	client kubernetes.Interface
	addrs  func(node string) []netip.Addr
	events record.EventRecorder
	log    logr.Logger
}

// New returns a Kubelet that uses client. addrs returns the addresses of a node, and none for a name that is not a node
// of the lab.
func New(client kubernetes.Interface, addrs func(string) []netip.Addr, log logr.Logger) *Kubelet {
	return &Kubelet{client: client, addrs: addrs, log: log}
}

// callTimeout is the time limit of one call, for an API server that hangs; registerTimeout is that of a registration,
// which is not retried: on a busy machine a call can take seconds.
const callTimeout, registerTimeout = 5 * time.Second, time.Minute

// retry is the pause before a watch that ended is restarted.
const retry = 500 * time.Millisecond

// Register creates the Node if there is none of this name, as kubelet does when it starts, with its addresses. Its
// podCIDRs are assigned by kube-controller-manager.
func (k *Kubelet) Register(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err := k.client.CoreV1().Nodes().Create(ctx, node(name, k.addrs(name)), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("registering node %s: %w", name, err)
	}
	return nil
}

// List returns all Pods that are to run on a node.
func (k *Kubelet) List(ctx context.Context) ([]*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := k.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the Pods: %w", err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if list.Items[i].Annotations["kubernetes.io/config.source"] != "file" { // a mirror Pod of the control plane
			pods = append(pods, &list.Items[i])
		}
	}
	return pods, nil
}

// Changes watches all Pods. The watch only signals that something changed; List returns the Pods. From then on Report
// sends Events, until ctx ends.
func (k *Kubelet) Changes(ctx context.Context) (<-chan struct{}, error) {
	sender := record.NewBroadcaster(record.WithContext(ctx))
	sender.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: k.client.CoreV1().Events("")})
	k.events = sender.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet"})
	changes := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			if err := k.watch(ctx, changes); err != nil && ctx.Err() == nil {
				k.log.Error(err, "the API server cannot be watched: pods stay as they are")
			}
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
		}
	}()
	return changes, nil
}

func (k *Kubelet) watch(ctx context.Context, changes chan<- struct{}) error {
	watch, err := k.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for range watch.ResultChan() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	return nil
}

// Report writes the Pod's status, and an Event for each failed attempt.
func (k *Kubelet) Report(ctx context.Context, pod *corev1.Pod, rec *sandbox.Record) error {
	if rec.State == sandbox.Waiting && rec.LastError != "" {
		k.events.Eventf(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox",
			"Failed to create pod sandbox: %s", rec.LastError)
	}
	patch, err := statusPatch(pod, rec, k.addrs(rec.Node))
	if err != nil || patch == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, patchType, patch, metav1.PatchOptions{}, "status")
	// The Pod is gone, or another one has its name by now: the next List has the current one.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("reporting the status of pod %s: %w", rec.Pod(), err)
	}
	return nil
}

// Ended deletes the object of a terminating Pod.
func (k *Kubelet) Ended(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := metav1.NewDeleteOptions(0)
	now.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *now)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing pod %s/%s from the API: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
