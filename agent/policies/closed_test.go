package policies

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/test/flowtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

func clusterPolicy(t testing.TB, name, tier, rules string) policy.Policy {
	p, err := policy.ParseClusterNetworkPolicy([]byte(`{"metadata": {"name": "` + name + `"}, "spec": {"tier": "` + tier +
		`", "priority": 5, "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "judged"}}}}, ` +
		rules + `}}`))
	if err != nil || len(p.Problems) > 0 {
		t.Fatal(err, p.Problems)
	}
	return p
}

// rulesOf are sets of policies under which each kind of flow is what keeps some packet out.
func rulesOf(t testing.TB) map[string][]policy.Policy {
	const (
		judged  = `{"podSelector": {"matchLabels": {"app": "judged"}}, "policyTypes": `
		friends = `[{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "friend"}}}}]`
		peers   = `[{"podSelector": {"matchLabels": {"app": "friend"}}}]`
		blocks  = `[{"ipBlock": {"cidr": "203.0.0.0/8", "except": ["203.0.113.0/24"]}}, {"ipBlock": {"cidr": "2001:db8::/32"}}]`
		port80  = `"ports": [{"port": 80}]`
	)
	both := func(peer string) string {
		return fmt.Sprintf(`[{%q: %s, %s}, {%q: %s}]`, peer, peers, port80, peer, blocks)
	}
	isolated := networkPolicy(t, "isolated", judged+`["Ingress", "Egress"], "ingress": `+both("from")+`, "egress": `+both("to")+`}`)
	rule := func(action, peer string, port int) string {
		return fmt.Sprintf(`{"action": %q, %q: %s, "protocols": [{"tcp": {"destinationPort": {"number": %d}}}]}`, action, peer,
			friends, port)
	}
	list := func(peer string) string {
		return "[" + rule("Pass", peer, 80) + ", " + rule("Accept", peer, 443) + ", " + rule("Deny", peer, 22) + "]"
	}
	rules := `"ingress": ` + list("from") + `, "egress": ` + list("to")
	return map[string][]policy.Policy{
		"NetworkPolicy": {isolated},
		"nothing":       {networkPolicy(t, "nothing", judged+`["Ingress", "Egress"]}`)},
		"ingress":       {networkPolicy(t, "in", judged+`["Ingress"]}`)},
		"Admin":         {clusterPolicy(t, "admin", "Admin", rules), isolated},
		"Baseline":      {clusterPolicy(t, "baseline", "Baseline", rules)},
		"all ports": {clusterPolicy(t, "admin", "Admin", `"ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
			"egress": [{"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]}]`)},
		"unknown pods": {isolated},
	}
}

// Any flow of policies can be deleted by hand, and no packet passes that the rules forbid.
func TestNoFlowOpensByItsAbsence(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	all := rulesOf(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, all[name]...)
			if name == "unknown pods" {
				for _, p := range testPods() {
					w.source.Put(feed.Pod, "shop/"+p.name, nil)
				}
			}
			w.update()
			s.Resync() // its units have other numbers
			s.SetPolicies(w.Units(), true)
			flowtest.Sync(t, s, w.base())
			w.deleteEach(t, o)
		})
	}
}

// deleteEach deletes each flow of policies, and puts it back. A packet is looked at again if its trace names the flow;
// flows of conjunctions are named by none.
func (w *world) deleteEach(t *testing.T, o *ovstest.OVS) {
	reports := map[string]string{}
	for _, p := range testPackets() {
		report := o.Trace("br-int", p.text)
		if w.forbids(p) == passes(report) {
			t.Fatalf("with all flows: forbidden: %t\n%s", w.forbids(p), report)
		}
		if w.forbids(p) {
			reports[p.text] = report
		}
	}
	flows, traces, file := 0, 0, filepath.Join(t.TempDir(), "flow")
	for _, unit := range w.Units() {
		for _, f := range unit.Flows {
			flows++
			spec, cookie := f.String(), fmt.Sprintf("%#x", f.Cookie())
			var again []string
			for packet, report := range reports {
				clause := strings.Contains(spec, "conjunction(") && strings.Contains(report, fmt.Sprintf("\n%2d. ", f.Table))
				if clause || strings.Contains(report, cookie) {
					again = append(again, packet)
				}
			}
			if len(again) == 0 {
				continue
			}
			again = again[:min(len(again), 6)] // in no order
			o.Ofctl("del-flows", "br-int", "--strict", spec[strings.Index(spec, "table="):strings.Index(spec, " actions=")])
			for _, packet := range again {
				traces++
				if passes(o.Trace("br-int", packet)) {
					t.Errorf("without the flow\n%s\na packet passes that is forbidden:\n%s", spec, packet)
					break
				}
			}
			if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
				t.Fatal(err)
			}
			o.Ofctl("add-flows", "br-int", file)
		}
	}
	t.Logf("%d flows, %d forbidden packets, %d traces", flows, len(reports), traces)
}

// What conntrack says of one association of SCTP does not let another one pass, as long as one flow of two is there.
func TestSCTPStaysJudged(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	w := newWorld(t, rulesOf(t)["nothing"]...)
	w.update()
	s.SetPolicies(w.Units(), true)
	flowtest.Sync(t, s, w.base())
	const packet = "in_port=3,dl_src=0a:00:00:00:00:03,dl_dst=" + router + ",sctp,nw_src=10.10.0.3,nw_dst=203.0.113.9,sctp_dst=9,ct_mark=3"
	trace := func() string { return o.Appctl("ofproto/trace", "br-int", packet, "--ct-next", "trk,est") }
	if passes(trace()) {
		t.Fatalf("it passes:\n%s", trace())
	}
	for _, unit := range w.Units() {
		for _, f := range unit.Flows {
			if f.Match.Protocol != 1+132 {
				continue
			}
			spec := f.String()
			o.Ofctl("del-flows", "br-int", "--strict", spec[strings.Index(spec, "table="):strings.Index(spec, " actions=")])
			if passes(trace()) {
				t.Errorf("without %s it passes:\n%s", spec, trace())
			}
			s.Resync()
			if got := flowtest.Sync(t, s, w.base()); got != (openflow.Changes{Added: 1}) {
				t.Errorf("%s is not put back: %+v", spec, got)
			}
		}
	}
}
