package ctl

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/internal/cli"
)

// From outside the nodes every agent is queried by a command in its Pod about the NIC that matches the pattern.
func TestKubePreflightOfAll(t *testing.T) {
	c := newFixture(t)
	said := map[string]string{}
	var mu sync.Mutex
	var asked []string
	port := c.kubelets(func(pod string, command []string) (string, string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, strings.Join(command, " "))
		if text, failed := strings.CutPrefix(said[pod], "error: "); failed {
			return "", text, errors.New("exit code 2")
		} else if strings.Contains(said[pod], "it is down") {
			return said[pod], "", errors.New("exit code 4")
		}
		return said[pod], "", nil
	})
	c.agentOn("a", port)
	c.agentOn("b", port)
	says := func(code int, a, b string, args []string, words ...string) {
		t.Helper()
		said["agent-a"], said["agent-b"], asked = a, b, nil
		out, got := c.run(append([]string{"uplink", "preflight", "--all-nodes"}, args...)...)
		for _, w := range words {
			if flat := strings.Join(strings.Fields(out), " "); got != code || !strings.Contains(flat, w) {
				t.Errorf("%v: exit code %d, want %d, and %q in\n%s", args, got, code, w, out)
			}
		}
	}
	well, down := `{"nic":"eth0","mode":"steer","refused":[]}`, `{"nic":"enp1s0","mode":"steer","refused":["it is down: set it up"]}`
	says(0, well, well, nil, "a eth0 steer ok b eth0 steer ok")
	if len(asked) != 2 || asked[0] != "fairleadctl uplink preflight -o json" {
		t.Errorf("asked %q", asked)
	}
	says(exitFailing, well, down, []string{"--nic=e*0"}, "b enp1s0 steer cannot", "the NIC of b cannot be attached: it is down: set it up")
	if len(asked) != 2 || asked[0] != "fairleadctl uplink preflight -o json --nic=e*0" {
		t.Errorf("asked %q", asked)
	}
	says(exitWarning, well, "error: fairleadctl: say which NIC", nil, "a eth0 steer ok b - - not queried", "b could not be queried: say which NIC")
	says(exitWarning, well, `{"nic":"eth0","mode":"bridge","refused":[],"unknown":["whether"]}`, nil, "b eth0 bridge not all known")
	says(cli.ExitError, "error: no", "error: no", nil, "a, b could not be queried: no", "no agent has answered")
	says(cli.ExitUsage, well, well, []string{"--nic=eth["}, "want a name, or a pattern")
	c.node("bare", corev1.ConditionTrue)
	c.node("away", corev1.ConditionUnknown)
	says(exitWarning, well, well, nil, "away - - not queried", "bare could not be queried: it has no Pod of fairlead-agent. If the agent runs there without a Pod: "+
		"sudo fairleadctl uplink preflight, on that node")
	out, _ := c.run("uplink", "preflight", "--all-nodes", "-o", "json")
	var r struct {
		Nodes []struct {
			Node, Result string
			Report       struct{ NIC string }
		}
		Findings []struct{ Kind, Severity string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Nodes) != 4 || r.Nodes[0].Report.NIC != "eth0" ||
		r.Nodes[0].Result != "ok" || len(r.Findings) != 2 || r.Findings[0].Kind != "not-queried" || r.Findings[0].Severity != "warning" {
		t.Errorf("%v: %+v\n%s", err, r, out)
	}
	c.letIn(c.reader())
	says(cli.ExitError, well, well, nil, "are not allowed with these credentials", "no agent has answered")
}
