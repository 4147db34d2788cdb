package lab

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// A crash leaves the journal at its step and no agent, and the next agent continues from there.
func TestRootCrash(t *testing.T) {
	l := upWithAgents(t, Options{Nodes: 1, Mode: underlay.Bridge})
	h, err := l.Host("node1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.AgentCrash(t.Context(), "node1", "fly"); err == nil || !strings.Contains(err.Error(), "is not a step") {
		t.Errorf("a step that does not exist: %v", err)
	}
	for _, step := range []string{"bridge", "undo bridge", "port"} {
		past, err := l.AgentCrash(labtest.Within(t, time.Minute), "node1", step)
		for range 9 { // on a busy machine the signal comes after the step (past), or the step is missed (err)
			if err != nil || past != "" {
				past, err = l.AgentCrash(labtest.Within(t, time.Minute), "node1", step)
			}
		}
		if err != nil || past != "" {
			t.Errorf("crash at %s: at %q, %v", step, past, err)
		}
		journal, err := os.ReadFile(h.Private(uplink.DefaultJournal))
		if err != nil || !strings.Contains(string(journal), `"step": "`+step+`"`) {
			t.Errorf("after a crash at %s: %v, the journal is\n%s", step, err, journal)
		}
		if s, err := l.AgentState(t.Context(), "node1"); err != nil || s.PID != 0 {
			t.Errorf("after a crash at %s the agent is %s, %v", step, s, err)
		}
	}
	if err := l.AgentStart(labtest.Within(t, 5*time.Second), "node1"); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitReady(labtest.Within(t, 20*time.Second), "node1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the addresses are on br-uplink", func() bool { // which may have to be recreated
		out, err := l.NodeExec(labtest.Within(t, 20*time.Second), "node1", "ip", "addr", "show", "dev", l.Transport())
		return err == nil && strings.Contains(out, "192.168.77.11/24")
	})
	for _, to := range l.spec.IPFamily.FarAddrs() {
		nodeExec(t, l, "node1", "ping", "-c1", "-w30", to.Addr().String())
	}
}
