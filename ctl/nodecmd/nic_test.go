package nodecmd

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

func TestCheckPattern(t *testing.T) {
	if err := CheckPattern("eth["); !errors.As(err, new(cli.UsageError)) || !strings.Contains(err.Error(), "want a name, or a pattern such as 'en*'") {
		t.Error(err)
	}
}

// A NIC that this machine does not have is a refusal in the report, not an error: other nodes may have it.
func TestPreflightOfNoInterface(t *testing.T) {
	r, err := Preflight(t.Context(), api.AgentConfig{CNISocket: t.TempDir() + "/no.sock"}, t.TempDir()+"/uplink.json", "none*", logr.Discard())
	if err != nil || r.NIC != "none*" || len(r.Refused) != 1 || !strings.HasPrefix(r.Refused[0], "no interface matches none*") {
		t.Errorf("%v, %+v", err, r)
	}
	_, err = Preflight(t.Context(), api.AgentConfig{CNISocket: t.TempDir() + "/no.sock"}, t.TempDir()+"/uplink.json", "", logr.Discard())
	if !errors.As(err, new(cli.UsageError)) {
		t.Errorf("no NIC is named, and no agent runs: %v", err)
	}
}
