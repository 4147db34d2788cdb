package policies

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

const nothing = `{"podSelector": {"matchLabels": {"app": "judged"}}, "policyTypes": ["Ingress", "Egress"]}`

func connection(from, to string) vswitchd.Connection {
	return vswitchd.Connection{Protocol: 6, From: netip.MustParseAddrPort(from), To: netip.MustParseAddrPort(to)}
}

// A connection that both of its ends deny stays ended, whichever end is evaluated first, even after a restart of the
// agent.
func TestEndedByBothEnds(t *testing.T) {
	w := newWorld(t, networkPolicy(t, "all", `{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}`))
	w.update()
	c, zone := connection("10.10.0.3:40000", "10.10.0.4:80"), policing.Pod{}.Zone()
	if !w.ends(zone, c) {
		t.Fatal("the connection is not forbidden")
	}
	there := w.Units()
	for range 50 {
		if w.lift(time.Unix(1, 0)); len(w.ended) != 2 || len(w.Units()) != len(there) {
			t.Fatalf("of the two ends' drops %d are there", len(w.ended))
		}
	}
	again := newWorld(t, networkPolicy(t, "all", `{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}`))
	again.update()
	var flows []openflow.Flow
	for _, unit := range there {
		flows = append(flows, unit.Flows...)
	}
	if again.Adopt(flows, time.Unix(1, 0)); len(again.ended) != 2 || len(again.Units()) != len(there) {
		t.Errorf("of the two ends' drops a new agent has %d", len(again.ended))
	}
	w.source.Put("NetworkPolicy", "shop/all", nil)
	if w.update(); len(w.ended) != 0 {
		t.Errorf("the connection is allowed, and is ended: %v", w.ended)
	}
}

// A connection that has closed is forgotten, and no flow drops its packets: its ports may be a new connection's.
func TestEndedByItself(t *testing.T) {
	w := newWorld(t, networkPolicy(t, "all", `{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}`))
	w.update()
	c := connection("10.10.0.3:40000", "10.10.0.4:80")
	c.Closed = true
	if !w.ends(policing.Pod{}.Zone(), c) || len(w.ended) != 0 {
		t.Errorf("it is not forbidden, or its packets are dropped: %v", w.ended)
	}
}

// If two segments use the same addresses, connections in one are not ended because of denials in the other.
func TestEndedInOneSegment(t *testing.T) {
	w := newWorld(t, networkPolicy(t, "nothing", nothing))
	twin := tables.Pod{Port: flowtest.PodY, MAC: flowtest.MAC(t, "0a:00:00:00:00:0e"), Bridged: true, VLAN: 20,
		Addrs: flowtest.Addrs("192.168.110.112")}
	key := policy.PodKey{Namespace: "shop", Name: "y"}
	w.place.Ports = append(w.place.Ports, Port{Pod: key, HostIf: "fly", At: twin})
	w.source.Put("Pod", "shop/y", &policy.Pod{PodKey: key, Addrs: twin.Addrs, Local: true})
	w.update()
	c := connection("192.168.110.1:40000", "192.168.110.112:80")
	if w.ends(policing.Pod{Pod: twin}.Zone(), c) || len(w.ended) != 0 {
		t.Errorf("a connection of a pod without policies is ended: %v", w.ended)
	}
	twin.VLAN = 10
	if !w.ends(policing.Pod{Pod: twin}.Zone(), c) {
		t.Error("the connection of the pod that is isolated is not ended")
	}
}

// No connection of a closed pod, about which nothing is known yet, continues, except those of its node. They pass again
// once they are known to be allowed.
func TestEndedByClosedPods(t *testing.T) {
	for name, before := range map[string]any{"nothing is known": nil,
		"of another UID": &policy.Pod{PodKey: policy.PodKey{Namespace: "shop", Name: "a"}, UID: "before", Local: true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.place.Ports[0].UID = "now"
			w.source.Put("Pod", "shop/a", before)
			w.update()
			zone := policing.Pod{}.Zone()
			if !w.Tightened() || len(w.Zones()) != 1 || w.Zones()[0] != zone {
				t.Errorf("its connections are not looked at: zones %v", w.Zones())
			}
			for from, want := range map[string]bool{"10.10.0.4:40000": true, "192.168.77.1:40000": false} {
				if got := w.ends(zone, connection(from, "10.10.0.3:80")); got != want {
					t.Errorf("a connection from %s ends: %t, want %t", from, got, want)
				}
			}
			w.source.Put("Pod", "shop/a", &policy.Pod{PodKey: w.place.Ports[0].Pod, UID: "now", Local: true})
			if w.update(); len(w.ended) != 0 || len(w.Zones()) != 0 {
				t.Errorf("what is allowed is still ended: %v", w.ended)
			}
		})
	}
}

