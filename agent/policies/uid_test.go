package policies

import (
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// A pod that replaces one of the same name is closed until its labels are known from the API. A static pod, whose
// object has another UID, is not closed, nor is a pod because of a port left by another pod of its name.
func TestPodOfTheSameName(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	w := newWorld(t, networkPolicy(t, "nothing", nothing))
	key := policy.PodKey{Namespace: "shop", Name: "b"} // which no policy selects by its labels
	at := 1
	if w.place.Ports[at].Pod != key {
		t.Fatal(w.place.Ports)
	}
	put := func(uid, hash string) {
		w.source.Put("Pod", key.String(), &policy.Pod{PodKey: key, UID: uid, ConfigHash: hash, Local: true,
			Labels: map[string]string{"app": "friend"}})
	}
	const packet = "in_port=4,dl_src=0a:00:00:00:00:04,dl_dst=" + router + ",tcp,nw_src=10.10.0.4,nw_dst=203.0.113.9,nw_ttl=64"
	const answer = "in_port=2,dl_src=" + macGW + ",dl_dst=0a:00:00:00:00:04,tcp,nw_src=203.0.113.9,nw_dst=10.10.0.4,nw_ttl=64"
	check := func(what string, open bool) {
		t.Helper()
		w.update()
		s.SetPolicies(w.Units(), true)
		s.Resync()
		flowtest.Sync(t, s, w.base())
		for _, p := range []string{packet, answer} {
			if report := o.Trace("br-int", p); passes(report) != open {
				t.Errorf("%s: open: %t\n%s", what, !open, report)
			}
		}
	}
	put("old", "")
	w.place.Ports[at].UID = "old"
	check("the pod", true)
	w.place.Ports[at].UID = "new"
	check("another of its name, before the API says so", false)
	put("new", "")
	check("it is known", true)
	stale := w.place.Ports[at]
	stale.UID, stale.HostIf, stale.At.Port, stale.At.Addrs = "old", "flold", flowtest.PodY, flowtest.Addrs("10.10.0.9")
	w.place.Ports = append(w.place.Ports, stale)
	check("the one before has a port still", true)
	put("mirror", "new")
	check("a static pod", true)
}
