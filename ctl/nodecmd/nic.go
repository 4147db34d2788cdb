package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"

	"github.com/go-logr/logr"

	nodeuplink "github.com/fairlead-cni/fairlead/agent/uplink"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// Preflight checks whether the NIC can be attached, and changes nothing. nic is its name or a pattern of path.Match; ""
// is the NIC of the config, else the one that is attached, else the one that the agent, which must be running then,
// uses for traffic to other nodes. A NIC that is not found is a reason to refuse.
func Preflight(ctx context.Context, cfg api.AgentConfig, journal, nic string, log logr.Logger) (
	preflight.Report, error) {
	if err := CheckPattern(nic); err != nil {
		return preflight.Report{}, err
	}
	u, p, err := Open(cfg, journal, nic, log)
	if errors.Is(err, nodeuplink.ErrWhichNIC) {
		if s, _ := nodestate.Agent(ctx, cfg); s.Transport != "" {
			u, p, err = Open(cfg, journal, s.Transport, log)
		}
	}
	if err != nil {
		return preflight.Report{}, err
	}
	have, err := net.Interfaces()
	if err != nil {
		return preflight.Report{}, fmt.Errorf("listing interfaces: %w", err)
	}
	var names []string
	for _, i := range have {
		names = append(names, i.Name)
	}
	name, err := link.MatchOne(p.NIC, names)
	if err != nil {
		r := preflight.NewReport(p.NIC, cfg.Uplink.Mode)
		r.Refused = []string{err.Error()}
		return r, nil
	}
	p.NIC = name
	return u.Preflight(ctx, p)
}

// CheckPattern returns a cli.UsageError if nic is not a pattern of path.Match. Every interface name is one.
func CheckPattern(nic string) error {
	if _, err := path.Match(nic, ""); err != nil {
		return cli.Usage(fmt.Errorf("--nic %s: want a name, or a pattern such as 'en*' or 'eth[01]'", nic))
	}
	return nil
}
