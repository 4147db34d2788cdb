package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// refusing is an API server that rejects all reads.
type refusing struct {
	metadata.Interface
	metadata.Getter
}

func (r refusing) Resource(schema.GroupVersionResource) metadata.Getter { return r }

func (r refusing) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", nil)
}

// A server that has just started refuses every request for a moment: that does not prove that its history is the same.
func TestRefusesItsHistory(t *testing.T) {
	for cluster, trusted := range map[string]bool{"": true, "known": false} {
		f := (&Server{Metadata: refusing{}}).Follow(Resource{}, nil)
		f.cluster = cluster
		if same, _, err := f.sameHistory(t.Context(), "1"); same != trusted || (err == nil) != trusted {
			t.Errorf("a server that refuses to identify a cluster that is %q: the same %t, %v", cluster, same, err)
		}
	}
}

// A replacement is added before the replaced object is removed, and Read is true only when all have been passed on.
func TestReplaceHandsOnNewOnesFirst(t *testing.T) {
	var seen []string
	k := NewKind(func() {}, func(o runtime.Object) (string, error) { return o.(*metav1.PartialObjectMetadata).Name, nil })
	k.Each = func(key string, _, _ string, exists bool) {
		if seen = append(seen, fmt.Sprint(key, exists)); k.Read() && len(seen) == 1 {
			t.Error("all are reported as read before they are passed on")
		}
	}
	for _, name := range []string{"a", "b"} {
		o := &metav1.PartialObjectMetadata{}
		o.Name = name
		if err := k.Replace([]any{o}, ""); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"atrue", "btrue", "afalse"}; !slices.Equal(seen, want) || !k.Read() {
		t.Errorf("%q, want %q", seen, want)
	}
}

// Objects that must not be older than those in effect are not requested in an arbitrary version.
func TestNewest(t *testing.T) {
	for newest, want := range map[bool]string{true: "", false: "0"} {
		var got *metav1.ListOptions
		f := (&Server{Heard: func() {}, Reported: func() {}}).Follow(Resource{Newest: newest,
			List: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
				got = &o
				return &metav1.PartialObjectMetadataList{}, nil
			}}, nil)
		if _, err := f.listed(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err != nil || got.ResourceVersion != want {
			t.Errorf("newest %t: asked for version %q, want %q: %v", newest, got.ResourceVersion, want, err)
		}
	}
}

// A missing resource may be defined later, in another version, without a change of the server's answer for this one.
func TestAbsentIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer error
		asked := 0
		f := (&Server{Heard: func() {}, Reported: func() {}}).Follow(Resource{Optional: true,
			Absent: func(context.Context) error { asked++; return answer }},
			NewKind(func() {}, func(runtime.Object) (string, error) { return "", nil }))
		notFound := func() (string, error) {
			f.result(t.Context(), apierrors.NewNotFound(schema.GroupResource{Resource: "policies"}, ""))
			return f.State()
		}
		for range 3 {
			if _, err := notFound(); err != nil || asked != 1 {
				t.Errorf("absent: asked %d times, %v", asked, err)
			}
		}
		answer = errors.New("cannot determine")
		time.Sleep(absentFor)
		reason, err := notFound()
		if !errors.Is(err, answer) {
			t.Errorf("perhaps there: %v", err)
		}
		answer = ErrOtherVersion
		if other, err := notFound(); !errors.Is(err, answer) || other == reason {
			t.Errorf("in another version: %v, and the reason is %q as before", err, other)
		}
		answer = nil
		if _, err := notFound(); err != nil {
			t.Errorf("absent again: %v", err)
		}
	})
}
