package policies

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
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

// rulesOf are sets of policies under which every kind of flow is the only one that blocks some packet.
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

// Any flow of policies can be deleted manually without letting a packet pass that the rules deny. A run tries every
// third flow, starting with the first, second or third at random, or all with FAIRLEAD_TEST_LONG=1.
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

// deleteEach deletes each flow of policies, and restores it. A packet is traced again if its trace names the flow; no
// trace names flows of conjunctions.
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
	every := 3
	if os.Getenv("FAIRLEAD_TEST_LONG") != "" {
		every = 1
	}
	first := rand.IntN(every)
	flows, traces, file := 0, 0, filepath.Join(t.TempDir(), "flow")
	for _, f := range w.allFlows() {
		if flows++; flows%every != first {
			continue
		}
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
		again = again[:min(len(again), 6)] // in random order
		o.Ofctl("del-flows", "br-int", "--strict", spec[strings.Index(spec, "table="):strings.Index(spec, " actions=")])
		for _, packet := range again {
			traces++
			if passes(o.Trace("br-int", packet)) {
				t.Errorf("without the flow\n%s\na packet that the rules deny passes:\n%s", spec, packet)
				break
			}
		}
		if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Ofctl("add-flows", "br-int", file)
	}
	t.Logf("every %dth of %d flows from the %dth on, %d denied packets, %d traces", every, flows, first, len(reports), traces)
}

// deletions are the sets of flows that may be deleted from the switch manually, without --strict: a table, a kind, the
// flows of one port.
func deletions(w *world) (out []string) {
	tables, kinds := map[uint8]bool{openflow.TableClassify: true, openflow.TableForward: true}, map[openflow.Kind]bool{}
	for _, f := range w.allFlows() {
		tables[f.Table], kinds[f.Kind] = true, true
	}
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		out = append(out, fmt.Sprintf("table=%d", table))
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		cookie := openflow.Flow{Kind: kind}.Cookie() >> 40 << 40
		out = append(out, fmt.Sprintf("cookie=%#x/%#x", cookie, uint64(0xffffff)<<40))
	}
	for _, p := range w.place.Ports {
		if len(w.pods[p.Pod].diverted) == 0 {
			continue
		}
		for _, table := range []int{openflow.TableService, openflow.TableForward} {
			out = append(out, fmt.Sprintf("table=%d,in_port=%d", table, p.At.Port))
		}
	}
	return out
}

// A whole table, all flows of a kind, or those of a pod's port can be deleted manually without letting a packet pass
// that the rules deny; then all of them are restored.
func TestNoTableOpensByItsAbsence(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	all := rulesOf(t)
	for _, name := range []string{"Admin", "Baseline", "nothing"} {
		w := newWorld(t, all[name]...)
		w.update()
		s.Resync()
		s.SetPolicies(w.Units(), true)
		flowtest.Sync(t, s, w.base())
		var forbidden []testPacket
		for _, p := range testPackets() {
			if w.forbids(p) && (p.port == 22 || p.port == 80 && name != "Admin") {
				forbidden = append(forbidden, p)
			}
		}
		for _, what := range deletions(w) {
			o.Ofctl("del-flows", "br-int", what)
			for i, p := range forbidden {
				sender, _, _ := strings.Cut(p.text, ",")
				if _, port, of := strings.Cut(what, "in_port"); of && sender != "in_port"+port || !of && i%3 != 0 {
					continue
				}
				if report := o.Trace("br-int", p.text); passes(report) {
					t.Errorf("%s: after del-flows %s a packet that the rules deny passes:\n%s", name, what, report)
					break
				}
			}
			s.Resync()
			if got := flowtest.Sync(t, s, w.base()); got.Added == 0 || got.Modified+got.Deleted > 0 {
				t.Errorf("%s: after del-flows %s, what is put back: %+v", name, what, got)
			}
		}
		t.Logf("%s: %d denied packets, %d deletions", name, len(forbidden), len(deletions(w)))
	}
}

// The conntrack state of one SCTP association does not let another one pass, even if one of the two flows is missing.
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
	for _, f := range w.allFlows() {
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

// The datapath flows of pods that no policy selects stay exactly the same when other pods are isolated.
func TestMegaflowsOfOthersStay(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	w := newWorld(t, rulesOf(t)["nothing"]...)
	var others []string
	judged := func(a netip.Addr) bool {
		return slices.ContainsFunc(w.place.Ports, func(p Port) bool {
			return w.object(p.Pod).Labels["app"] == "judged" && slices.Contains(p.At.Addrs, a)
		})
	}
	w.update()
	for _, p := range testPackets() {
		if !judged(p.from) && !judged(p.to) {
			others = append(others, p.text)
		}
	}
	again := regexp.MustCompile(`recirc(\(|_id=)0x[0-9a-f]+|resume conntrack.*`) // recirculation IDs differ
	megaflows := func() (out []string) {
		for _, packet := range others {
			_, found, ok := strings.Cut(o.Trace("br-int", packet), "Megaflow:")
			if !ok {
				t.Fatal("a trace has no megaflow")
			}
			out = append(out, again.ReplaceAllString(found, "recirc"))
		}
		return out
	}
	s.SetPolicies(nil, true)
	flowtest.Sync(t, s, w.base())
	before := megaflows()
	s.SetPolicies(w.Units(), true)
	flowtest.Sync(t, s, w.base())
	for i, after := range megaflows() {
		if after != before[i] {
			t.Errorf("%s: megaflow%s\nwithout policies%s", others[i], after, before[i])
		}
	}
	t.Logf("%d packets", len(others))
}
