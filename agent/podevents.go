package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/kube"
)

// Reasons of the Events on Pods.
const (
	reasonNoAddress = "NoPoolAddress"
	reasonConflict  = "AddressInUse"
	reasonTwice     = "AddressTwice"
)

// warnEvery is how often the same is said of a Pod again: kubelet tries every few seconds.
const warnEvery = time.Minute

// warned is what was said of Pods, and when.
type warned struct {
	mu   sync.Mutex
	last map[string]time.Time // by Pod, reason and message
}

// again tells whether something is to be said now, and takes note that it is.
func (w *warned) again(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for said, at := range w.last {
		if time.Since(at) > warnEvery {
			delete(w.last, said)
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

// warn writes a Warning Event on a Pod, in the background: an ADD does not wait for
// it. The same reason on the same Pod is one Event, however often it is told.
func (p *pods) warn(r cniserver.Request, reason, message string) {
	p.warnOf(api.AllocationOwner{PodUID: r.PodUID, Namespace: r.PodNamespace, Name: r.PodName}, reason, message)
}

func (p *pods) warnOf(o api.AllocationOwner, reason, message string) {
	if p.loop.kube == nil || o.Name == "" || !p.warned.again(o.Namespace+"/"+o.Name+" "+o.PodUID+" "+reason+" "+message) {
		return
	}
	w := kube.Warning{Reason: reason, Message: message, About: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod",
		Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.PodUID)}}
	go func() {
		if err := p.loop.kube.Warn(context.Background(), p.loop.nodeName, w); err != nil {
			p.log.V(1).Info("an Event was not written", "pod", o.Namespace+"/"+o.Name, "message", message, "why", err.Error())
		}
	}()
}
