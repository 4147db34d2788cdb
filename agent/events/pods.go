package events

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/kube"
)

// Reasons of the Events on Pods.
const (
	ReasonNoAddress = "AddressAllocationFailed"
	ReasonConflict  = "AddressInUse"
	ReasonDuplicate = "DuplicateAddress"
)

// warnEvery is how often the same is reported on a Pod: kubelet retries every few seconds.
const warnEvery = time.Minute

// warned is what was reported on Pods, and when.
type warned struct {
	mu   sync.Mutex
	last map[string]time.Time // by Pod, reason and message
}

// allow reports whether something is to be reported now, and notes that it is.
func (w *warned) allow(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for reported, at := range w.last {
		if time.Since(at) > warnEvery {
			delete(w.last, reported)
		}
	}
	if _, lately := w.last[what]; lately {
		return false
	}
	if w.last == nil {
		w.last = map[string]time.Time{}
	}
	w.last[what] = time.Now()
	return true
}

// Pods writes Warning Events on Pods.
type Pods struct {
	kube   *kube.Client // nil: inputs come from a directory, and there is no API to write them to
	node   string
	log    logr.Logger
	warned warned
	// writing are goroutines that end by themselves within seconds, or when stop is called.
	writing sync.WaitGroup
	running context.Context
	stop    context.CancelFunc
}

// NewPods returns a writer of Events on Pods of the named node. client is nil where inputs come from a directory.
func NewPods(client *kube.Client, node string, log logr.Logger) *Pods {
	p := &Pods{kube: client, node: node, log: log}
	p.running, p.stop = context.WithCancel(context.Background())
	return p
}

// Warn writes a Warning Event on the Pod of a CNI request, in the background: an ADD does not wait for it. The same
// reason on the same Pod is one Event, however often it is reported.
func (p *Pods) Warn(r cniserver.Request, reason, message string) {
	p.WarnOwner(api.AllocationOwner{PodUID: r.PodUID, Namespace: r.PodNamespace, Name: r.PodName}, reason, message)
}

// WarnOwner is Warn on the Pod that holds, or held, an address.
func (p *Pods) WarnOwner(o api.AllocationOwner, reason, message string) {
	if p.kube == nil || o.Name == "" || !p.warned.allow(o.Namespace+"/"+o.Name+" "+o.PodUID+" "+reason+" "+message) {
		return
	}
	w := kube.Warning{Reason: reason, Message: message, About: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod",
		Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.PodUID)}}
	if p.running.Err() != nil {
		return // closed
	}
	p.writing.Go(func() {
		if err := p.kube.Warn(p.running, p.node, w); err != nil {
			p.log.V(1).Info("Event not written", "pod", o.Namespace+"/"+o.Name, "message", message, "err", err.Error())
		}
	})
}

// Close ends what is still being written.
func (p *Pods) Close() {
	p.stop()
	p.writing.Wait()
}
