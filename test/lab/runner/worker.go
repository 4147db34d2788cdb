package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// A failed call is retried after firstRetry, then after twice as long each time, up to lastRetry. kubelet waits longer;
// a lab is used interactively.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// callTimeout is kubelet's for a call to the runtime (runtimeRequestTimeout).
const callTimeout = 2 * time.Minute

// worker reconciles one pod.
type worker struct {
	runner Runner
	pod    string
	slots  chan struct{}
	log    logr.Logger

	mu    sync.Mutex
	want  *corev1.Pod
	ended bool          // run has returned, or is returning
	wake  chan struct{} // has an entry when want has been set since run last read it
}

// assign sets the desired state. It returns false if the worker has ended: then a new one is needed.
func (w *worker) assign(pod *corev1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return false
	}
	w.want = pod
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return true
}

func (w *worker) wanted() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.want
}

// end ends the worker if it has no work and no sandbox.
func (w *worker) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = w.want == nil && len(w.wake) == 0
	return w.ended
}

// run works until the pod is gone, or ctx ends.
func (w *worker) run(ctx context.Context) {
	retry := firstRetry
	for {
		var again <-chan time.Time
		if err := w.settle(ctx); err == nil {
			retry = firstRetry
			if w.end() {
				return
			}
		} else if ctx.Err() == nil {
			w.log.Error(err, "trying again", "in", retry.String())
			again = time.After(retry)
			retry = min(2*retry, lastRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-w.wake:
		}
	}
}

// settle reconciles the pod, as far as possible.
func (w *worker) settle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case w.slots <- struct{}{}:
	}
	defer func() { <-w.slots }()
	unlock, err := w.runner.Records.Lock(w.pod)
	if err != nil {
		return err
	}
	defer unlock()
	want := w.wanted()
	if want == nil || want.DeletionTimestamp == nil {
		return w.bring(ctx, want)
	}
	if err := w.bring(ctx, nil); err != nil {
		return err
	}
	return w.runner.Pods.Ended(ctx, want)
}

// bring creates the sandbox of want, or removes the existing one if want is nil.
func (w *worker) bring(ctx context.Context, want *corev1.Pod) error {
	rec, err := w.runner.Records.Load(w.pod)
	if err != nil {
		return err
	}
	if rec != nil && rec.ByHand {
		if want == nil {
			return nil
		}
		return fmt.Errorf("a manually created sandbox is in the way: lab cni %s DEL %s", rec.Node, w.pod)
	}
	if rec != nil && !w.usable(rec, want) {
		gone := want == nil || rec.UID != string(want.UID)
		if err := w.remove(ctx, rec, gone); err != nil {
			return err
		}
		if gone {
			rec = nil
		}
	}
	if want == nil {
		return nil
	}
	if rec == nil {
		rec = &sandbox.Record{Namespace: want.Namespace, Name: want.Name, UID: string(want.UID), Node: want.Spec.NodeName}
	}
	if rec.State != sandbox.Running && rec.State != sandbox.Detached && rec.State != sandbox.HostNetwork {
		err = w.add(ctx, rec, want)
	}
	return errors.Join(err, w.runner.Pods.Report(ctx, want, rec))
}

// usable reports whether the record's sandbox can be kept. One in state Creating cannot: the runner that was creating
// it is gone.
func (w *worker) usable(rec *sandbox.Record, want *corev1.Pod) bool {
	if want == nil || rec.UID != string(want.UID) {
		return false
	}
	switch rec.State {
	case sandbox.Waiting, sandbox.HostNetwork:
		return rec.ContainerID == ""
	case sandbox.Running, sandbox.Detached:
		node, ok := w.runner.Node(rec.Node)
		return ok && node.HasNetns(rec.Netns)
	default:
		return false
	}
}

// remove removes the sandbox, and its record if the pod is gone.
func (w *worker) remove(ctx context.Context, rec *sandbox.Record, gone bool) error {
	id := rec.ContainerID
	if gone {
		rec.Enter(sandbox.Terminating)
		if err := w.runner.Records.Save(rec); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	failed := rec.LastError // the error of ADD is more useful than the success of DEL
	if err := w.runner.Records.Destroy(ctx, w.cni(rec), rec); err != nil {
		return fmt.Errorf("DEL of container %.12s: %w", id, err)
	}
	if id != "" {
		w.log.Info("sandbox removed", "node", rec.Node, "containerID", id)
	}
	rec.LastError = failed
	if gone {
		return w.runner.Records.Forget(w.pod)
	}
	return w.runner.Records.Save(rec)
}

// add creates a sandbox and calls ADD. A sandbox whose ADD failed is removed again, as by kubelet: the next attempt has
// a new one.
func (w *worker) add(ctx context.Context, rec *sandbox.Record, pod *corev1.Pod) error {
	if pod.Spec.HostNetwork {
		rec.Enter(sandbox.HostNetwork)
		return w.runner.Records.Save(rec)
	}
	begun := time.Now()
	err := w.create(ctx, rec, pod)
	if err == nil {
		w.log.Info("sandbox created", "node", rec.Node, "containerID", rec.ContainerID, "ips", rec.IPs,
			"milliseconds", time.Since(begun).Milliseconds())
		return nil
	}
	if ctx.Err() != nil {
		return err // the next runner sees a sandbox whose creator is gone
	}
	rec.LastError = err.Error()
	rec.Enter(sandbox.Waiting)
	return errors.Join(err, w.runner.Records.Save(rec), w.remove(ctx, rec, false))
}

func (w *worker) create(ctx context.Context, rec *sandbox.Record, pod *corev1.Pod) error {
	cni := w.cni(rec)
	// kubelet starts no pod before the runtime's network is ready.
	if err := cni.Configured(); err != nil {
		return err
	}
	if err := w.runner.Records.Create(cni, rec, pod); err != nil {
		return fmt.Errorf("making a sandbox: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := w.runner.Records.Attach(ctx, cni, rec); err != nil {
		return fmt.Errorf("ADD of container %.12s: %w", rec.ContainerID, err)
	}
	return nil
}

func (w *worker) cni(rec *sandbox.Record) sandbox.CNI {
	node, _ := w.runner.Node(rec.Node)
	return sandbox.CNI{Node: node}
}
