package follow

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The readable part of a rejected object is passed on, whether the object was known before or not; once it is valid
// again, it replaces that part, and nothing remains of removed objects.
func TestRefusedObjectsAreHandedOnInPart(t *testing.T) {
	var seen []string
	k := NewKind(func() {}, func(o runtime.Object) (string, error) {
		m := o.(*metav1.PartialObjectMetadata)
		if v := m.Labels["v"]; v != "" {
			return "part " + v, errors.New(m.Name + " is refused")
		}
		return "whole " + m.Name, nil
	})
	k.Each = func(key string, _, now string, exists bool) {
		seen = append(seen, fmt.Sprint(key, " ", now, " ", exists))
	}
	k.Part = func(key, now string) { seen = append(seen, fmt.Sprint(key, " ", now)) }
	object := func(name, v string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"v": v}}}
	}
	is := func(what string, want ...string) {
		t.Helper()
		if slices.Sort(seen); !slices.Equal(seen, want) {
			t.Errorf("%s: %q, want %q", what, seen, want)
		}
		seen = nil
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(k.Replace([]any{object("a", ""), object("b", "1")}, ""))
	is("read", "a whole a true", "b part 1")
	must(k.Update(object("a", "2")))
	must(k.Update(object("b", "3")))
	is("refused", "a part 2", "b part 3")
	must(k.Replace([]any{object("a", ""), object("c", "4")}, ""))
	is("valid again, and gone", "a whole a true", "b  false", "c part 4")
	must(k.Update(object("c", "")))
	must(k.Update(object("a", "5")))
	must(k.Delete(object("a", "5")))
	is("valid, and deleted", "a  false", "a part 5", "c whole c true")
}
