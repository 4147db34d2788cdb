package addresses

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/ipam/selection"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// member is what is known about a pod that asks for an address of an IPPool.
func member(r cniserver.Request, pod inputs.Pod) selection.Member {
	return selection.Member{Object: selection.Object{Name: "Pod " + r.PodNamespace + "/" + r.PodName,
		Annotations: pod.Annotations}, Namespace: r.PodNamespace, Pod: r.PodName, Index: pod.Index,
		Controller: selection.Controller(pod.Controller)}
}

// reservation is the reservation of a pod's addresses; nil for none.
func (p *Addresses) reservation(ctx context.Context, of selection.Member) (*api.AllocationReservation, error) {
	top := of.Controller
	if sticky, err := of.Sticky(); err != nil {
		return nil, err
	} else if sticky != "" && top.Passing() {
		above, err := p.Source.Above(ctx, of.Namespace, inputs.Controller(top))
		if err != nil {
			return nil, cniserver.TryAgainLater(err)
		}
		if above != (inputs.Controller{}) {
			top = selection.Controller(above)
		}
	}
	return of.Keep(top, api.LocalMAC)
}

// requestedPools is what a pod's annotations ask for. The addresses that they name are for all pods of a StatefulSet.
func (p *Addresses) requestedPools(ctx context.Context, of selection.Member, in selection.Object) (
	selection.PoolRequest, error) {
	ordinal, ofSet := of.Ordinal()
	if !ofSet {
		return selection.Read(of.Object, in)
	}
	w, err := selection.ReadSet(of.Object, in)
	if err != nil || len(w.PodIPs) == 0 {
		return w, err
	}
	first, err := p.Source.FirstOrdinal(ctx, of.Namespace, of.Controller.Name)
	if err != nil {
		return w, cniserver.TryAgainLater(err)
	}
	return w.Of(max(0, ordinal-first))
}

// requestError is the answer for an error of reservation or requestedPools.
func (p *Addresses) requestError(r cniserver.Request, err error) error {
	var coded *types.Error
	if errors.As(err, &coded) {
		return p.retryError(r, errors.New(coded.Msg))
	}
	return p.rejectError(r, err)
}

// reservationOf is the reservation of a pod's addresses; nil if there is none, or it is not known: a deleted Pod keeps
// nothing, though it may still run.
func (p *Addresses) reservationOf(ctx context.Context, a api.Attachment) *api.AllocationReservation {
	r := cniserver.Request{PodNamespace: a.PodNamespace, PodName: a.PodName, PodUID: a.PodUID}
	pod, _, err := p.Source.Pod(ctx, r.PodNamespace, r.PodName, r.PodUID)
	if err != nil || pod.UID == "" || pod.UID != a.PodUID {
		return nil
	}
	keep, err := p.reservation(ctx, member(r, pod))
	if err != nil || keep == nil {
		return nil
	}
	if keep.MAC != "" {
		keep.MAC = a.MAC.String()
	}
	return keep
}
