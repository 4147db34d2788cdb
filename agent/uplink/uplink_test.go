package uplink

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/internal/bootid"
)

// An attach that was refused after a reboot is tried again, as one at the first start is: Open vSwitch or the NIC may
// come up later than the agent. What somebody has restored is left alone.
func TestRefusedAfterAReboot(t *testing.T) {
	boot, err := bootid.Read()
	if err != nil {
		t.Fatal(err)
	}
	for reason, tried := range map[string]bool{datapath.Rebooted: true, datapath.ByHand: false} {
		path, nic := filepath.Join(t.TempDir(), "uplink.json"), hoststate.Link{}
		nic.Name, nic.Index, nic.MTU = "nope0", 7, 1500
		j := &journal.Journal{Version: journal.Version, BootID: boot, Phase: datapath.Detached, Reason: reason, NIC: nic}
		j.Bridge.Name, j.Bridge.Patch, j.Bridge.Peer = datapath.BridgeName, datapath.PatchPort, datapath.PeerPort
		j.DB.RunDir = t.TempDir()
		text, err := journal.Encode(j)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n := Open(path, api.AgentConfig{EnableBridgingMode: true}, api.DefaultIntervals().Agent, nil,
			status.NewMetrics("test"), logr.Discard())
		n.nic = "nope0"
		n.retry(t.Context())
		if got := n.Ready(); (got != nil && strings.Contains(got.Error(), "nope0")) != tried {
			t.Errorf("%s: tried %t, want %t: %v", reason, !tried, tried, got)
		}
	}
}
