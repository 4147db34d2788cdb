package peers

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/follow"
	"github.com/fairlead-cni/fairlead/policy"
)

// everywhere stands for all namespaces.
const everywhere = metav1.NamespaceAll

// Pods returns how to read the whole Pods of a namespace, or of all, that the field selector selects.
func Pods(from corev1client.PodsGetter, namespace string, selector fields.Selector) follow.Resource {
	pods := from.Pods(namespace)
	return follow.Resource{Name: Name, Of: &corev1.Pod{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			return pods.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector.String()
			return pods.Watch(ctx, o)
		}}
}

// reader reads the Pods of one namespace, or everywhere. Those of this node are nil in it: another watch, which may be
// ahead, has them.
type reader struct {
	*follow.Follower
	pods *follow.Kind[*policy.Pod]
	stop context.CancelFunc
	// began is when it began: changes wait for it until podWait after that.
	began time.Time
}

// read starts a reader.
func (p *Peers) read(ctx context.Context, namespace string) *reader {
	ctx, stop := context.WithCancel(ctx)
	shared := labelSets{}
	r := &reader{stop: stop, began: time.Now()}
	r.pods = follow.NewKind(func() {}, func(o runtime.Object) (*policy.Pod, error) {
		pod, running := policy.FromPod(o.(*corev1.Pod), p.node)
		if !running || pod.Local {
			return nil, nil
		}
		pod.Namespace = unique.Make(pod.Namespace).Value() // once, not for each of its Pods
		pod.Labels = shared.intern(pod.Labels)
		return &pod, nil
	})
	r.pods.Each = func(key string, _, _ *policy.Pod, _ bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		next := map[feed.Key]any{}
		p.refresh(next, key)
		p.out.PutAll(next, time.Now())
	}
	r.pods.OnRead = func() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	r.Follower = p.server.Follow(Pods(p.pods, namespace, fields.Everything()), r.pods)
	p.running.Go(func() { r.Run(ctx, p.every) })
	return r
}

// labelSets has equal sets of labels only once, by their text: those of a ReplicaSet's Pods are equal.
type labelSets map[string]map[string]string

// maxLabelSets is how many different sets of labels a reader keeps before it drops all, so that those of deleted Pods
// do not stay.
const maxLabelSets = 128

// intern returns labels that are equal to these.
func (s labelSets) intern(of map[string]string) map[string]string {
	text := labels.Set(of).String()
	if there, ok := s[text]; ok && maps.Equal(there, of) {
		return there
	}
	if len(s) >= maxLabelSets {
		clear(s)
	}
	s[text] = of
	return of
}

// ready starts the missing readers, and reports whether all wanted ones have read everything. After the first time it
// waits for none longer than podWait: see divide. p.mu is held.
func (p *Peers) ready(ctx context.Context, wanted map[string]bool) bool {
	all := true
	for namespace := range wanted {
		r := p.readers[namespace]
		if r == nil {
			r = p.read(ctx, namespace)
			p.readers[namespace] = r
		}
		late := p.opened && time.Since(r.began) >= podWait
		all = all && (late || r.pods.Read())
	}
	return all
}

// endReaders ends the readers that are no longer wanted, once all wanted ones have read everything: the Pods of one
// stay until another has them. p.mu is held.
func (p *Peers) endReaders(next map[feed.Key]any, wanted map[string]bool) {
	for namespace := range wanted {
		if !p.readers[namespace].pods.Read() {
			return
		}
	}
	for namespace, r := range p.readers {
		if wanted[namespace] {
			continue
		}
		r.stop()
		p.failed.Add(r.Failures())
		delete(p.readers, namespace)
		had, _, _ := r.pods.All()
		for key := range had {
			p.refresh(next, key)
		}
	}
}

// refresh passes on the present state of a Pod, from its reader. p.mu is held.
func (p *Peers) refresh(next map[feed.Key]any, name string) {
	key := feed.Key{Kind: feed.Pod, Name: name}
	v := p.local[name]
	if v == nil {
		v = p.peer(name)
	}
	if v == nil && !p.opened {
		v = p.old[key]
	}
	p.addChange(next, key, v)
}

// peer is a Pod of another node; nil if there is none. While one reader replaces another, the narrower one takes
// precedence.
func (p *Peers) peer(name string) any {
	own, _, _ := strings.Cut(name, "/")
	for _, namespace := range []string{own, everywhere} {
		if r := p.readers[namespace]; r != nil {
			if v, _ := r.pods.Get(name); v != nil {
				return v
			}
		}
	}
	return nil
}

// State returns which Pods cannot be read, and a reason that is equal for errors that mean the same; or nothing and
// nil.
func (p *Peers) State() (reason string, trouble error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for namespace, r := range p.readers {
		if why, err := r.State(); err != nil {
			if namespace == everywhere {
				return why, err
			}
			return why, fmt.Errorf("pods of the namespace %s: %w", namespace, err)
		}
	}
	return "", nil
}

// Failures are the requests and watches that have failed.
func (p *Peers) Failures() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.failed.Load()
	for _, r := range p.readers {
		n += r.Failures()
	}
	return n
}