// Connections without ports are dropped as long as the rules deny them and conntrack has them, even after a restart of
// the agent; answers are not.
func TestEndedWithoutPorts(t *testing.T) {
	for protocol, addrs := range map[uint8][2]string{47: {"10.10.0.3:0", "10.10.0.4:0"},
		58: {"[fd00:10::3]:0", "[fd00:10::4]:0"}} {
		all := networkPolicy(t, "all", `{"podSelector": {}, "policyTypes": ["Ingress"]}`)
		w := newWorld(t, all)
		w.update()
		c, zone := connection(addrs[0], addrs[1]), policing.Pod{}.Zone()
		c.Protocol = protocol
		if !w.ends(zone, c) {
			t.Fatal("the connection is not forbidden")
		}
		again := newWorld(t, all)
		again.update()
		var flows []openflow.Flow
		for _, f := range w.allFlows() {
			ours := f.Match.Protocol == 1+47 || f.Match.ICMPv6 == 1+128
			if flows = append(flows, f); ours && (len(f.Actions) > 0 || f.Match.Dst.Addr() != c.To.Addr()) {
				t.Errorf("%+v", f)
			}
		}
		if again.Adopt(flows, time.Unix(1, 0)); len(again.ended) != 1 || len(again.Units()) != len(w.Units()) {
			t.Errorf("protocol %d: a new agent drops %v", protocol, again.ended)
		}
		for key := range again.ended {
			if key.protocol != protocol {
				t.Errorf("of protocol %d a new agent drops %d", protocol, key.protocol)
			}
		}
		w.source.Put("NetworkPolicy", "shop/all", nil)
		if w.update(); len(w.ended) != 0 {
			t.Errorf("the connection is allowed, and is dropped: %v", w.ended)
		}
	}
}

// Conntrack is rechecked periodically for connections that were not removed. Those that are gone are no longer dropped.
func TestEndedUntilConntrackForgets(t *testing.T) {
	w := newWorld(t, networkPolicy(t, "all", `{"podSelector": {}, "policyTypes": ["Ingress"]}`))
	w.update()
	without := len(w.Units())
	c, zone := connection("10.10.0.3:0", "10.10.0.4:0"), policing.Pod{}.Zone()
	c.Protocol = 1
	w.ends(zone, c)
	late := time.Unix(0, 0).Add(endedFor + time.Second)
	if w.RecheckDue(time.Unix(1, 0)) || !w.RecheckDue(late) {
		t.Errorf("it is looked for again after a second: %t, after %s: %t", w.RecheckDue(time.Unix(1, 0)), endedFor, w.RecheckDue(late))
	}
	if w.lift(late); len(w.ended) != 1 {
		t.Fatal("it is let through before it is known that conntrack has forgotten it")
	}
	w.End(zone, []vswitchd.Connection{c}, late)
	if w.ScanDone(late); len(w.ended) != 1 || w.RecheckDue(late) {
		t.Fatalf("conntrack has it still: dropped are %v", w.ended)
	}
	if w.ScanDone(late.Add(time.Second)); len(w.ended) != 0 || len(w.Units()) != without {
		t.Errorf("conntrack has forgotten it: dropped are %v", w.ended)
	}
}

// Policies identify a bridged pod by its link-local address, too.
func TestLinkLocalAddresses(t *testing.T) {
	const v, x = "fe80::800:ff:fe00:c", "fe80::800:ff:fe00:d"
	o := flowtest.Node(t)
	for name, c := range map[string]struct {
		policy policy.Policy
		passes bool
	}{
		"a peer that is denied": {clusterPolicy(t, "deny", "Admin", `"ingress": [{"action": "Deny", "from": [{"pods": {
			"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "friend"}}}}]}]`), false},
		"a peer that is allowed": {networkPolicy(t, "friends", `{"podSelector": {"matchLabels": {"app": "judged"}},
			"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}]}`), true},
		"all": {networkPolicy(t, "nothing", nothing), false},
	} {
		w := newWorld(t, c.policy)
		w.update()
		s := flowtest.Dial(t, o, openflow.Dial)
		s.SetPolicies(w.Units(), true)
		flowtest.Sync(t, s, w.base())
		packet := "in_port=13,dl_src=0a:00:00:00:00:0d,dl_dst=0a:00:00:00:00:0c,tcp6,ipv6_src=" + x + ",ipv6_dst=" + v +
			",tcp_src=40000,tcp_dst=80"
		if report := o.Trace("br-int", packet); passes(report) != c.passes {
			t.Errorf("%s: passes: %t, want %t\n%s", name, !c.passes, c.passes, report)
		}
		zone := policing.Pod{Pod: w.place.Ports[4].At}.Zone()
		if got := w.ends(zone, connection("["+x+"]:40000", "["+v+"]:80")); got == c.passes {
			t.Errorf("%s: its connection ends: %t", name, got)
		}
	}
}
