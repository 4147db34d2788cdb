package renewal

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/test/flowtest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// Of two overlapping megaflows, both follow the tables, on each version of Open vSwitch with the renewal that it needs.
// The wider one is found first: its mask was there before.
func TestOverlappingMegaflowsFollow(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	if Needed(version(o)) {
		s.RenewWith(Flows)
	}
	receive := func(to string) {
		o.Appctl("netdev-dummy/receive", "pod-a", "in_port(3),eth(src=0a:00:00:00:00:03,dst=0e:00:00:00:00:01),"+
			"eth_type(0x0800),ipv4(src=10.10.0.3,dst="+to+",proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=2000)")
	}
	flow := func(prefix string, to openflow.Output) openflow.Flow {
		return openflow.Flow{Kind: openflow.KindBase, Priority: 9, Actions: []openflow.Action{to},
			Match: openflow.Match{EtherType: openflow.IPv4, Dst: netip.MustParsePrefix(prefix)}}
	}
	forward := func(prefix string, to openflow.Output) {
		flowtest.Sync(t, s, []openflow.Flow{flow("10.99.0.0/16", flowtest.PodB), flow(prefix, to)})
		o.Appctl("revalidator/wait")
	}
	forward("10.20.2.0/24", flowtest.PodU)
	receive("10.99.0.1")
	receive("10.20.2.2")
	forward("10.20.0.0/16", flowtest.PodV)
	receive("10.20.1.2") // which the other destination's megaflow does not match
	forward("10.20.0.0/16", flowtest.PodW)
	receive("10.20.2.2")
	_, port, _ := strings.Cut(o.Appctl("dpif/show"), fmt.Sprintf("pod-w %d/", flowtest.PodW)) // datapath number
	port, _, _ = strings.Cut(port, ":")
	found := false
	for line := range strings.Lines(o.Appctl("dpctl/dump-flows")) {
		if strings.Contains(line, "dst=10.20.") {
			if found = true; !strings.HasSuffix(strings.TrimSpace(line), "actions:"+port) {
				t.Errorf("not to port %s: %s", port, line)
			}
		}
	}
	if !found {
		t.Error("nothing is cached")
	}
}

// Each change has one generation in the tables, also after a reconnect; without a change the generation stays. Without
// renewal, the flows are removed.
func TestGenerations(t *testing.T) {
	o := flowtest.Node(t)
	s := flowtest.Dial(t, o, openflow.Dial)
	s.RenewWith(Flows)
	base := func(priority uint16) []openflow.Flow {
		return []openflow.Flow{{Kind: openflow.KindBase, Priority: priority}}
	}
	generation := func() (marks []string) {
		found := regexp.MustCompile(`pkt_mark=(\S+) `).FindAllStringSubmatch(flowtest.Flows(o), -1)
		if len(found) != len(entries()) && len(found) != 0 {
			t.Fatalf("%d flows for %d tables:\n%s", len(found), len(entries()), flowtest.Flows(o))
		}
		for _, f := range found {
			marks = append(marks, f[1])
		}
		return slices.Compact(marks)
	}
	seen := []string{""}
	for i := range 2*bits + 1 {
		flowtest.Sync(t, s, base(uint16(1+i)))
		now := generation()
		if len(now) != 1 || now[0] == seen[len(seen)-1] {
			t.Fatalf("after change %d the generation is %q, after the one before %q", i, now, seen[len(seen)-1])
		}
		seen = append(seen, now[0])
	}
	last := seen[len(seen)-1:]
	same := func(what string) {
		t.Helper()
		if s.Resync(); flowtest.Sync(t, s, base(2*bits+1)) != (openflow.Changes{}) || !slices.Equal(generation(), last) {
			t.Errorf("%s: the generation is %q, it was %q", what, generation(), last)
		}
	}
	same("without a change")
	s = flowtest.Dial(t, o, openflow.Dial)
	s.RenewWith(Flows)
	same("connected again")
	if flowtest.Sync(t, s, base(7)); slices.Equal(generation(), last) {
		t.Errorf("connected again, a change has left the generation at %q", last)
	}
	if d, err := s.Compare(t.Context(), nil); err != nil || len(d.Foreign) > 0 {
		t.Errorf("flows of a generation are foreign: %v, %v", d, err)
	}
	s = flowtest.Dial(t, o, openflow.Dial)
	if flowtest.Sync(t, s, base(7)); len(generation()) > 0 {
		t.Errorf("a switch that does not renew has the generation %q", generation())
	}
}

// The first table, and each table to which conntrack sends packets, have flows of a generation, and no others do.
func TestTables(t *testing.T) {
	routed := tables.Pod{Port: flowtest.PodA, MAC: flowtest.MAC(t, "0a:00:00:00:00:03"),
		Addrs: flowtest.Addrs("10.10.0.3,fd00:10::3")}
	bridged := tables.Pod{Port: flowtest.PodV, MAC: flowtest.MAC(t, "0a:00:00:00:00:12"), Bridged: true, VLAN: 10,
		Addrs: flowtest.Addrs("192.168.110.112")}
	view := tables.View{Gateway: tables.Gateway{Port: flowtest.Gateway, MAC: routed.MAC, Addrs: flowtest.Addrs("10.10.0.1,fd00:10::1")},
		TunnelPort: flowtest.Tunnel, Uplink: flowtest.Uplink, Pods: []tables.Pod{routed, bridged}}
	shared := clusterip.Services{CIDRs: flowtest.Prefixes("10.96.0.0/16,fd00:10:96::/112")}
	unit := clusterip.Unit(1, netip.MustParseAddrPort("10.96.0.1:80"), clusterip.TCP,
		[]netip.AddrPort{netip.MustParseAddrPort("10.10.0.4:80")}, time.Hour)
	flows := slices.Concat(tables.Pipeline(view), clusterip.Flows(view, shared), unit.Flows, policing.Shared(nil),
		policing.Pod{Pod: routed, Number: 1}.Flows(true), policing.Pod{Pod: bridged, Number: 2}.Flows(true))
	found := map[uint8]bool{openflow.TableClassify: true}
	for _, f := range flows {
		for _, a := range f.Actions {
			if c, ok := a.(openflow.Conntrack); ok && c.Table != openflow.NoTable {
				found[c.Table] = true
			}
		}
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, entries()) {
		t.Errorf("lookups begin in tables %d, renewed are %d", got, entries())
	}
}

// A version is identified by two numbers of any length; an unreadable one may be an early one.
func TestNeeded(t *testing.T) {
	for version, want := range map[string]bool{"2.17.9": true, "3.1.0": true, "3.4.90": true, "3.5.0": false,
		"3.10.1": false, "4.0.0": false, "3.5": false, "": true, "unknown": true} {
		if Needed(version) != want {
			t.Errorf("Open vSwitch %q: %v", version, !want)
		}
	}
}

// version is the version of a test's ovs-vswitchd.
func version(o *ovstest.OVS) string {
	words := strings.Fields(o.Appctl("version"))
	return words[len(words)-1]
}
