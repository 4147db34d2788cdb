package history

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

// server answers each list with one Node of that version, or with none if the version is empty. It calls meanwhile
// first.
type server struct {
	metadata.Interface
	metadata.Getter
	version   string
	err       error
	meanwhile func()
}

func (s *server) Resource(schema.GroupVersionResource) metadata.Getter { return s }

func (s *server) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if meanwhile := s.meanwhile; meanwhile != nil {
		s.meanwhile = nil
		meanwhile()
	}
	list := &metav1.PartialObjectMetadataList{}
	if s.version != "" {
		list.Items = []metav1.PartialObjectMetadata{*node("a", s.version)}
	}
	return list, s.err
}

func node(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// A restored backup is detected only by an older version of the Node that changed last.
func TestBackupIsRecognised(t *testing.T) {
	for _, c := range []struct {
		what     string
		note     func(*History)
		server   server
		restored int
	}{
		{"nothing was read", func(*History) {}, server{version: "1"}, 0},
		{"the same", func(h *History) { h.Record(node("a", "9"), watch.Added) }, server{version: "9"}, 0},
		{"newer, with one digit more", func(h *History) { h.Record(node("a", "9"), watch.Added) }, server{version: "10"}, 0},
		{"older", func(h *History) { h.Record(node("a", "9"), watch.Added) }, server{version: "8"}, 1},
		{"older than the last change", func(h *History) {
			h.Record(node("a", "7"), watch.Added)
			h.Record(node("b", "5"), watch.Added)
			h.Record(node("a", "9"), watch.Modified)
		}, server{version: "8"}, 1},
		{"deleted, as is known", func(h *History) {
			h.Record(node("a", "9"), watch.Added)
			h.Record(node("a", "10"), watch.Deleted)
		}, server{version: "8"}, 0},
		{"another was deleted", func(h *History) {
			h.Record(node("a", "9"), watch.Added)
			h.Record(node("b", "8"), watch.Deleted)
		}, server{version: "8"}, 1},
		{"deleted, as is not known yet", func(h *History) { h.Record(node("a", "9"), watch.Added) }, server{}, 0},
		{"a bookmark has no Node", func(h *History) { h.Record(node("", "99"), watch.Bookmark) }, server{version: "8"}, 0},
	} {
		var h History
		c.note(&h)
		for range 2 { // counted once
			if err := h.Check(t.Context(), &c.server); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		if got := h.Found(); got != c.restored {
			t.Errorf("%s: found %d times, want %d", c.what, got, c.restored)
		}
	}
}

// Two followers that check at the same time count a restored backup once, whatever one of them reads meanwhile.
func TestBackupIsCountedOnce(t *testing.T) {
	var h History
	h.Record(node("a", "9"), watch.Added)
	s := &server{version: "8"}
	s.meanwhile = func() {
		if err := h.Check(t.Context(), s); err != nil {
			t.Error(err)
		}
		h.Record(node("a", "8"), watch.Added)
	}
	if err := h.Check(t.Context(), s); err != nil || h.Found() != 1 {
		t.Errorf("found %d times, want once: %v", h.Found(), err)
	}
}

// A server that does not answer is not taken for a restored one.
func TestNoAnswer(t *testing.T) {
	var h History
	h.Record(node("a", "9"), watch.Added)
	s := &server{err: errors.New("no answer")}
	if err := h.Check(t.Context(), s); !errors.Is(err, s.err) || h.Found() != 0 {
		t.Errorf("found %d times: %v", h.Found(), err)
	}
	s.err, s.version = nil, "8"
	if err := h.Check(t.Context(), s); err != nil || h.Found() != 1 {
		t.Errorf("when it answers: found %d times: %v", h.Found(), err)
	}
}
