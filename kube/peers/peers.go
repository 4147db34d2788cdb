// Package peers passes on what policies depend on, and reads the Pods that the policies of this node's Pods can refer
// to: those of the namespaces that their rules select, and no others. Changes that need Pods that have not been read
// wait for them; otherwise allowed connections would be cut, and denied ones let through. It writes nothing to the API
// server.
//
// It owns one file on the node: what it passed on last, for an agent that starts while the API server is unreachable.
package peers

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/follow"
	"github.com/fairlead-cni/fairlead/policy"
)

// Name names the Pods that are read here in messages and metrics.
const Name = "peers"

// podWait is how long a change waits for Pods that rules accept. After that it is passed on without them, and these
// rules accept less until they are read. For Pods that rules deny or pass, it waits until they are read.
const podWait = 3 * time.Second

// Peers passes objects on from one feed to another, in Run; the other methods may be called by any goroutine.
type Peers struct {
	in, out *feed.Objects
	server  *follow.Server
	pods    corev1client.PodsGetter
	node    string
	file    lastKnown
	log     logr.Logger
	// wake receives when a reader has read all.
	wake   chan struct{}
	failed atomic.Int64 // requests of readers that have ended

	// Owned by Run.
	every   api.InputIntervals
	known   map[feed.Key]any // taken from in
	waiting batch
	running sync.WaitGroup

	mu sync.Mutex
	published
}

// published is what was passed on, and the readers of Pods.
type published struct {
	given   map[feed.Key]any
	opened  bool               // everything has been read once
	unsaved bool               // the file lacks changes of this node or of policies
	stale   bool               // or of Pods of other nodes
	failing string             // why the file could not be written last
	saved   time.Time          // when all was saved last
	size    int                // of the file, in bytes
	local   map[string]any     // Pods of this node
	old     map[feed.Key]any   // what the file had, until everything is read
	readers map[string]*reader // by namespace
}

// batch are changes that wait for the Pods that they need.
type batch struct {
	changed map[feed.Key]any
	since   time.Time // when the first was handed over
	late    bool      // it is logged that some wait longer than podWait
}

// New returns Peers that pass on the objects of in: policies, Namespaces, Nodes, and the Pods of this node. Pods of
// other nodes come from the server. file is read if that is unreachable at the start.
func New(in *feed.Objects, server *follow.Server, pods corev1client.PodsGetter, node, file string,
	log logr.Logger) *Peers {
	return &Peers{in: in, out: feed.New(), server: server, pods: pods, node: node, file: lastKnown{file, node}, log: log,
		wake: make(chan struct{}, 1), known: map[feed.Key]any{}, waiting: batch{changed: map[feed.Key]any{}},
		published: published{given: map[feed.Key]any{}, local: map[string]any{}, readers: map[string]*reader{}}}
}

// Objects returns the objects that are passed on.
func (p *Peers) Objects() *feed.Objects { return p.out }

// Run passes objects on until ctx ends.
func (p *Peers) Run(ctx context.Context, every api.InputIntervals) {
	defer p.running.Wait()
	p.every = every
	grace := time.NewTimer(every.StartGrace)
	defer grace.Stop()
	tick := time.NewTicker(every.Save)
	defer tick.Stop()
	late := time.NewTimer(podWait)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			p.save(0)
			return
		case <-grace.C:
			p.takeLastKnown()
			continue
		case <-tick.C:
			p.save(every.SavePeers)
			continue
		case <-p.in.Changed():
		case <-p.wake:
		case <-late.C:
		}
		if p.receive() && p.pass(ctx) {
			late.Reset(podWait)
		}
	}
}

// receive adds the changes to the batch. It reports whether everything has been read.
func (p *Peers) receive() bool {
	changed, since, known := p.in.Take()
	if !known {
		return false
	}
	if len(p.waiting.changed) == 0 {
		p.waiting.since = since
	}
	for key, v := range changed {
		p.waiting.changed[key] = v
		if v == nil {
			delete(p.known, key)
		} else {
			p.known[key] = v
		}
	}
	return true
}

// pass passes the batch on if the Pods that it needs have been read. It reports whether it waits for them.
func (p *Peers) pass(ctx context.Context) (waits bool) {
	wanted := neededBy(p.known)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ready(ctx, wanted.read) {
		return true
	}
	now, later := p.divide(wanted)
	if p.opened && p.restricts(now) {
		saved := maps.Clone(p.given)
		for key, v := range now {
			put(saved, key, v)
		}
		p.write(saved)
	}
	next := map[feed.Key]any{}
	for key, v := range now {
		if key.Kind != feed.Pod {
			p.addChange(next, key, v)
			continue
		}
		put(p.local, key.Name, v)
		p.refresh(next, key.Name)
	}
	p.waiting.changed = later
	p.endReaders(next, wanted.read)
	first := !p.opened
	if first {
		p.replaceLoaded(next)
	}
	p.out.PutAll(next, p.waiting.since)
	if first {
		p.open()
	}
	return len(later) > 0
}

