package suite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// While the agent looks at the iptables rules, for which it may have to wait for others, pods come and go. What
// somebody has changed meanwhile is mended then.
func TestRootPodsDoNotWaitForIptables(t *testing.T) {
	dir := t.TempDir()
	real := slowIptables(t, dir)
	held, asked := filepath.Join(dir, "held"), filepath.Join(dir, "asked")
	c := up(t, lab.Options{Nodes: 1})
	node := c.host(t, "node1")
	t.Cleanup(func() { _ = os.Remove(held) }) // or the agent would not end
	must(t, 0, os.WriteFile(held, nil, 0o600))
	wait(t, 40*time.Second, func() string { // it looks every agent.resync
		if _, err := os.Stat(asked); err != nil {
			return "the agent has not looked at the rules"
		}
		return ""
	})
	c.addPods(t, "a@node1", "b@node1")
	reach(t, c.pod(t, "a"), c.pod(t, "b").ips[0])
	c.remove(t, podYAML("a", "node1"))
	c.addPods(t, "c@node1")
	reach(t, c.pod(t, "c"), c.pod(t, "b").ips[0])

	node.exec(t, real+" -w -t nat -F FAIRLEAD-POSTROUTING")
	must(t, 0, os.Remove(held))
	wait(t, 40*time.Second, func() string {
		if rules := node.exec(t, real+" -w -t nat -S FAIRLEAD-POSTROUTING"); strings.Count(rules, "\n") < 2 {
			return "the rules are not there again:\n" + rules
		}
		return ""
	})
}

// slowIptables has the agents of labs find an iptables that waits as long as dir has a file "held", and then does its
// work. It returns the path of the program that does it.
func slowIptables(t *testing.T, dir string) (real string) {
	t.Helper()
	real, err := exec.LookPath("iptables")
	must(t, 0, err)
	script := fmt.Sprintf("#!/bin/sh\nwhile [ -e %[1]s/held ]; do touch %[1]s/asked; sleep 0.1; done\nexec %[2]s \"$@\"\n", dir, real)
	must(t, 0, os.WriteFile(filepath.Join(dir, "iptables"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return real
}
