// Package follow keeps stores in sync with the API server's objects, one kind each: client-go's Reflector does the
// work. This package adds what failed and why, and detects a server that has another history than the store, as after a
// restored backup. It keeps nothing on the node.
package follow

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/follow/history"
)

// Resource describes how one kind of objects is read.
type Resource struct {
	Name  string // as in messages: "nodes"
	List  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Of is an object of the kind, of the type that List and Watch return.
	Of runtime.Object
	// Optional: a server without the resource is not an error.
	Optional bool
	// Newest: an outdated state, as one of several servers that has fallen behind may send, is not accepted. Otherwise an
	// enforced object that denies something could be lost at the next start.
	Newest bool
	// Absent, unless nil, is called when the server says that it has no such resource. If it returns nil, there are no
	// objects; otherwise the known ones stay, and its error is the trouble.
	Absent func(context.Context) error
}

// Server is the API server that Followers read. One that reads "nodes" notes its history for the others.
type Server struct {
	Metadata metadata.Interface
	// Heard is called with each response or event of the server.
	Heard func()
	// Reported is called when the trouble of a Follower begins, ends or changes, and Replaced, before that, when the
	// server has another history than a store.
	Reported, Replaced func()

	history history.History
}

// Follower keeps a store in sync with the API server's objects of one kind.
type Follower struct {
	Resource
	server *Server
	store  cache.ReflectorStore

	mu      sync.Mutex
	cluster string    // the UID of the cluster that the store is from; empty if unknown
	backup  int       // history.Found at that time
	ends    time.Time // when the server ends the watch, if all is well
	trouble error
	reason  string

	absent   time.Time    // when the server was found to have no such resource; owned by the goroutine in Run
	failures atomic.Int64 // requests and watches that failed
}

// Follow returns a Follower, which reads nothing before Run.
func (s *Server) Follow(r Resource, store cache.ReflectorStore) *Follower {
	return &Follower{Resource: r, server: s, store: store}
}

// Run follows until ctx ends. It waits every interval with jitter, up to twice as long, so that not all agents send
// requests at once.
func (f *Follower) Run(ctx context.Context, every api.InputIntervals) {
	quiet := logr.Discard() // otherwise several layers log each failure
	r := cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: f.listed, WatchFuncWithContext: f.watched},
		f.Of, f.store, cache.ReflectorOptions{Logger: &quiet, Name: f.Name, Backoff: &wait.Backoff{
			Duration: every.RetryFirst, Cap: every.RetryMost, Steps: 10, Factor: 2, Jitter: 1}})
	r.RunWithContext(klog.NewContext(ctx, quiet))
}

// listed lists objects, if the server cannot stream the initial list in a watch. The watch after it determines which
// cluster they are from.
func (f *Follower) listed(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	f.isFrom("", f.server.history.Found(), time.Now())
	if f.Newest && o.ResourceVersion == "0" { // any version that the server has (Kubernetes API concepts, resource versions)
		o.ResourceVersion = ""
	}
	l, err := f.List(ctx, o)
	f.result(ctx, err)
	if err == nil && f.Name == "nodes" {
		err = meta.EachListItem(l, func(o runtime.Object) error { f.server.history.Record(o, watch.Added); return nil })
	}
	return l, err
}

func (f *Follower) isFrom(cluster string, backup int, ends time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cluster, f.backup, f.ends = cluster, backup, ends
}

// watched starts a watch, or resumes one (without SendInitialEvents). Resuming is correct only if the server still has
// the history that the store is from. After etcd was emptied or restored it has another: it would send nothing for a
// resource version that it has not reached.
func (f *Follower) watched(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	same, cluster, err := f.sameHistory(ctx, o.ResourceVersion)
	backup := f.server.history.Found()
	if err != nil {
		f.result(ctx, err)
		return nil, err
	}
	if !same {
		f.server.Replaced()
	}
	fresh := o.SendInitialEvents != nil && *o.SendInitialEvents
	switch {
	case !same && !fresh:
		return nil, apierrors.NewResourceExpired("the API server was replaced or restored, reading everything again")
	case !same:
		o.ResourceVersion = ""
	}
	w, err := f.Watch(ctx, o)
	f.result(ctx, err)
	if err != nil {
		return nil, err
	}
	ends := time.Now()
	if o.TimeoutSeconds != nil {
		ends = ends.Add(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	f.isFrom(cluster, backup, ends)
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Error {
			f.record(ctx, ofWatch(e.Object))
		} else {
			f.server.Heard()
			if f.Name == "nodes" {
				f.server.history.Record(e.Object, e.Type)
			}
		}
		return e, true
	}), nil
}