// put stores v, nil for one that is gone.
func put[K comparable](in map[K]any, key K, v any) {
	if in[key] = v; v == nil {
		delete(in, key)
	}
}

// replaceLoaded replaces what the file had. p.mu is held.
func (p *Peers) replaceLoaded(next map[feed.Key]any) {
	p.opened = true
	for key := range p.old {
		if key.Kind == feed.Pod {
			p.refresh(next, key.Name)
		} else if _, there := p.known[key]; !there {
			p.addChange(next, key, nil)
		}
	}
	p.old = nil
	p.saveAll()
}

// restricts reports whether there are changes of policies, or of labels that these select by. They are saved before
// they are enforced: an agent that starts from the file opens nothing that was closed. p.mu is held.
func (p *Peers) restricts(changed map[feed.Key]any) bool {
	for key, v := range changed {
		before, had := p.given[key]
		now, isPod := v.(*policy.Pod)
		switch {
		case key.Kind == feed.Node, key.Kind == feed.Pod && (!isPod || !had), reflect.DeepEqual(before, v):
		case isPod && maps.Equal(before.(*policy.Pod).Labels, now.Labels):
		default:
			return true
		}
	}
	return false
}

// open notes that all objects have been passed on.
func (p *Peers) open() {
	for _, kind := range []string{feed.NetworkPolicy, feed.ClusterNetworkPolicy, feed.Pod, feed.Namespace, feed.Node} {
		p.out.MarkRead(kind)
	}
}

// addChange adds the new state of an object, nil if it is gone, to what is passed on next, unless that is known. The
// caller passes all of it on at once, before p.mu is released: when one policy replaces another, one of them is always
// in effect. p.mu is held.
func (p *Peers) addChange(next map[feed.Key]any, key feed.Key, v any) {
	before, had := p.given[key]
	switch {
	case v == nil && !had:
		return
	case had && v != nil && reflect.DeepEqual(before, v):
		p.given[key] = v // the same value as its reader's
		return
	}
	if pod, is := valueOrBefore(v, before).(*policy.Pod); is && !pod.Local {
		p.stale = true
	} else {
		p.unsaved = true
	}
	put(p.given, key, v)
	next[key] = v
}

// valueOrBefore is what an object is, or was before it went.
func valueOrBefore(v, before any) any {
	if v == nil {
		return before
	}
	return v
}

// takeLastKnown passes on what the file has, unless the API server has answered.
func (p *Peers) takeLastKnown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened {
		return
	}
	old, written, err := p.file.read()
	if err != nil {
		p.log.Info("the inputs of policies are not known until the API server answers: no usable copy is saved",
			"path", p.file.path, "reason", err.Error())
		return
	}
	p.log.Info("API server has not answered yet, using the saved policies", "path", p.file.path,
		"written", written.Format(time.DateTime))
	p.old = old
	next := map[feed.Key]any{}
	for key, v := range old {
		if key.Kind == feed.Pod {
			p.refresh(next, key.Name)
		} else {
			p.addChange(next, key, v)
		}
	}
	p.out.PutAll(next, time.Now())
	p.open()
}

// save saves what is passed on, if it has changed; changes of other nodes' Pods only after peersAfter since the last
// save, for each megabyte or part of one in the file.
func (p *Peers) save(peersAfter time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := peersAfter * time.Duration(1+p.size>>20)
	if p.opened && (p.unsaved || p.stale && time.Since(p.saved) >= wait) {
		p.saveAll()
	}
}

// saveAll saves what is passed on. A failure is retried. p.mu is held.
func (p *Peers) saveAll() {
	if p.write(p.given) {
		p.unsaved, p.stale, p.saved = false, false, time.Now()
	}
}

func (p *Peers) write(objects map[feed.Key]any) (ok bool) {
	n, err := p.file.write(objects)
	reason := ""
	if err != nil {
		reason = err.Error()
	} else {
		p.size = n
	}
	if reason != p.failing && err != nil {
		p.log.Error(err, "saving policies for a start without the API server failed, will retry", "path", p.file.path)
	}
	p.failing = reason
	return err == nil
}
