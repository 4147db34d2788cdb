package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"

	"github.com/go-logr/logr"

	nodeuplink "github.com/fairlead-cni/fairlead/agent/uplink"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/preflight"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// Preflight checks whether the NIC can be attached, and changes nothing. nic is its name or a pattern as path.Match has
// it; "" is the one of the config, else the one that is attached, else the one that the agent, which has to run then,
// takes for traffic to other nodes. A NIC that is not found is a reason to refuse.
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
	name, why := choose(p.NIC, names)
	if why != "" {
		r := preflight.NewReport(p.NIC, cfg.Uplink.Mode)
		r.Refused = []string{why}
		return r, nil
	}
	p.NIC = name
	return u.Preflight(ctx, p)
}

// CheckPattern returns a cli.UsageError if nic is no pattern of path.Match. Every name of an interface is one.
func CheckPattern(nic string) error {
	if _, err := path.Match(nic, ""); err != nil {
		return cli.Usage(fmt.Errorf("--nic %s: want a name, or a pattern such as 'en*' or 'eth[01]'", nic))
	}
	return nil
}

// choose is the one of names that the pattern fits, or why none is chosen.
func choose(pattern string, names []string) (name, why string) {
	var fit []string
	for _, n := range names {
		if ok, _ := path.Match(pattern, n); ok {
			fit = append(fit, n)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], ""
	case len(fit) == 0 && strings.ContainsAny(pattern, `*?[\\`):
		return "", fmt.Sprintf("no interface fits %s: name the node's (ip link lists them), or use another pattern", pattern)
	case len(fit) == 0:
		return "", fmt.Sprintf("there is no interface %s: name the node's (ip link lists them), or use a pattern", pattern)
	}
	return "", fmt.Sprintf("the pattern %s fits several interfaces, %s: use one that fits the NIC only",
		pattern, strings.Join(fit, ", "))
}
