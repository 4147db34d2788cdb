package policies

import (
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// Pods that the switch serves without policies, as with networkPolicies: report, are closed until policies are known,
// and stay closed once the switch has the flows that close them. Pods that an earlier agent has judged are unchanged.
func TestServedWithoutPolicies(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	const packet = "in_port=3,dl_src=0a:00:00:00:00:03,dl_dst=" + router + ",tcp,nw_src=10.10.0.3,nw_dst=203.0.113.9,nw_ttl=64"
	w := newWorld(t)
	s.SetPolicies(nil, true)
	flowtest.Sync(t, s, w.base())
	unknown := func(rules *Rules) {
		t.Helper()
		rules.Update(&w.place, time.Unix(0, 0))
		s.Resync()
		there, err := s.PodFlows(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.SetPolicies(rules.Unknown(there), true)
		flowtest.Sync(t, s, w.base())
	}
	rules := NewRules(feed.New())
	for range 2 {
		if unknown(rules); passes(o.Trace("br-int", packet)) {
			t.Error("a pod is open that was served before policies were enforced")
		}
	}
	if unknown(NewRules(feed.New())); passes(o.Trace("br-int", packet)) {
		t.Error("a pod is open that was closed before the agent's restart")
	}
	w.update()
	s.SetPolicies(w.Units(), true)
	flowtest.Sync(t, s, w.base())
	if unknown(NewRules(feed.New())); !passes(o.Trace("br-int", packet)) {
		t.Error("a pod is closed that was judged before the agent's restart")
	}
}

// The flows that close a pod are removed with it, so that the next pod of that name is judged by the rules.
func TestClosedPodThatGoes(t *testing.T) {
	w := newWorld(t)
	key, all := w.place.Ports[0].Pod, w.place
	unread := NewRules(feed.New())
	unread.Update(&all, time.Unix(0, 0))
	unread.Unknown(nil) // the switch serves no pods
	closed := closed(key)[0].Match
	if !unread.has(closed) {
		t.Fatal("a pod is not closed that nothing is known of")
	}
	without := all
	without.Ports = all.Ports[1:]
	unread.Update(&without, time.Unix(0, 0))
	unread.Unknown(nil)
	if unread.has(closed) {
		t.Error("what closed a pod stays when it has gone")
	}
}
