package agents

import (
	"testing"

	"github.com/fairlead-cni/fairlead/api"
)

// An agent that knows nothing of one node is of this version all the same, and was asked.
func TestSideOfAPair(t *testing.T) {
	a := Answer{Node: "a", Reach: &api.AgentReach{Asked: 9}, Refused: "the agent probes 4 nodes by request already"}
	if s := a.Side("b"); s.Unasked != "" || s.Idle != a.Refused {
		t.Errorf("%+v", s)
	}
	if s := a.Side(""); s.Unasked == "" {
		t.Errorf("an agent that probes 9 nodes and names none says enough: %+v", s)
	}
}
