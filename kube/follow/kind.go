package follow

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// Kind holds the objects of one kind as the API server reports them, reduced to what Fairlead needs: it is the store of
// a client-go Reflector. An object that cannot be used keeps its last good value.
type Kind[V any] struct {
	// Convert returns the value. Its error is a message that names the object.
	Convert func(runtime.Object) (V, error)
	// Changed is called after each change of a value or of the problems. An update that changes nothing for Fairlead,
	// such as kubelet's heartbeat, is no change.
	Changed func()
	// Each, unless nil, is called before Changed for each value that has changed, with the one before, or is gone.
	Each func(key string, before, now V, exists bool)
	// Part, unless nil, is called after that for each rejected object, with what Convert returned for it. Each is called
	// again when it is valid, or gone.
	Part func(key string, v V)
	// OnRead, unless nil, is called after these when all objects have been read, each time.
	OnRead func()

	mu   sync.Mutex
	good map[string]V      // by namespace/name or name
	bad  map[string]string // why the last version of an object is not used
	read bool              // the API server has reported all objects
	// handed: Each was called for all of them.
	handed bool
}

// NewKind returns a Kind without objects.
func NewKind[V any](changed func(), convert func(runtime.Object) (V, error)) *Kind[V] {
	return &Kind[V]{Changed: changed, Convert: convert, good: map[string]V{}, bad: map[string]string{}}
}

// Each calls changed for every value that differs, with a zero value for none. Additions come before removals: when one
// policy replaces another, one of them is always in effect.
func Each[V any](before, now map[string]V, changed func(key string, before, now V, exists bool)) {
	for key, v := range now {
		if old, had := before[key]; !had || !reflect.DeepEqual(old, v) {
			changed(key, old, v, true)
		}
	}
	var none V
	for key, v := range before {
		if _, kept := now[key]; !kept {
			changed(key, v, none, false)
		}
	}
}

// converted is an object on its way into the store. The reflector collects all objects of a kind before it passes them
// on: in this form, not as decoded.
type converted[V any] struct {
	key   string
	value V
	err   error
}

// Transformer implements cache.TransformingStore.
func (k *Kind[V]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return k.converted(obj) }
}

func (k *Kind[V]) converted(obj any) (converted[V], error) {
	if c, already := obj.(converted[V]); already {
		return c, nil
	}
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return converted[V]{}, err
	}
	o, ok := obj.(runtime.Object)
	if !ok {
		return converted[V]{}, fmt.Errorf("%T is not an API object", obj)
	}
	v, err := k.Convert(o)
	return converted[V]{key, v, err}, nil
}

// Add implements cache.ReflectorStore.
func (k *Kind[V]) Add(obj any) error { return k.Update(obj) }

// Update implements cache.ReflectorStore.
func (k *Kind[V]) Update(obj any) error {
	c, err := k.converted(obj)
	if err != nil {
		return err
	}
	k.mu.Lock()
	before, had := k.good[c.key]
	wasBad := k.bad[c.key]
	if c.err != nil {
		k.bad[c.key] = c.err.Error()
	} else {
		delete(k.bad, c.key)
		k.good[c.key] = k.reuse(c)
	}
	now, has := k.good[c.key]
	differs := had != has || wasBad != k.bad[c.key] || !reflect.DeepEqual(before, now)
	k.mu.Unlock()
	if c.err != nil && k.Part != nil { // even if it is rejected as before: the rest may differ
		k.Part(c.key, c.value)
	} else if differs && has && k.Each != nil {
		k.Each(c.key, before, now, true)
	}
	if differs {
		k.Changed()
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (k *Kind[V]) Delete(obj any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	k.mu.Lock()
	before := k.good[key]
	delete(k.good, key)
	delete(k.bad, key)
	k.mu.Unlock()
	if k.Each != nil {
		var none V
		k.Each(key, before, none, false)
	}
	k.Changed()
	return nil
}

// reuse returns the value that is already stored if c has the same: Each has passed it on, and none is stored twice.
func (k *Kind[V]) reuse(c converted[V]) V {
	if before, had := k.good[c.key]; had && reflect.DeepEqual(before, c.value) {
		return before
	}
	return c.value
}

// Replace implements cache.ReflectorStore: the list is complete.
func (k *Kind[V]) Replace(list []any, _ string) error {
	good, bad, parts := make(map[string]V, len(list)), map[string]string{}, map[string]V{}
	k.mu.Lock()
	for _, obj := range list {
		c, err := k.converted(obj)
		if err != nil {
			k.mu.Unlock()
			return err
		}
		if c.err == nil {
			good[c.key] = k.reuse(c)
			continue
		}
		bad[c.key], parts[c.key] = c.err.Error(), c.value
		if before, had := k.good[c.key]; had {
			good[c.key] = before
		}
	}
	differs := !k.read || !reflect.DeepEqual(good, k.good) || !maps.Equal(bad, k.bad)
	before, refused := k.good, k.bad
	k.good, k.bad, k.read = good, bad, true
	k.mu.Unlock()
	if differs && k.Each != nil {
		Each(before, good, k.Each)
	}
	k.replaceParts(refused, parts, good)
	if differs {
		k.Changed()
	}
	k.mu.Lock()
	k.handed = true
	k.mu.Unlock()
	if k.OnRead != nil {
		k.OnRead()
	}
	return nil
}

// replaceParts passes on the parts of rejected objects, and the present values of those that were rejected before.
func (k *Kind[V]) replaceParts(refused map[string]string, parts, good map[string]V) {
	if k.Part == nil {
		return
	}
	for key := range refused {
		if _, again := parts[key]; !again && k.Each != nil {
			now, there := good[key]
			k.Each(key, now, now, there)
		}
	}
	for key, v := range parts {
		k.Part(key, v)
	}
}

// Resync implements cache.ReflectorStore.
func (k *Kind[V]) Resync() error { return nil }

// Fill sets the values until the API server has reported its own. It returns false if it already has.
func (k *Kind[V]) Fill(values map[string]V) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.read {
		k.good = maps.Clone(values)
	}
	return !k.read
}

// All returns a copy of the objects, the sorted messages about those that cannot be used, and whether the API server
// has reported them.
func (k *Kind[V]) All() (good map[string]V, bad []string, read bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.good), slices.Sorted(maps.Values(k.bad)), k.read
}

// Refused returns the messages about objects that cannot be used, sorted.
func (k *Kind[V]) Refused() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Values(k.bad))
}

// Get returns the object of that key, and whether there is one.
func (k *Kind[V]) Get(key string) (v V, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok = k.good[key]
	return v, ok
}

// Read reports whether the API server has reported all objects, and Each was called for them.
func (k *Kind[V]) Read() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.handed
}
