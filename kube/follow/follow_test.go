package follow

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// refusing is an API server that lets nobody read anything.
type refusing struct {
	metadata.Interface
	metadata.Getter
}

func (r refusing) Resource(schema.GroupVersionResource) metadata.Getter { return r }

func (r refusing) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", nil)
}

// A server that has just started refuses every request for a moment: that does not make it the one of before.
func TestRefusesItsHistory(t *testing.T) {
	for cluster, trusted := range map[string]bool{"": true, "known": false} {
		f := (&Server{Metadata: refusing{}}).Follow(Resource{}, nil)
		f.cluster = cluster
		if same, _, err := f.sameHistory(t.Context(), "1"); same != trusted || (err == nil) != trusted {
			t.Errorf("a server that refuses to identify a cluster that is %q: the same %t, %v", cluster, same, err)
		}
	}
}
