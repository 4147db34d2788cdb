package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// Apply stores manifests, YAML or JSON; source names them in errors. All agents see them at once.
func (l *Lab) Apply(source string, data []byte) ([]manifest.Change, error) {
	objects, err := manifest.Parse(source, data)
	if err != nil {
		return nil, err
	}
	return l.Manifests().Apply(objects)
}

// Delete removes the objects that the manifests name.
func (l *Lab) Delete(source string, data []byte) ([]manifest.Change, error) {
	objects, err := manifest.Parse(source, data)
	if err != nil {
		return nil, err
	}
	return l.Manifests().Delete(objects)
}

// WaitPods waits until every Pod runs that can (it is on a node of the lab), and every sandbox of a Pod that is gone
// is gone too. The error names what is left to do.
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
	pods, err := l.PodStates()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, p := range pods {
		if !p.Settled {
			left = append(left, strings.TrimSpace(fmt.Sprintf("%s is %s %s", p.Pod, p.State, p.LastError)))
		}
	}
	return left, nil
}

// PodState is one pod as the lab sees it: manifest and sandbox.
type PodState struct {
	Pod         string        `json:"pod"`
	Node        string        `json:"node"`
	State       sandbox.State `json:"state"`
	IPs         []string      `json:"ips"`
	ContainerID string        `json:"containerID,omitempty"`
	Attempt     int           `json:"attempt"`
	LastError   string        `json:"lastError,omitempty"`
	// Settled says that nothing is left to do for it.
	Settled bool `json:"settled"`
}

// Pending is the state of a Pod for which nothing was begun.
const Pending sandbox.State = "Pending"

// PodStates lists all pods, by name.
func (l *Lab) PodStates() ([]PodState, error) {
	records, err := l.Records().List()
	if err != nil {
		return nil, err
	}
	manifests, err := l.Manifests().Pods()
	if err != nil {
		return nil, err
	}
	byName := map[string]*corev1.Pod{}
	for _, m := range manifests {
		byName[m.Namespace+"/"+m.Name] = m
	}
	var out []PodState
	for _, r := range records {
		out = append(out, l.recordState(r, byName[r.Pod()]))
		delete(byName, r.Pod())
	}
	for pod, m := range byName {
		out = append(out, l.pendingState(pod, m))
	}
	slices.SortFunc(out, func(a, b PodState) int { return strings.Compare(a.Pod, b.Pod) })
	return out, nil
}

func (l *Lab) recordState(r *sandbox.Record, pod *corev1.Pod) PodState {
	s := PodState{Pod: r.Pod(), Node: r.Node, State: r.State, IPs: r.IPs, ContainerID: r.ContainerID,
		Attempt: r.Attempt, LastError: r.LastError}
	if r.ByHand {
		s.Settled = true
		return s
	}
	if pod == nil || string(pod.UID) != r.UID {
		s.State = sandbox.Terminating
		return s
	}
	if r.State == sandbox.HostNetwork {
		for _, a := range l.NodeAddrs(l.number(r.Node)) {
			s.IPs = append(s.IPs, a.Addr().String())
		}
	}
	s.Settled = r.State == sandbox.Running || r.State == sandbox.HostNetwork || r.State == sandbox.Detached
	return s
}

func (l *Lab) pendingState(name string, pod *corev1.Pod) PodState {
	s := PodState{Pod: name, Node: pod.Spec.NodeName, State: Pending}
	if _, _, err := l.node(pod.Spec.NodeName); err != nil {
		s.Settled = true // nobody is going to do anything
		s.LastError = "not on a node of this lab: set spec.nodeName"
	} else if l.RunnerPID() == 0 {
		s.LastError = "the pod runner does not run: lab runner start"
	}
	return s
}

func (l *Lab) number(node string) int {
	_, n, _ := l.node(node)
	return n
}
