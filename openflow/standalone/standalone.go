// Package standalone reports how a bridge differs from a plain learning switch, which br-uplink is in mode bridge.
package standalone

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/openflow"
)

// OFPP_NORMAL, which makes the bridge a learning switch.
const outputNormal openflow.Output = 0xfffffffa

// Flags of a port's configuration (OFPPC_*, OpenFlow 1.5.1, 7.2.1). A port that is down shows on its interface.
var portFlags = []struct {
	bit  uint32
	name string // as ovs-ofctl(8), mod-port, has it
}{{1 << 2, "no-receive"}, {1 << 5, "no-forward"}}

// Differences describes how the bridge differs from one with fail_mode standalone and no controller
// (ovs-vswitchd.conf.db(5)): that has one flow, which makes it a learning switch, and no port configured not to receive
// or to forward. It changes nothing.
func Differences(ctx context.Context, s *openflow.Switch) (differences []string, err error) {
	flows, err := s.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	normal := false
	for _, l := range flows {
		if isNormal(l) {
			normal = true
		} else {
			differences = append(differences, fmt.Sprintf("flow %q added", l.Text))
		}
	}
	if !normal {
		differences = append(differences, "flow NORMAL deleted")
	}
	ports, err := s.Ports(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing ports: %w", err)
	}
	for _, p := range ports {
		var set []string
		for _, f := range portFlags {
			if p.Flags&f.bit != 0 {
				set = append(set, f.name)
			}
		}
		if len(set) > 0 {
			differences = append(differences, fmt.Sprintf("port %s set to %s", p.Name, strings.Join(set, ", ")))
		}
	}
	return differences, nil
}

func isNormal(l openflow.Listed) bool {
	return l.Table == 0 && l.Priority == 0 && l.Plain && l.Match == (openflow.Match{}) && len(l.Actions) == 1 &&
		l.Actions[0] == outputNormal
}
