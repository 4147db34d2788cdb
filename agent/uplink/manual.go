package uplink

import (
	"errors"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
)

// ErrWhichNIC says that nothing names the NIC: a pattern does not, as the agent picks among several matches by the
// Node's address.
var ErrWhichNIC = errors.New("say which NIC: --nic, or transportInterface in the config file, by its name " +
	"(the agent finds it by a pattern or by the Node's address, which this command does not know)")

// OpenManual reads the journal, and plans a manual attach as the agent with that config would do it, of the named NIC,
// else the config's, else the one that the journal has in progress. The error is ErrWhichNIC if there is none.
func OpenManual(cfg api.AgentConfig, journal, nic string, log logr.Logger) (*datapath.Uplink, datapath.Plan, error) {
	u, err := datapath.Open(journal, log)
	if err != nil {
		return nil, datapath.Plan{}, err
	}
	switch {
	case nic != "":
	case cfg.TransportInterface != "" && !link.IsPattern(cfg.TransportInterface):
		nic = cfg.TransportInterface
	case u.Unfinished() || u.Attached():
		nic = u.Journal().NIC.Name
	default:
		return nil, datapath.Plan{}, ErrWhichNIC
	}
	return u, datapath.Plan{Mode: cfg.Uplink.Mode, Tunnels: desired.Tunnels(cfg), NIC: nic, Datapath: cfg.OVSDatapathType,
		OVSRunDir: cfg.OVSRunDir, Check: u.GatewaysIfAny, RollbackAfter: cfg.Uplink.RollbackAfter,
		RetryAfter: api.DefaultIntervals().Agent.Uplink, AllowManaged: cfg.Uplink.AllowManaged}, nil
}
