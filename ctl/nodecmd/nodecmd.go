// Package nodecmd implements the commands that change or examine the node that they run on, without the agent: the
// subcommands of fairlead-agent, and what "fairleadctl uplink" shares with "fairlead-agent uplink".
package nodecmd

import (
	"context"
	"errors"

	"github.com/go-logr/logr"

	nodeuplink "github.com/fairlead-cni/fairlead/agent/uplink"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// Status is the state of the NIC according to the journal, what is found on the node, and the next step.
func Status(ctx context.Context, journal string, log logr.Logger) (uplink.Status, error) {
	u, err := uplink.Open(journal, log)
	if err != nil {
		return uplink.Status{}, err
	}
	return u.Status(ctx)
}

// Restore detaches the NIC and restores its previous state. The journal that it returns is nil if no NIC was ever
// attached; unwritable is the reason why the restore could not be recorded on disk.
func Restore(ctx context.Context, journal string, log logr.Logger) (j *uplink.Journal, unwritable, err error) {
	u, err := uplink.Open(journal, log)
	if err != nil {
		return nil, nil, err
	}
	err = u.Restore(ctx, uplink.ByHand) // reads the journal again, or looks for an uplink without one
	return u.Journal(), u.Unwritable(), err
}

// Open opens the journal and plans how the NIC is attached with that config. The error is a cli.UsageError if neither
// nic nor the config names the NIC.
func Open(cfg api.AgentConfig, journal, nic string, log logr.Logger) (*uplink.Uplink, uplink.Plan, error) {
	u, p, err := nodeuplink.OpenManual(cfg, journal, nic, log)
	if errors.Is(err, nodeuplink.ErrWhichNIC) {
		err = cli.Usage(err)
	}
	return u, p, err
}
