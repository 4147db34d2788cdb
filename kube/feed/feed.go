// Package feed hands over the objects that policies depend on, one by one, from who reads them to who computes with
// them: there may be tens of thousands, and most changes concern one.
package feed

import (
	"reflect"
	"sync"
	"time"
)

// Key identifies an object that policies depend on.
type Key struct {
	Kind string // as in the API
	Name string // namespace/name or name
}

// Objects are the changes of what policies depend on: themselves, Pods, Namespaces and Nodes. Any goroutine may
// use it; one takes the changes.
type Objects struct {
	// Complete: a pod that is attached and of which nothing is known has no labels. Otherwise its labels are unknown.
	Complete bool

	mu      sync.Mutex
	pending map[Key]any
	since   time.Time       // of the first one that is pending
	unread  map[string]bool // kinds that were not read whole yet
	changed chan struct{}
}

// Kinds of Key, as in the API.
const (
	NetworkPolicy        = "NetworkPolicy"
	ClusterNetworkPolicy = "ClusterNetworkPolicy"
	Pod                  = "Pod"
	Namespace            = "Namespace"
	Node                 = "Node"
)

// New returns Objects of which none is read.
func New() *Objects {
	return &Objects{pending: map[Key]any{}, changed: make(chan struct{}, 1), unread: map[string]bool{
		NetworkPolicy: true, ClusterNetworkPolicy: true, Pod: true, Namespace: true, Node: true}}
}

// Changed receives after changes that Take has not returned yet.
func (p *Objects) Changed() <-chan struct{} { return p.changed }

// Take returns the objects that have changed since Take was called last: a policy.Policy, *policy.Pod, policy.Namespace
// or policy.Node, which nobody modifies, nil for one that is gone; and when the first of these changes was handed over,
// zero for none. It is not known, and nothing is taken, until all objects have been read.
func (p *Objects) Take() (changed map[Key]any, since time.Time, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unread) > 0 {
		return nil, time.Time{}, false
	}
	changed, since = p.pending, p.since
	p.pending, p.since = map[Key]any{}, time.Time{}
	return changed, since, true
}

// Read reports whether all objects have been read.
func (p *Objects) Read() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unread) == 0
}

// Put stores what an object has become, nil if it is gone.
func (p *Objects) Put(kind, name string, v any) {
	p.PutAll(map[Key]any{{kind, name}: v}, time.Now())
}

// PutAll stores what objects have become, nil for those that are gone, all at once. The first of the changes was handed
// over then, zero for now.
func (p *Objects) PutAll(changed map[Key]any, since time.Time) {
	if len(changed) == 0 {
		return
	}
	if since.IsZero() {
		since = time.Now()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, v := range changed {
		p.put(key, v, since)
	}
	p.signal()
}

func (p *Objects) put(key Key, v any, since time.Time) {
	p.pending[key] = v
	if p.since.IsZero() || since.Before(p.since) {
		p.since = since
	}
}

// Whole notes that all objects of a kind have been read.
func (p *Objects) Whole(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unread, kind)
	p.signal()
}

func (p *Objects) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Replace takes the place of objects that were known before, all at once.
func (p *Objects) Replace(before, now map[Key]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range before {
		if _, stays := now[key]; !stays {
			p.put(key, nil, time.Now())
		}
	}
	for key, v := range now {
		if old, had := before[key]; !had || !reflect.DeepEqual(old, v) {
			p.put(key, v, time.Now())
		}
	}
	clear(p.unread)
	p.signal()
}
