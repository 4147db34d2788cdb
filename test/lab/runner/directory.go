package runner

import (
	"context"
	"fmt"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
)

// Directory is Pods from a store of manifests. Removing a manifest deletes the Pod, and the state of sandboxes is not
// reported.
type Directory struct {
	Manifests manifest.Store
	Log       logr.Logger
}

// List returns the Pods of the store.
func (d Directory) List(context.Context) ([]*corev1.Pod, error) { return d.Manifests.Pods() }

// Changes watches the directory.
func (d Directory) Changes(ctx context.Context) (<-chan struct{}, error) {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching the manifests: %w (is fs.inotify.max_user_instances used up?)", err)
	}
	if err := watch.Add(d.Manifests.Dir()); err != nil {
		watch.Close()
		return nil, fmt.Errorf("watching the manifests: %w", err)
	}
	changes := make(chan struct{}, 1)
	go func() {
		defer watch.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-watch.Events:
				select {
				case changes <- struct{}{}:
				default:
				}
			case err := <-watch.Errors:
				d.Log.Error(err, "watching the manifests")
			}
		}
	}()
	return changes, nil
}

// Report does nothing.
func (d Directory) Report(context.Context, *corev1.Pod, *sandbox.Record) error { return nil }

// Ended is never called: deletion timestamps of manifests are ignored.
func (d Directory) Ended(context.Context, *corev1.Pod) error { return nil }
