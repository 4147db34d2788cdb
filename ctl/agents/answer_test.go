package agents

import (
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// An agent that has no information about a node still has this version, and was queried.
func TestSideOfAPair(t *testing.T) {
	a := Answer{Node: "a", Reach: &api.AgentReach{Asked: 9}, Refused: "the agent already probes 4 nodes on request"}
	if s := a.Side("b"); s.NotQueried != "" || s.Idle != a.Refused {
		t.Errorf("%+v", s)
	}
	if s := a.Side(""); s.NotQueried == "" {
		t.Errorf("an agent that probes 9 nodes and names none says enough: %+v", s)
	}
}
