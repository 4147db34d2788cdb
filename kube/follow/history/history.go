// Package history detects an API server whose etcd was restored from a backup. It keeps nothing on the node.
package history

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

// History detects a restored backup, even if its version has overtaken the one that was read before: the Node that
// changed last (kubelets change theirs every few minutes) has an older version there. The zero value is ready to use,
// by several goroutines.
type History struct {
	mu sync.Mutex
	// name and version are those of the Node that has changed last, empty for none.
	name, version string
	// restored is how often a restored backup was found.
	restored int
}

// Record takes what was read about a Node.
func (h *History) Record(o runtime.Object, happened watch.EventType) {
	m, err := meta.Accessor(o)
	if err != nil || happened == watch.Bookmark || happened == watch.Error {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if happened == watch.Deleted {
		if m.GetName() == h.name {
			h.name, h.version = "", ""
		}
		return
	}
	c, err := resourceversion.CompareResourceVersion(m.GetResourceVersion(), h.version)
	if h.name == "" || err == nil && c > 0 {
		h.name, h.version = m.GetName(), m.GetResourceVersion()
	}
}

// Found is how often a restored backup was found.
func (h *History) Found() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.restored
}

// Check looks for a restored backup, which Found then counts. The error is the API server's.
func (h *History) Check(ctx context.Context, client metadata.Interface) error {
	h.mu.Lock()
	name, version := h.name, h.version
	h.mu.Unlock()
	if name == "" {
		return nil
	}
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	l, err := client.Resource(nodes).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return fmt.Errorf("reading Node %s: %w", name, err)
	}
	for _, n := range l.Items {
		c, err := resourceversion.CompareResourceVersion(n.ResourceVersion, version)
		if err == nil && c >= 0 {
			continue
		}
		h.mu.Lock()
		if h.name == name && h.version == version { // no other follower was faster
			h.name, h.version = "", ""
			h.restored++
		}
		h.mu.Unlock()
	}
	return nil
}
