package nodecmd

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

func TestChoose(t *testing.T) {
	have := []string{"lo", "enp1s0", "enp2s0", "eth0", "eth0.10", "fairlead-gw0"}
	for _, c := range []struct{ pattern, name, why string }{
		{"eth0", "eth0", ""},
		{"eth[01]", "eth0", ""},
		{"enp1*", "enp1s0", ""},
		{"e*0", "", "the pattern e*0 fits several interfaces, enp1s0, enp2s0, eth0, eth0.10: use one"},
		{"ens*", "", "no interface fits ens*"},
		{"eth1", "", "there is no interface eth1"},
	} {
		name, why := choose(c.pattern, have)
		if name != c.name || !strings.HasPrefix(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %q, %q", c.pattern, name, why)
		}
	}
	if err := CheckPattern("eth["); !errors.As(err, new(cli.UsageError)) || !strings.Contains(err.Error(), "want a name, or a pattern such as 'en*'") {
		t.Error(err)
	}
}

// A NIC that this machine does not have is an answer, as on a node of many.
func TestPreflightOfNoInterface(t *testing.T) {
	r, err := Preflight(t.Context(), api.AgentConfig{CNISocket: t.TempDir() + "/no.sock"}, t.TempDir()+"/uplink.json", "none*", logr.Discard())
	if err != nil || r.NIC != "none*" || len(r.Refused) != 1 || !strings.HasPrefix(r.Refused[0], "no interface fits none*") {
		t.Errorf("%v, %+v", err, r)
	}
	_, err = Preflight(t.Context(), api.AgentConfig{CNISocket: t.TempDir() + "/no.sock"}, t.TempDir()+"/uplink.json", "", logr.Discard())
	if !errors.As(err, new(cli.UsageError)) {
		t.Errorf("no NIC is named, and no agent runs: %v", err)
	}
}
