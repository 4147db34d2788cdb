package apply

import (
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/policies"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// As long as policies are not known, no pod is added for the time that the config allows.
func TestPoliciesAreWaitedFor(t *testing.T) {
	source, err := inputs.NewDirectory(t.TempDir(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		start string
		wait  time.Duration
		waits bool
	}{{api.PolicyStartWait, time.Hour, true}, {api.PolicyStartWait, 0, false}, {api.PolicyStartClosed, time.Hour, false}} {
		cfg := api.AgentConfig{NetworkPolicies: api.PoliciesEnforce, PolicyStart: c.start, PolicyStartWait: c.wait}
		f := NewFlows(nil, cfg, "node1", source, nil, logr.Discard())
		f.policies.rules = policies.NewRules(feed.New()) // of which nothing is read
		if err := f.Waits(); (err != nil) != c.waits {
			t.Errorf("policyStart: %s, policyStartWait: %s: %v", c.start, c.wait, err)
		}
		if f.policies.unknown() == nil {
			t.Errorf("policyStart: %s: it is not said that policies are not known", c.start)
		}
	}
}
