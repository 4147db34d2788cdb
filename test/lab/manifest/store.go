package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/yaml"
)

// Store is a directory of manifests.
type Store struct {
	dir string
	tmp string
}

// Open returns the store in dir. New files are prepared in tmp, which must be on the same file system: watchers of dir
// see each file appear complete.
func Open(dir, tmp string) Store { return Store{dir, tmp} }

// Dir is the directory.
func (s Store) Dir() string { return s.dir }

// Change is the result for one object.
type Change struct {
	Ref  Ref
	What string // "created", "configured", "unchanged", "deleted" or "not found"
}

// String is the line that kubectl prints.
func (c Change) String() string { return c.Ref.String() + " " + c.What }

// Apply stores the objects. As an API server does, it assigns a UID and a creation time to a new object, keeps those of
// an existing one, and refuses to move a Pod to another node. If one object is rejected, none is stored.
func (s Store) Apply(objects []Object) ([]Change, error) {
	changes := make([]Change, len(objects))
	seen := map[Ref]bool{}
	for i, o := range objects {
		if seen[RefOf(o)] {
			return nil, fmt.Errorf("%s is given twice", RefOf(o))
		}
		seen[RefOf(o)] = true
		before, err := s.Get(RefOf(o))
		if err != nil {
			return nil, err
		}
		changes[i] = Change{RefOf(o), "created"}
		if before != nil {
			changes[i].What = "configured"
			if err := samePlace(before, o); err != nil {
				return nil, err
			}
			o.SetUID(before.GetUID())
			o.SetCreationTimestamp(before.GetCreationTimestamp())
			if reflect.DeepEqual(before, o) {
				changes[i].What = "unchanged"
			}
			continue
		}
		if o.GetUID() == "" {
			o.SetUID(uuid.NewUUID())
		}
		if created := o.GetCreationTimestamp(); created.IsZero() {
			o.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
		}
	}
	for i, o := range objects {
		if changes[i].What == "unchanged" {
			continue
		}
		if err := s.write(o); err != nil {
			return changes[:i], err
		}
	}
	return changes, nil
}

func samePlace(before, now Object) error {
	old, isPod := before.(*corev1.Pod)
	if !isPod || old.Spec.NodeName == "" {
		return nil
	}
	if pod := now.(*corev1.Pod); pod.Spec.NodeName != old.Spec.NodeName {
		return fmt.Errorf("%s is on node %s, and a Pod never moves (here: to %q): delete it first",
			RefOf(now), old.Spec.NodeName, pod.Spec.NodeName)
	}
	return nil
}

// Delete removes the objects; only their names count. A missing one is reported as "not found", which is not an error.
func (s Store) Delete(objects []Object) ([]Change, error) {
	changes := make([]Change, 0, len(objects))
	for _, o := range objects {
		c := Change{RefOf(o), "deleted"}
		if err := os.Remove(s.path(c.Ref)); errors.Is(err, os.ErrNotExist) {
			c.What = "not found"
		} else if err != nil {
			return changes, fmt.Errorf("deleting %s: %w", c.Ref, err)
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// Get returns the object, or nil if it is not stored.
func (s Store) Get(r Ref) (Object, error) {
	data, err := os.ReadFile(s.path(r))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", r, err)
	}
	objects, err := Parse(s.path(r), data)
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

// Pods returns all Pods, by name.
func (s Store) Pods() ([]*corev1.Pod, error) { return list[*corev1.Pod](s, "pod_") }

// Nodes returns all Nodes, by name.
func (s Store) Nodes() ([]*corev1.Node, error) { return list[*corev1.Node](s, "node_") }

func list[T Object](s Store, prefix string) ([]T, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("listing the manifests: %w", err)
	}
	var out []T
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) { // deleted since ReadDir
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading a manifest: %w", err)
		}
		objects, err := Parse(path, data)
		if err != nil {
			return nil, err
		}
		o, ok := objects[0].(T)
		if !ok {
			return nil, fmt.Errorf("%s holds another kind: it was not written by the lab", path)
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b T) int { return strings.Compare(RefOf(a).String(), RefOf(b).String()) })
	return out, nil
}

func (s Store) path(r Ref) string {
	name := strings.ToLower(r.Kind) + "_" + r.Name
	if r.Namespace != "" {
		name = strings.ToLower(r.Kind) + "_" + r.Namespace + "_" + r.Name
	}
	return filepath.Join(s.dir, name+".yaml")
}

func (s Store) write(o Object) error {
	data, err := yaml.Marshal(o)
	if err != nil {
		return fmt.Errorf("writing %s: %w", RefOf(o), err)
	}
	f, err := os.CreateTemp(s.tmp, "manifest-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", RefOf(o), err)
	}
	defer os.Remove(f.Name()) // no effect after the rename
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path(RefOf(o)))
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", RefOf(o), err)
	}
	return nil
}
