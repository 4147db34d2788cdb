package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// File is YAML or JSON with manifests. Name is its name in errors.
type File struct {
	Name string
	Data []byte
}

// Apply stores manifests, YAML or JSON; source names them in errors. All agents see them at once.
func (l *Lab) Apply(source string, data []byte) ([]manifest.Change, error) {
	return l.ApplyFiles(File{source, data})
}

// ApplyFiles is Apply for several files. A directory of manifests stores all their objects or none; with Kubernetes
// one file is applied after the other, with objects of any kind, as by "kubectl apply --server-side --force-conflicts".
func (l *Lab) ApplyFiles(files ...File) ([]manifest.Change, error) {
	return l.change(files, l.kubeApply, l.Manifests().Apply)
}

// Delete removes the objects that the manifests name. With Kubernetes they are gone once their finalizers and grace
// periods have ended.
func (l *Lab) Delete(source string, data []byte) ([]manifest.Change, error) {
	return l.DeleteFiles(File{source, data})
}

// DeleteFiles is Delete for several files.
func (l *Lab) DeleteFiles(files ...File) ([]manifest.Change, error) {
	return l.change(files, l.kubeDelete, l.Manifests().Delete)
}

func (l *Lab) change(files []File, kube func(string, []byte) ([]manifest.Change, error),
	directory func([]manifest.Object) ([]manifest.Change, error)) ([]manifest.Change, error) {
	var changes []manifest.Change
	var objects []manifest.Object
	for _, f := range files {
		if l.spec.Cluster == Kube {
			more, err := kube(f.Name, f.Data)
			changes = append(changes, more...)
			if err != nil {
				return changes, err
			}
			continue
		}
		more, err := manifest.Parse(f.Name, f.Data)
		if err != nil {
			return nil, err
		}
		objects = append(objects, more...)
	}
	if l.spec.Cluster == Kube {
		return changes, nil
	}
	return directory(objects)
}

// WaitPods waits until every Pod on a node of the lab is running, and the sandbox of every deleted Pod is removed,
// according to the API server's current Pods. The error names what is missing.
func (l *Lab) WaitPods(ctx context.Context) error {
	for {
		left, err := l.unsettled()
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not there yet (%w): %s", ctx.Err(), strings.Join(left, "; "))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *Lab) unsettled() ([]string, error) {
	pods, unread, err := l.podStates()
	if err != nil {
		return nil, err
	}
	var left []string
	if unread != nil { // records alone do not show which Pods are still to be created or removed
		left = append(left, unread.Error())
	}
	for _, p := range pods {
		if !p.Settled {
			left = append(left, strings.TrimSpace(fmt.Sprintf("%s is %s %s", p.Pod, p.State, p.LastError)))
		}
	}
	return left, nil
}

// PodState is the state of one pod: manifest and sandbox.
type PodState struct {
	Pod         string        `json:"pod"`
	Node        string        `json:"node"`
	State       sandbox.State `json:"state"`
	IPs         []string      `json:"ips"`
	ContainerID string        `json:"containerID,omitempty"`
	Attempt     int           `json:"attempt"`
	LastError   string        `json:"lastError,omitempty"`
	// Settled means that no work is left for it.
	Settled bool `json:"settled"`
}

// Pending is the state of a Pod without a sandbox so far.
const Pending sandbox.State = "Pending"

// PodStates lists all pods, by name. While the API server is unreachable, which NodeStates and Plane report, existing
// sandboxes stand in for their Pods.
func (l *Lab) PodStates() ([]PodState, error) {
	pods, _, err := l.podStates()
	return pods, err
}

// podStates is PodStates, and also returns why the Pods could not be read, if sandboxes stand in for them.
func (l *Lab) podStates() (out []PodState, unread, err error) {
	records, err := l.Records().List()
	if err != nil {
		return nil, nil, err
	}
	pods, unread, err := l.podObjects(records)
	if err != nil {
		return nil, nil, err
	}
	byName := map[string]*corev1.Pod{}
	for _, p := range pods {
		byName[p.Namespace+"/"+p.Name] = p
	}
	for _, r := range records {
		out = append(out, l.recordState(r, byName[r.Pod()]))
		delete(byName, r.Pod())
	}
	for pod, m := range byName {
		out = append(out, l.pendingState(pod, m))
	}
	slices.SortFunc(out, func(a, b PodState) int { return strings.Compare(a.Pod, b.Pod) })
	return out, unread, nil
}

func (l *Lab) recordState(r *sandbox.Record, pod *corev1.Pod) PodState {
	s := PodState{Pod: r.Pod(), Node: r.Node, State: r.State, IPs: r.IPs, ContainerID: r.ContainerID,
		Attempt: r.Attempt, LastError: r.LastError}
	if r.ByHand {
		s.Settled = true
		return s
	}
	if pod == nil || string(pod.UID) != r.UID || pod.DeletionTimestamp != nil {
		s.State = sandbox.Terminating
		return s
	}
	if r.State == sandbox.HostNetwork {
		for _, a := range l.NodeAddrs(l.number(r.Node)) {
			s.IPs = append(s.IPs, a.Addr().String())
		}
	}
	s.Settled = r.State == sandbox.Running || r.State == sandbox.HostNetwork || r.State == sandbox.Detached
	if l.spec.Cluster == Kube && s.Settled && pod.Status.Phase != corev1.PodRunning {
		s.Settled, s.LastError = false, "and the API server does not have it yet"
	}
	return s
}

// podObjects returns the Pods of the cluster or, if they cannot be read, Pods made from the records, and the reason.
func (l *Lab) podObjects(records []*sandbox.Record) (pods []*corev1.Pod, unread, err error) {
	if l.spec.Cluster != Kube {
		pods, err = l.Manifests().Pods()
		return pods, nil, err
	}
	k, err := l.kubelet(logr.Discard())
	if err != nil {
		return nil, nil, err
	}
	pods, unread = k.List(context.Background())
	if unread == nil {
		return pods, nil, nil
	}
	for _, r := range records {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name, UID: types.UID(r.UID)},
			Spec:       corev1.PodSpec{NodeName: r.Node}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	}
	return pods, unread, nil
}

func (l *Lab) pendingState(name string, pod *corev1.Pod) PodState {
	s := PodState{Pod: name, Node: pod.Spec.NodeName, State: Pending}
	if pod.DeletionTimestamp != nil {
		s.State = sandbox.Terminating
	}
	if _, _, err := l.node(pod.Spec.NodeName); err != nil {
		s.Settled = true // no node will run it
		s.LastError = "not on a node of this lab: set spec.nodeName"
	} else if l.RunnerPID() == 0 {
		s.LastError = "the pod runner is not running: lab runner start"
	}
	return s
}

func (l *Lab) number(node string) int {
	_, n, _ := l.node(node)
	return n
}
