package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/agent/kubeapi"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
)

// Reasons of the Events on Pods.
const (
	reasonNoAddress = "NoPoolAddress"
	reasonConflict  = "AddressInUse"
	reasonReclaimed = "AddressReclaimed"
	reasonTwice     = "AddressTwice"
)

// warn writes a Warning Event on a Pod, in the background: an ADD does not wait for
// it. The same reason on the same Pod is one Event, however often it is told.
func (p *pods) warn(r cniserver.Request, reason, message string) {
	p.warnOf(api.AllocationOwner{PodUID: r.PodUID, Namespace: r.PodNamespace, Name: r.PodName}, reason, message)
}

func (p *pods) warnOf(o api.AllocationOwner, reason, message string) {
	if p.loop.kube == nil || o.Name == "" {
		return
	}
	w := kubeapi.Warning{Reason: reason, Message: message, About: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod",
		Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.PodUID)}}
	go func() {
		if err := p.loop.kube.Warn(context.Background(), p.loop.nodeName, w); err != nil {
			p.log.V(1).Info("an Event was not written", "pod", o.Namespace+"/"+o.Name, "message", message, "why", err.Error())
		}
	}()
}
