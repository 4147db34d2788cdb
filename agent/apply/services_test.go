package apply

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/fairlead-cni/fairlead/agent/services"
	"github.com/fairlead-cni/fairlead/openflow"
)

// A ClusterIP that another Service has taken over belongs to that Service, in whichever order the two changes arrive.
func TestClusterIPOfAnotherService(t *testing.T) {
	key := services.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: 6, Port: 80}
	to := func(endpoint string) map[services.Key]services.Backends {
		return map[services.Key]services.Backends{key: {Endpoints: []netip.AddrPort{netip.MustParseAddrPort(endpoint)}}}
	}
	const before, after = "10.0.0.1:8080", "10.0.0.2:40000"
	for name, then := range map[string]func(s *servicePorts, changed map[uint32]openflow.Unit){
		"gone first": func(s *servicePorts, changed map[uint32]openflow.Unit) {
			s.replace("z/old", nil, changed)
			s.replace("a/new", to(after), changed)
		},
		"gone last": func(s *servicePorts, changed map[uint32]openflow.Unit) {
			s.replace("a/new", to(after), changed)
			s.replace("z/old", nil, changed)
		},
		"changed, and gone last": func(s *servicePorts, changed map[uint32]openflow.Unit) {
			s.replace("a/new", to(after), changed)
			s.replace("z/old", to(before), changed)
			s.replace("z/old", nil, changed)
		},
	} {
		s := newServicePorts(nil, "node1", logr.Discard())
		s.replace("z/old", to(before), map[uint32]openflow.Unit{})
		changed := map[uint32]openflow.Unit{}
		then(s, changed)
		want := newServicePorts(nil, "node1", logr.Discard())
		want.replace("a/new", to(after), map[uint32]openflow.Unit{})
		for what, units := range map[string]map[uint32]openflow.Unit{"has": s.units(), "changes": changed} {
			if got, want := fmt.Sprint(made(units)), fmt.Sprint(made(want.units())); got != want {
				t.Errorf("%s: the switch %s\n%s, want\n%s", name, what, got, want)
			}
		}
		changed = map[uint32]openflow.Unit{}
		s.replace("a/new", nil, changed)
		if len(s.units())+s.translated+len(s.claims)+len(s.of)+len(s.high) != 0 || len(changed) != 1 {
			t.Errorf("%s: of Services that are gone there are %v, %v, %v, %v", name, s.units(), s.claims, s.of, s.high)
		}
	}
}

// Ports with and without endpoints are counted, and the counts follow each change.
func TestServicePortsAreCounted(t *testing.T) {
	s := newServicePorts(nil, "node1", logr.Discard())
	ports := func(endpoints ...string) map[services.Key]services.Backends {
		now := map[services.Key]services.Backends{}
		for i, e := range endpoints { // empty: no endpoint
			var b services.Backends
			if e != "" {
				b.Endpoints = []netip.AddrPort{netip.MustParseAddrPort(e)}
			}
			now[services.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: 6, Port: uint16(80 + i)}] = b
		}
		return now
	}
	for i, c := range []struct {
		now                  map[services.Key]services.Backends
		translated, refusing int
	}{{ports("", "", "10.0.0.1:8080"), 1, 2}, {ports("", "10.0.0.1:8080", "10.0.0.1:8080"), 2, 1}, {nil, 0, 0}} {
		s.replace("ns/web", c.now, map[uint32]openflow.Unit{})
		if s.translated != c.translated || s.refusing != c.refusing {
			t.Errorf("change %d: %d ports with endpoints, %d without, want %d and %d", i, s.translated, s.refusing, c.translated, c.refusing)
		}
	}
}

// made are the units as they are sent to the switch.
func made(units map[uint32]openflow.Unit) map[uint32]openflow.Unit {
	out := map[uint32]openflow.Unit{}
	for id, u := range units {
		if out[id] = u; u.Build != nil {
			out[id] = u.Build()
		}
	}
	return out
}

// Session affinity that Open vSwitch shortens is logged once per Service, and again when the Service requests another
// timeout.
func TestCappedAffinityIsReported(t *testing.T) {
	var told []string
	s := newServicePorts(nil, "node1", funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{}))
	for i, c := range []struct {
		affinity time.Duration
		ports    int
		want     int // in total
	}{{3 * time.Hour, 1, 0}, {24 * time.Hour, 2, 1}, {24 * time.Hour, 3, 1}, {20 * time.Hour, 3, 2}, {0, 3, 2},
		{24 * time.Hour, 3, 3}} {
		now := map[services.Key]services.Backends{}
		for p := range c.ports {
			now[services.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: 6, Port: uint16(80 + p)}] =
				services.Backends{Affinity: c.affinity}
		}
		if s.replace("ns/web", now, map[uint32]openflow.Unit{}); len(told) != c.want {
			t.Errorf("step %d: reported %d times, want %d: %q", i, len(told), c.want, told)
		}
	}
	if !strings.Contains(told[0], "ns/web") || !strings.Contains(told[0], "sessionAffinityConfig") {
		t.Errorf("it names Service and remedy: %s", told[0])
	}
}