// sameHistory reports whether the server is of the cluster that the store is from, and has reached version, and, after
// a watch broke, was not restored from a backup. The cluster is identified by the UID of its namespace
// kube-system, which every API server creates. A server that has never allowed reading it is trusted; one that has just
// started may refuse it for a moment.
func (f *Follower) sameHistory(ctx context.Context, version string) (same bool, cluster string, err error) {
	l, err := f.server.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", metav1.NamespaceSystem).String()})
	f.mu.Lock()
	known := f.cluster != ""
	f.mu.Unlock()
	if apierrors.IsForbidden(err) && !known {
		return true, "", nil
	}
	if err != nil {
		return false, "", fmt.Errorf("identifying the cluster: %w", err)
	}
	for _, n := range l.Items {
		cluster = string(n.UID)
	}
	if version == "" || version == "0" {
		return true, cluster, nil
	}
	if f.broke() {
		if err := f.server.history.Check(ctx, f.server.Metadata); err != nil {
			return false, "", err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := resourceversion.CompareResourceVersion(version, l.ResourceVersion)
	return err == nil && c <= 0 && f.backup == f.server.history.Found() &&
		(cluster == f.cluster || f.cluster == ""), cluster, nil
}

// broke reports whether the last watch, or a request after it, did not end normally.
func (f *Follower) broke() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reason != "" || time.Now().Before(f.ends)
}

// errWatchBroke is a watch whose connection broke.
var errWatchBroke = errors.New("the connection broke")

// ofWatch is the error that a watch ends with. client-go reports a broken connection as an error of the server; the
// retry that follows has a better error.
func ofWatch(o runtime.Object) error {
	err := apierrors.FromObject(o)
	if _, ours := apierrors.StatusCause(err, "ClientWatchDecoding"); ours {
		return errWatchBroke
	}
	return err
}

// result records the outcome of a request.
func (f *Follower) result(ctx context.Context, err error) {
	if f.Optional && apierrors.IsNotFound(err) {
		err = f.missing(ctx)
	} else {
		f.absent = time.Time{}
	}
	f.record(ctx, err)
}

// record records the outcome of a request or a watch.
func (f *Follower) record(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // stopping, or an old version was requested: a normal response
	}
	if err == nil {
		f.server.Heard()
	} else {
		f.failures.Add(1)
	}
	reason := reasonOf(err)
	f.mu.Lock()
	changed := f.reason != reason
	if changed {
		f.reason, f.trouble = reason, err
	}
	f.mu.Unlock()
	if changed {
		f.server.Reported()
	}
}

// missing empties the store if it is certain that there are no such objects, else it returns why not.
func (f *Follower) missing(ctx context.Context) error {
	if f.Absent == nil || time.Since(f.absent) < absentFor { // an older API server, or just checked
		return nil
	}
	known := !f.absent.IsZero()
	f.absent = time.Time{}
	if err := f.Absent(ctx); err != nil {
		return mayExist{err}
	}
	if f.absent = time.Now(); known {
		return nil
	}
	return f.store.Replace(nil, "")
}

// absentFor is how long the answer that there is no such resource counts: it may be defined later in another version,
// and then every further answer is "not found" as well.
const absentFor = time.Minute

// mayExist is why a resource that the server does not find may exist.
type mayExist struct{ error }

func (e mayExist) Unwrap() error { return e.error }

// reasonOf is equal for errors that mean the same, such as those that differ only in a port number. Empty is no error.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	if errors.Is(err, ErrOtherVersion) {
		return "another version"
	}
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	if errors.As(err, &mayExist{}) {
		return "may exist"
	}
	return "no answer"
}

// State returns what cannot be read, and a reason that is equal for errors that mean the same; or nothing and nil.
func (f *Follower) State() (reason string, trouble error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reason, f.trouble
}

// Failures are the requests and watches that have failed.
func (f *Follower) Failures() int64 { return f.failures.Load() }

// ShortError is the error text without the URL of the request.
func ShortError(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}
