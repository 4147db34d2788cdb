// Package feed passes the objects that policies depend on, one by one, from their readers to the code that computes
// with them: there may be tens of thousands, and most changes concern one.
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

// Objects are the changes of policies and of what they depend on: Pods, Namespaces and Nodes. Any goroutine may use it;
// one takes the changes.
type Objects struct {
	// Complete: an attached pod about which nothing is known has no labels. Otherwise its labels are unknown.
	Complete bool

	mu      sync.Mutex
	pending map[Key]any
	since   time.Time       // of the first pending one
	unread  map[string]bool // kinds that have not been read completely
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

// New returns Objects none of which have been read.
func New() *Objects {
	return &Objects{pending: map[Key]any{}, changed: make(chan struct{}, 1), unread: map[string]bool{
		NetworkPolicy: true, ClusterNetworkPolicy: true, Pod: true, Namespace: true, Node: true}}
}

// Changed receives after changes that Take has not returned yet.
func (p *Objects) Changed() <-chan struct{} { return p.changed }

// Take returns the objects that have changed since the last call: a policy.Policy, *policy.Pod, policy.Namespace or
// policy.Node, which must not be modified, or nil for one that is gone; and when the first of these changes was handed
// over, zero for none. known is false, and nothing is taken, until all objects have been read.
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

// Put stores the new state of an object, nil if it is gone.
func (p *Objects) Put(kind, name string, v any) {
	p.PutAll(map[Key]any{{kind, name}: v}, time.Now())
}

// PutAll stores the new states of objects, nil for those that are gone, all at once. since is when the first of the
// changes was handed over, zero for now.
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

// MarkRead records that all objects of a kind have been read.
func (p *Objects) MarkRead(kind string) {
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

// Replace replaces the objects before by those in now, all at once.
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
