package controller

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/ordinals"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/selection"
)

// A set adopts the address of a pod that it owns, and not that of a pod of that name that is gone, has another owner,
// or has none. If that is unknown, it is an error.
func TestAdoptedAddresses(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "set"}}
	pod := func(uid, owner types.UID) *corev1.Pod {
		p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: uid}}
		if owner != "" {
			of := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: owner}}
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		}
		return p
	}
	for what, c := range map[string]struct {
		pod    *corev1.Pod // as in the API server; nil: not found
		code   int
		adopts bool
		fails  bool
	}{
		"its own":             {pod("pod", "set"), http.StatusOK, true, false},
		"another's":           {pod("pod", "other"), http.StatusOK, false, false},
		"of no owner":         {pod("pod", ""), http.StatusOK, false, false},
		"a successor's":       {pod("next", "set"), http.StatusOK, false, false},
		"of one that is gone": {nil, http.StatusNotFound, false, false},
		"unknown":             {nil, http.StatusForbidden, false, true},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var answer any = c.pod
			if c.pod == nil {
				answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
					Code: int32(c.code), Reason: map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound,
						http.StatusForbidden: metav1.StatusReasonForbidden}[c.code]}
			}
			if r.URL.Path != "/api/v1/namespaces/default/pods/web-0" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.code)
			if err := json.NewEncoder(w).Encode(answer); err != nil {
				t.Error(err)
			}
		}))
		client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
		must(t, err)
		store, err := allocation.NewDirectory(t.TempDir())
		must(t, err)
		held := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", netip.MustParseAddr("10.2.0.7"))},
			Spec: api.IPAllocationSpec{Address: "10.2.0.7", Pool: "pool", Phase: api.PhaseAllocated, Owner: api.AllocationOwner{
				Namespace: "default", Name: "web-0", PodUID: "pod"}}}
		held, err = store.Create(t.Context(), held)
		must(t, err)
		known := cache.NewStore(cache.MetaNamespaceKeyFunc)
		must(t, known.Add(&held))
		s := &statefulSets{client: client, store: store, world: &world{allocations: known}, log: logr.Discard()}
		needs := ordinals.Needs{Set: set, Requested: selection.PoolRequest{Pools: []string{"pool"}}}
		_, found, err := s.adoptOne(t.Context(), needs, ordinals.Slot{Ordinal: 0, Family: 4})
		server.Close()
		if found != c.adopts || (err != nil) != c.fails {
			t.Errorf("an address that is %s: adopted: %t, %v", what, found, err)
		}
		now, err := store.Get(t.Context(), held.Name)
		if err != nil || (now.Spec.Reservation != nil) != c.adopts {
			t.Errorf("an address that is %s: its reservation is %v, %v", what, now.Spec.Reservation, err)
		}
	}
}
