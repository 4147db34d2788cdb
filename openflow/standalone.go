package openflow

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// OFPP_NORMAL, with which the bridge is a learning switch.
const outputNormal Output = 0xfffffffa

// Flags of a port's configuration (OFPPC_*, OpenFlow 1.5.1, 7.2.1). That a port is down shows at its interface.
var portFlags = []struct {
	bit  uint32
	name string // as ovs-ofctl(8), mod-port, has it
}{{1 << 2, "no-receive"}, {1 << 5, "no-forward"}}

// Standalone returns, in words, how the bridge differs from one with fail_mode standalone and no controller
// (ovs-vswitchd.conf.db(5)): that has one flow, which makes it a learning switch, and no port that is configured not to
// receive or to forward. It changes nothing.
func (s *Switch) Standalone(ctx context.Context) (differences []string, err error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	flows, err := s.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	normal := false
	for _, l := range flows {
		if l.isNormal() {
			normal = true
		} else {
			differences = append(differences, fmt.Sprintf("flow %q added", change{flow: &l.flow}.text()))
		}
	}
	if !normal {
		differences = append(differences, "flow NORMAL deleted")
	}
	ports, err := s.ports(ctx)
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

func (l listed) isNormal() bool {
	f := l.flow
	return f.Table == 0 && f.Priority == 0 && !l.unsupported && !l.limited && f.Match == (Match{}) &&
		len(f.Actions) == 1 && f.Actions[0] == outputNormal
}

// ports returns the configuration of all ports.
func (s *Switch) ports(ctx context.Context) (out []nx.Port, err error) {
	xid := s.conn.Reserve(2)
	err = s.each(ctx, xid, nx.ListPorts(xid), func(m ofconn.Message) error {
		list, err := nx.ReadPorts(m)
		out = append(out, list...)
		return err
	})
	return out, err
}
