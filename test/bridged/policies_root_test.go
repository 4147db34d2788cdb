package bridged

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// seenYAML is a Pod of addPods with its addresses, by which policies know it.
func seenYAML(p place, app string) string {
	ips := ""
	for _, a := range p.ips {
		ips += fmt.Sprintf("{ip: %q}, ", a)
	}
	return podYAML(p.name, p.kind, p.node, "app: "+app) +
		fmt.Sprintf("status: {podIP: %q, podIPs: [%s]}\n", p.ips[0], strings.TrimSuffix(ips, ", "))
}

// Policies are enforced on bridged pods, untagged and in a VLAN, as on routed ones: to and from pods of every kind on
// both nodes, in both families, as docs/policy.md has them. The node reaches them. In mode bridge and in mode steer.
// What is denied to pods of each kind is logged.
func TestRootPolicies(t *testing.T) {
	c := up(t, lab.Options{Config: []byte("networkPolicies: enforce\npolicyLogDenied: all\n")})
	kinds := []string{routed, "0", "10"}
	targets := c.addPods(t, "a", kinds, "node1")
	friends, strangers := c.addPods(t, "b", kinds, "node1", "node2"), c.addPods(t, "c", kinds, "node1", "node2")
	servers := map[string][]*server{}
	for app, pods := range map[string][]place{"a": targets, "b": friends, "c": strangers} {
		for _, p := range pods {
			servers[p.name] = serve(t, p)
			c.apply(t, seenYAML(p, app))
		}
	}
	// The node masquerades between routed and bridged pods of different nodes: no policy knows the peer.
	hidden := func(from, to place) bool {
		return from.node != to.node && (from.kind == routed) != (to.kind == routed)
	}
	check := func(in, out bool) {
		t.Helper()
		var all errgroup.Group
		expect := func(from, to place, want bool) {
			for _, s := range servers[to.name] {
				all.Go(func() error {
					tries := patience
					if !want {
						tries = impatience
					}
					if _, err := call(from, s, tries); (err == nil) != want {
						return fmt.Errorf("from %s to %s: %v, want it to work: %v", from.name, s, err, want)
					}
					return nil
				})
			}
		}
		for _, a := range targets {
			expect(c.host(t, "node1"), a, true)
			for _, b := range friends {
				expect(a, b, true)
				expect(b, a, !in || !hidden(b, a))
			}
			for _, x := range strangers {
				expect(a, x, !out)
				expect(x, a, !in)
			}
		}
		must(t, all.Wait())
	}
	enforce := func(direction, peers string, from, to place) {
		t.Helper()
		c.apply(t, fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: friends}\n"+
			"spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [%s], "+
			"%s: [{%s: [{podSelector: {matchLabels: {app: b}}}]}]}\n", direction, strings.ToLower(direction), peers))
		wait(t, 10*time.Second, func() string { // all in one change
			if _, err := call(from, servers[to.name][0], 1); err == nil {
				return "the policy is not enforced"
			}
			return ""
		})
	}
	check(false, false)
	// One direction at a time: what may not be answered hides what gets in.
	enforce("Egress", "to", targets[0], strangers[0])
	check(false, true)
	enforce("Ingress", "from", strangers[0], targets[0])
	check(true, false)
	for i, a := range targets {
		wait(t, 20*time.Second, func() string {
			for _, s := range servers[a.name] {
				_, _ = call(strangers[i], s, 1)
			}
			path, err := c.AgentLog("node1")
			must(t, err)
			log, err := os.ReadFile(path)
			must(t, err)
			if line := fmt.Sprintf(`pod="default/%s" direction="ingress"`, a.name); !strings.Contains(string(log), line) {
				return "no line with " + line
			}
			return ""
		})
	}
	c.toSteer(t)
	check(true, false)
}
