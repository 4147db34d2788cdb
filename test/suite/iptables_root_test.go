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

// While the agent reads the iptables rules, for which it may have to wait for the lock, pods are created and deleted.
// Rules that were changed externally meanwhile are repaired then.
func TestRootPodsDoNotWaitForIptables(t *testing.T) {
	dir := t.TempDir()
	real := slowIptables(t, dir)
	held, asked := filepath.Join(dir, "held"), filepath.Join(dir, "asked")
	c := up(t, lab.Options{Nodes: 1})
	node := c.host(t, "node1")
	t.Cleanup(func() { _ = os.Remove(held) }) // otherwise the agent would not exit
	must(t, 0, os.WriteFile(held, nil, 0o600))
	node.exec(t, real+" -w -A FORWARD -s 192.0.2.66/32 -j RETURN") // nothing is read again while no rule has changed
	wait(t, 40*time.Second, func() string {                        // else every agent.resync
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

// slowIptables gives the agents of labs an iptables that waits while dir has a file "held", and then works. It returns
// the path of the real program.
func slowIptables(t *testing.T, dir string) (real string) {
	t.Helper()
	real, err := exec.LookPath("iptables")
	must(t, 0, err)
	script := fmt.Sprintf("#!/bin/sh\nwhile [ -e %[1]s/held ]; do touch %[1]s/asked; sleep 0.1; done\nexec %[2]s \"$@\"\n", dir, real)
	must(t, 0, os.WriteFile(filepath.Join(dir, "iptables"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return real
}
