package apply

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/services"
	"github.com/fairlead-cni/fairlead/openflow"
)

// A ClusterIP that another Service has now is its own, in whichever order the two become known.
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
			if fmt.Sprint(units) != fmt.Sprint(want.units()) {
				t.Errorf("%s: the switch %s\n%v, want\n%v", name, what, units, want.units())
			}
		}
		changed = map[uint32]openflow.Unit{}
		s.replace("a/new", nil, changed)
		if len(s.units())+s.translated+len(s.claims)+len(s.of)+len(s.high) != 0 || len(changed) != 1 {
			t.Errorf("%s: of Services that are gone there are %v, %v, %v, %v", name, s.units(), s.claims, s.of, s.high)
		}
	}
}
