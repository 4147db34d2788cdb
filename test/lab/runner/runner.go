// Package runner replaces kubelet and container runtime of all nodes of a lab: for every Pod with spec.nodeName it
// creates a sandbox on that node, for every deleted Pod it removes the sandbox. It depends on no state in memory: a new
// runner finds the sandboxes of its predecessor in their records.
package runner

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// Pods is the source of Pods: a directory of manifests (Directory), or the Kubernetes API (package kubelet).
type Pods interface {
	// List returns all Pods. One with a deletion timestamp is terminating, and listed until Ended was called for it.
	List(ctx context.Context) ([]*corev1.Pod, error)
	// Changes receives after each change until ctx ends, and once at the beginning.
	Changes(ctx context.Context) (<-chan struct{}, error)
	// Report publishes the state of the Pod's sandbox.
	Report(ctx context.Context, pod *corev1.Pod, rec *sandbox.Record) error
	// Ended reports that nothing is left of a Pod with a deletion timestamp.
	Ended(ctx context.Context, pod *corev1.Pod) error
}

// Runner is the runner of one lab.
type Runner struct {
	Pods Pods
	// Records are the lab's.
	Records sandbox.Records
	// Node returns the host of a node, and false for a name that is not a node of the lab.
	Node func(name string) (host.Host, bool)
	Log  logr.Logger
}

// rereadEvery bounds the delay of a change without an event.
const rereadEvery = 5 * time.Second

// settle is the quiet time before Pods are read: one apply of many Pods is one change.
const settle = 10 * time.Millisecond

// atOnce is the number of sandboxes that are handled concurrently. A kubelet handles all its pods at once; with several
// nodes on one machine that would only slow down each of them.
const atOnce = 32

// Run works until ctx ends. Unfinished work is completed by the next Run.
func (r Runner) Run(ctx context.Context) error {
	changes, err := r.Pods.Changes(ctx)
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	pods := &podWorkers{runner: r, slots: make(chan struct{}, atOnce), byPod: map[string]*worker{}, running: &workers}
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
			quiet.Reset(settle)
			continue
		case <-tick.C:
		case <-quiet.C:
		}
		if err := pods.assign(ctx); err != nil {
			r.Log.Error(err, "pods stay as they are")
		}
	}
}

// podWorkers has one worker per pod, so that the calls for a pod are in order and pods do not wait for each other.
type podWorkers struct {
	runner  Runner
	slots   chan struct{}
	byPod   map[string]*worker
	running *sync.WaitGroup
}

// assign sets the desired state of every pod's worker: the Pod, or nil where only a record is left.
func (p *podWorkers) assign(ctx context.Context) error {
	wanted, err := p.runner.Pods.List(ctx)
	if err != nil {
		return err
	}
	records, err := p.runner.Records.List()
	if err != nil {
		return err
	}
	want := map[string]*corev1.Pod{}
	for _, rec := range records {
		if !rec.ByHand {
			want[rec.Pod()] = nil
		}
	}
	for _, pod := range wanted {
		if _, ok := p.runner.Node(pod.Spec.NodeName); ok {
			want[pod.Namespace+"/"+pod.Name] = pod
		}
	}
	for pod, w := range p.byPod {
		if _, ok := want[pod]; !ok && !w.assign(nil) {
			delete(p.byPod, pod)
		}
	}
	for pod, obj := range want {
		if w := p.byPod[pod]; w == nil || !w.assign(obj) {
			p.start(ctx, pod, obj)
		}
	}
	return nil
}

func (p *podWorkers) start(ctx context.Context, pod string, obj *corev1.Pod) {
	w := &worker{runner: p.runner, pod: pod, slots: p.slots, want: obj, wake: make(chan struct{}, 1),
		log: p.runner.Log.WithValues("pod", pod)}
	p.byPod[pod] = w
	p.running.Go(func() { w.run(ctx) })
}
