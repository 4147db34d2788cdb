package peers

import (
	"context"
	"maps"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/follow"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// silent is Peers whose API server does not answer, with a compiler of what they pass on.
type silent struct {
	*Peers
	t     *testing.T
	ctx   context.Context
	rules *compile.Compiler
	seen  map[feed.Key]any
}

// newSilent returns Peers that have passed on objects whose rules need no Pods of other nodes.
func newSilent(t *testing.T, objects map[feed.Key]any) *silent {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	end() // readers end before their first request
	file := filepath.Join(t.TempDir(), "last.json")
	p := New(feed.New(), &follow.Server{}, corev1client.New(nil), "n", file, logr.Discard())
	t.Cleanup(p.running.Wait)
	s := &silent{p, t, ctx, compile.New(), map[feed.Key]any{}}
	p.in.Replace(nil, objects)
	if s.hand(); len(p.readers) > 0 || !p.opened {
		t.Fatal("what was there before needs Pods")
	}
	return s
}

// hand passes on the changes that need not wait.
func (s *silent) hand() (waits bool) {
	s.receive()
	waits = s.pass(s.ctx)
	changed, _, _ := s.out.Take()
	for key, v := range changed {
		put(s.seen, key, v)
		switch o := v.(type) {
		case policy.Namespace:
			s.rules.SetNamespace(o)
		case *policy.Pod:
			s.rules.SetPod(o)
		case policy.Policy:
			o.Name = key.Name
			s.rules.SetPolicy(o)
		case nil:
			s.rules.DeletePolicy(policy.Ref{Kind: key.Kind, Namespace: "shop", Name: key.Name})
		}
	}
	return waits
}

// change changes objects, and then lets the time pass for which changes wait for Pods.
func (s *silent) change(changed map[feed.Key]any) {
	s.t.Helper()
	s.in.PutAll(changed, time.Now())
	if !s.hand() {
		s.t.Error("the changes do not wait for Pods")
	}
	for _, r := range s.readers {
		r.began = r.began.Add(-podWait)
	}
	s.hand()
}

// far is a Pod of another node that has not been read.
var far = corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "far", Name: "client", Labels: map[string]string{"app": "c"}},
	Status: corev1.PodStatus{PodIP: "10.0.9.9"}}

// open reports whether rules accept a connection between shop/web and far/client. An unknown Pod is closed.
func (s *silent) open(d policy.Direction) bool {
	v, known := s.rules.Judge(compile.Connection{Direction: d, Pod: policy.PodKey{Namespace: "shop", Name: "web"},
		Peer: netip.MustParseAddr(far.Status.PodIP), Protocol: policy.TCP, Port: 80})
	return known && v.Verdict == policy.Accept
}

// read makes the readers report all Pods.
func (s *silent) read() {
	for _, r := range s.readers {
		pod := far
		if err := r.pods.Replace([]any{&pod}, ""); err != nil {
			s.t.Error(err)
		}
	}
	if s.hand() {
		s.t.Error("something waits although all is read")
	}
}

// without is objects without one of them.
func without(objects map[feed.Key]any, key feed.Key) map[feed.Key]any {
	out := maps.Clone(objects)
	delete(out, key)
	return out
}

// A new Pod is closed until the Pods that a rule denies for it are read, however long that takes. Others do not wait.
func TestNewPodWaitsForWhatIsDenied(t *testing.T) {
	all := world(t, "cluster")
	web := feed.Key{Kind: feed.Pod, Name: "shop/web"}
	other := feed.Key{Kind: feed.Pod, Name: "far/other"} // selected by no rule
	s := newSilent(t, without(all, web))
	s.change(map[feed.Key]any{web: all[web], other: &policy.Pod{PodKey: policy.PodKey{Namespace: "far", Name: "other"},
		Local: true}})
	if s.open(policy.Ingress) {
		t.Error("what a rule denies is accepted, as it was not read yet")
	}
	if s.seen[web] != nil || s.seen[other] == nil {
		t.Errorf("handed on are %v, want %s, and not %s", s.seen, other.Name, web.Name)
	}
	s.read()
	if s.open(policy.Ingress) || s.seen[web] == nil {
		t.Errorf("with all that it needs, the Pod is %v, open: %v", s.seen[web], s.open(policy.Ingress))
	}
	accepts := feed.Key{Kind: feed.NetworkPolicy, Name: "all"}
	s.change(map[feed.Key]any{accepts: world(t, "all")[accepts]})
	if s.seen[accepts] == nil || s.open(policy.Ingress) {
		t.Errorf("while one reader of all Pods is to take the place of those that have what is denied, the policy is %v, "+
			"open: %v", s.seen[accepts], s.open(policy.Ingress))
	}
}

// A policy replaces another once the Pods that it denies, or leaves to the next tier, have been read.
func TestPolicyWaitsForWhatIsNotAccepted(t *testing.T) {
	for name, d := range map[string]policy.Direction{"cluster": policy.Ingress, "pass": policy.Egress} {
		all := world(t, "isolated", name)
		isolated := feed.Key{Kind: feed.NetworkPolicy, Name: "isolated"}
		cluster := feed.Key{Kind: feed.ClusterNetworkPolicy, Name: name}
		s := newSilent(t, without(all, cluster))
		changed := map[feed.Key]any{cluster: all[cluster]}
		if name == "cluster" { // it alone denies what both deny
			changed[isolated] = nil
		}
		if s.change(changed); s.open(d) {
			t.Errorf("%s: with it is accepted what was denied before, and is denied when all is read", name)
		}
		if s.read(); s.open(d) || s.seen[cluster] == nil {
			t.Errorf("%s: when all is read it is %v, open: %v", name, s.seen[cluster], s.open(d))
		}
	}
}

// Rules that accept are passed on after podWait without the Pods that they select: they only accept less.
func TestWhatAcceptsDoesNotWaitForEver(t *testing.T) {
	all := world(t, "by label")
	web := feed.Key{Kind: feed.Pod, Name: "shop/web"}
	s := newSilent(t, without(all, web))
	if s.change(map[feed.Key]any{web: all[web]}); s.seen[web] == nil || s.open(policy.Egress) {
		t.Errorf("the Pod is %v, open: %v", s.seen[web], s.open(policy.Egress))
	}
	if s.read(); !s.open(policy.Egress) {
		t.Error("what a rule accepts is denied")
	}
}
