package compile_test

import (
	"fmt"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/policytest"
)

// After changes that are reported to forbid nothing, each connection that was accepted before is still accepted.
func TestForbids(t *testing.T) {
	t.Parallel()
	allowing, denied := 0, 0
	policytest.Cases(t, 1000, func(_ *testing.T, seed uint64) error {
		r := policytest.New(seed, false)
		w := r.World()
		c := compile.New()
		w.Load(r, c)
		c.Changes()
		for range 3 {
			var accepted []compile.Connection
			for range 20 {
				packet := r.Connection(w)
				for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
					about, ok := w.About(packet, d)
					if v, local := c.Judge(about); ok && local && v.Verdict == policy.Accept {
						accepted = append(accepted, about)
					}
				}
			}
			change(r, &w, c)
			changes := c.Changes()
			if !changes.Forbids && len(changes.Put) > 0 {
				allowing++
			}
			for _, about := range accepted {
				v, local := c.Judge(about)
				if !local || v.Verdict == policy.Accept {
					continue
				}
				if denied++; !changes.Forbids {
					return fmt.Errorf("%+v was accepted and is denied, after changes that forbid nothing: %+v", about, changes)
				}
			}
		}
		return nil
	})
	t.Logf("%d changes of flows forbade nothing, %d connections were denied by others", allowing, denied)
	if allowing == 0 || denied == 0 {
		t.Error("the worlds do not have both kinds of changes")
	}
}

// Changes that are common in a large cluster, and whether connections must be scanned after them.
func TestWhatForbids(t *testing.T) {
	s := sizes()[1]
	c := s.load()
	c.Changes()
	more := policyOf(1, 3, append(s.peers(1, 3), networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}))
	more.Name = "more"
	for _, step := range []struct {
		name   string
		do     func()
		forbid bool
	}{
		{"a peer more", func() { c.SetPod(new(podOf(1, 150, false))) }, false},
		{"a peer less", func() { c.DeletePod(podOf(1, 150, false).PodKey) }, true},
		{"a policy more, of a pod that is isolated", func() { c.SetPolicy(more) }, false},
		{"that policy less", func() { c.DeletePolicy(more.Ref) }, true},
		{"a pod that is isolated", func() { c.SetPod(new(podOf(1, 200, true))) }, true},
		{"that pod less, which was a peer", func() { c.DeletePod(podOf(1, 200, true).PodKey) }, true},
		{"nothing", func() {}, false},
	} {
		step.do()
		if got := c.Changes().Forbids; got != step.forbid {
			t.Errorf("%s: forbids: %t", step.name, got)
		}
	}
}
