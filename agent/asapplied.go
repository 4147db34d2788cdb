package agent

import (
	"cmp"
	"context"
	"maps"

	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// counted is what flows depend on in OVSDB.
type counted struct {
	numbers map[string]uint32 // OpenFlow port numbers by port
	wait    ovsdb.RestoreWait
}

func countedIn(obs ovsdb.Observed) counted {
	c := counted{map[string]uint32{}, obs.RestoreWait}
	for _, p := range []ovsdb.Port{obs.Gateway, obs.Tunnel, obs.Uplink} {
		c.numbers[p.Name] = p.OFPort
	}
	for _, p := range obs.Pods {
		c.numbers[p.HostIf] = cmp.Or(p.OFPort, p.Requested)
	}
	return c
}

// countedFor is countedIn of what d wants: ports of pods that are gone go after their flows.
func countedFor(d Desired, obs ovsdb.Observed) counted {
	c, pods := countedIn(obs), map[string]bool{}
	for _, a := range d.OVSDB.Pods {
		pods[a.HostIf] = true
	}
	for _, p := range obs.Pods {
		if !pods[p.HostIf] {
			delete(c.numbers, p.HostIf)
		}
	}
	return c
}

// asApplied reports whether OVSDB is as the last round left it, and asks for no other flows. Most of its changes are
// what a round has made itself, and ovs-vswitchd's answers to it; a round for each would do all the work of thousands
// of peers for nothing.
func (l *loop) asApplied(ctx context.Context) bool {
	if !l.settled || l.full || l.flows == nil || !l.wait.foreign.IsZero() || l.state.Load().notReady != nil {
		return false
	}
	obs, err := l.db.Observe(l.cfg.OVSBridge)
	if err != nil || obs.DatapathLost || len(obs.Broken)+len(obs.Foreign) > 0 {
		return false
	}
	now := countedIn(obs)
	if now.wait != l.counted.wait || !maps.Equal(now.numbers, l.counted.numbers) {
		return false
	}
	differs, err := l.db.Differs(ctx, l.applied.OVSDB)
	return err == nil && !differs
}
