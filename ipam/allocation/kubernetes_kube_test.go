package allocation

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// shared is the API server of this package's tests: see TestMain.
var shared apitest.Shared

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		writeForEver(dir)
	}
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func newClient(t *testing.T) dynamic.Interface {
	t.Helper()
	s := shared.Get(t)
	err := s.Apply(t.Context(), "../../build/manifests/fairlead.yaml", "app.kubernetes.io/component=crds")
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(&rest.Config{Host: s.URL, BearerToken: apitest.AdminToken, QPS: 1000, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// An API server with an older definition, which has no field selector for phases, returns the same list.
func TestKubeOlderDefinition(t *testing.T) {
	client := newClient(t)
	k := NewKubernetes(client)
	cooling := allocationOf("10.2.0.1", "older", "n1", "c1")
	cooling.Spec.Phase = api.PhaseCooling
	for _, a := range []api.IPAllocation{cooling, allocationOf("10.2.0.2", "older", "n1", "c2")} {
		made, err := k.Create(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := k.Delete(t.Context(), made); err != nil {
				t.Error(err)
			}
		}()
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	_, err := definitions.Patch(t.Context(), "ipallocations.ipam.fairlead.dev", types.JSONPatchType,
		[]byte(`[{"op": "replace", "path": "/spec/versions/0/selectableFields", "value": [{"jsonPath": ".spec.pool"}]}]`),
		metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, err := k.client.List(t.Context(), metav1.ListOptions{FieldSelector: api.AllocationPhaseField + "!=x"})
		if apierrors.IsBadRequest(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the definition still selects phases: %v", err)
		}
	}
	list, err := k.List(t.Context(), Filter{Pool: "older", Unused: true})
	if err != nil || len(list) != 1 || list[0].Name != cooling.Name {
		t.Errorf("got %v, %v, want %s", list, err, cooling.Name)
	}
}

// Without the CRDs the error says what to do.
func TestKubeNoDefinitions(t *testing.T) {
	client := newClient(t)
	err := shared.Get(t).Objects().Remove(t.Context(), apitest.Definitions, "", "ipallocations.ipam.fairlead.dev")
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := NewKubernetes(client).List(t.Context(), Filter{Node: "n1"})
		if err != nil && strings.Contains(err.Error(), "kubectl apply -f build/manifests/fairlead.yaml -l app.kubernetes.io/component=crds") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("without the definition: %v", err)
		}
	}
}

func TestKubeStore(t *testing.T) { checkStore(t, NewKubernetes(newClient(t))) }

// The API server accepts any RFC 3339 time, as kubectl or a restored backup may write it. An allocation with a time in
// another format than Fairlead's is read, and does not make every list that contains it fail.
func TestKubeOtherTimes(t *testing.T) {
	client := newClient(t)
	s := NewKubernetes(client)
	for _, text := range []string{"2099-11-26T09:00:00Z", "2099-11-26T09:00:00.25Z", "2099-11-26t10:00:00.000000001+01:00",
		"2099-11-26T09:00:00+99:99"} {
		made, err := s.Create(t.Context(), allocationOf("10.2.8.1", "p", "n8", "c1"))
		if err != nil {
			t.Fatal(err)
		}
		patch := `{"spec":{"phase":"Cooling","until":"` + text + `"}}`
		_, err = client.Resource(api.AllocationResource).Patch(t.Context(), made.Name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.List(t.Context(), Filter{Node: "n8"})
		if err != nil || len(list) != 1 || list[0].Spec.Until == nil {
			t.Fatalf("%s: listed are %+v, %v", text, list, err)
		}
		want := time.Date(2099, 11, 26, 9, 0, 0, 0, time.UTC)
		if strings.HasSuffix(text, "99:99") { // not a time: counts as expired
			want = time.Unix(0, 0)
		}
		if got := list[0].Spec.Until.Time; got.Sub(want).Abs() > time.Second {
			t.Errorf("%s is read as %s", text, got)
		}
		if list[0], err = s.Update(t.Context(), list[0]); err != nil {
			t.Errorf("%s: written back: %v", text, err)
		}
		if err := s.Delete(t.Context(), list[0]); err != nil {
			t.Fatal(err)
		}
	}
}

// Address and pool of an allocation are immutable. Fields that others have added are preserved.
func TestKubeAllocationKeepsItsAddress(t *testing.T) {
	client := newClient(t)
	s := NewKubernetes(client)
	made, err := s.Create(t.Context(), allocationOf("10.2.7.1", "p", "n1", "c1"))
	if err != nil {
		t.Fatal(err)
	}
	objects := client.Resource(api.AllocationResource)
	u, err := objects.Get(t.Context(), made.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u.SetLabels(map[string]string{"a": "b"})
	if _, err := objects.Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if made, err = s.Get(t.Context(), made.Name); err != nil {
		t.Fatal(err)
	}
	made.Spec.Phase = api.PhaseReserved
	if made, err = s.Update(t.Context(), made); err != nil || made.Labels["a"] != "b" {
		t.Errorf("after an update: %+v, %v, want the label", made, err)
	}
	other := made
	other.Spec.Pool = "q"
	const want = "address and pool of an allocation cannot be changed"
	if _, err := s.Update(t.Context(), other); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("another pool: %v, want %s", err, want)
	}
	if err := s.Delete(t.Context(), made); err != nil {
		t.Error(err)
	}
}
