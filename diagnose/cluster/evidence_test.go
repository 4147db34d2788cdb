package cluster

import (
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// Fail closed: only what the API proves is Gone.
func TestVerdicts(t *testing.T) {
	v := &View{
		Nodes: []Node{{Name: "up", Ready: "True"}, {Name: "down", Ready: "Unknown"}, {Name: "new"},
			{Name: "fenced", Ready: "False", Fenced: true}, {Name: "back", Ready: "True", Fenced: true}},
		Pods: []Pod{{UID: "lives", Node: "up"}, {UID: "ended", Node: "up", Ended: true}, {UID: "mirror", StaticUID: "hash", Node: "down"},
			{UID: "here-still", Node: "fenced"}},
		ReservationOwners: map[string]bool{"set": true},
	}
	owner := func(uid, node string) api.IPAllocationSpec {
		return api.IPAllocationSpec{Phase: api.PhaseAllocated, Owner: api.AllocationOwner{PodUID: uid, Node: node}}
	}
	kept := func(kind, uid string) api.IPAllocationSpec {
		return api.IPAllocationSpec{Phase: api.PhaseReserved, Reservation: &api.AllocationReservation{Kind: kind, UID: uid}}
	}
	for name, c := range map[string]struct {
		spec api.IPAllocationSpec
		want Verdict
	}{
		"the pod is there":                {owner("lives", "up"), Lives},
		"a static pod":                    {owner("hash", "down"), Lives},
		"on a fenced node, Pod there":     {owner("here-still", "fenced"), Lives},
		"gone, node up":                   {owner("x", "up"), Gone},
		"ended, node up":                  {owner("ended", "up"), Gone},
		"gone, node down":                 {owner("x", "down"), MayLive},
		"gone, node has never reported":   {owner("x", "new"), MayLive},
		"gone, node fenced":               {owner("x", "fenced"), Gone},
		"gone, fenced, and ready":         {owner("x", "back"), Gone}, // its agent is responsible for it
		"gone, node deleted":              {owner("x", "none"), Gone},
		"no Kubernetes pod":               {owner("", "up"), MayLive},
		"no Kubernetes pod, fenced":       {owner("", "fenced"), Gone},
		"no Kubernetes pod, back":         {owner("", "back"), MayLive},
		"kept":                            {kept(api.KindStatefulSet, "set"), Kept},
		"kept for a set that is gone":     {kept(api.KindStatefulSet, "gone"), Gone},
		"kept for a kind that is unknown": {kept(api.KindVM, "gone"), Kept},
		"cools":                           {api.IPAllocationSpec{Phase: api.PhaseCooling}, Gone},
		"outside of the cluster":          {api.IPAllocationSpec{Phase: api.PhaseConflict}, Gone},
	} {
		v.Allocations = []api.IPAllocation{{Spec: c.spec}}
		if got := v.Evidences()[0]; got.Verdict != c.want {
			t.Errorf("%s: %q, want %q: %q", name, got.Verdict, c.want, got.Lines())
		}
	}
	v.ReservationOwners, v.Allocations = nil, []api.IPAllocation{{Spec: kept(api.KindStatefulSet, "gone")}}
	if got := v.Evidences()[0]; got.Verdict != Kept {
		t.Errorf("kept, and StatefulSets were not read: %q: %q", got.Verdict, got.Lines())
	}
}
