package suite

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// The network has CNI 1.1.0 while the Node reports a container runtime that supports it: a runtime is upgraded, and
// downgraded, under a running agent. At first no runtime is reported.
func TestRootConflistFollowsRuntime(t *testing.T) {
	c := up(t, lab.Options{Nodes: 1, NoAgent: true})
	h := c.host(t, "node1").host
	for _, name := range []string{"portmap", "bandwidth"} { // those of Debian 12 do not support 1.1.0
		must(t, 0, os.Remove(h.Private(conflist.DefaultBinDir+"/"+name)))
	}
	must(t, 0, c.AgentStart(t.Context(), "node1"))
	must(t, 0, c.WaitReady(labtest.Within(t, 20*time.Second), "node1"))
	for _, runtime := range []string{"", "containerd://2.1.4", "containerd://1.7.29"} {
		c.apply(t, nodeYAML("node1", cidrs1, addrs1)+"  nodeInfo: {containerRuntimeVersion: \""+runtime+"\"}\n")
		wait(t, 10*time.Second, func() string {
			text, err := os.ReadFile(h.Private(conflist.DefaultPath))
			if err != nil {
				return err.Error()
			}
			if newest := strings.HasPrefix(runtime, "containerd://2"); strings.Contains(string(text), `"1.1.0"`) != newest ||
				strings.Contains(string(text), "cniVersions") != newest {
				return "with the runtime \"" + runtime + "\" there is\n" + string(text)
			}
			return ""
		})
	}
}
