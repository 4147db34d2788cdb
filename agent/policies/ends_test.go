package policies

import (
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// The classification of a packet by the rules of one end does not apply to the other end: both select peers that are
// friends, and only one end is a friend.
func TestEndsAreJudgedApart(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	const friends = `[{"podSelector": {"matchLabels": {"app": "friend"}}}]`
	w := newWorld(t,
		networkPolicy(t, "out", `{"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": `+friends+`}]}`),
		networkPolicy(t, "in", `{"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": `+friends+`}]}`))
	w.update()
	s.SetPolicies(w.Units(), true)
	flowtest.Sync(t, s, w.base())
	for _, p := range testPackets() {
		if report := o.Trace("br-int", p.text); w.forbids(p) == passes(report) {
			t.Errorf("forbidden: %t\n%s", w.forbids(p), report)
		}
	}
}
