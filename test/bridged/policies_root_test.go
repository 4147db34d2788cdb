package bridged

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
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
// both nodes, in both families, as docs/policy.md describes. The node reaches them. In mode bridge and in mode steer.
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
		enforced := time.Now().Add(labtest.Limit(20 * time.Second)) // a policy was just applied
		var all errgroup.Group
		expect := func(from, to place, want bool) {
			for _, s := range servers[to.name] {
				all.Go(func() error {
					if want {
						if _, err := call(from, s, patience); err != nil {
							return fmt.Errorf("from %s to %s: %w", from.name, s, err)
						}
						return nil
					}
					for time.Now().Before(enforced) {
						if _, err := call(from, s, impatience); err != nil {
							return nil
						}
					}
					return fmt.Errorf("from %s to %s: there are answers, and there should be none", from.name, s)
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
	// denied sends until the log says that packets are denied to that pod.
	denied := func(pod place, direction string, from, to place) {
		t.Helper()
		wait(t, 20*time.Second, func() string {
			for _, s := range servers[to.name] {
				_, _ = call(from, s, 1)
			}
			path, err := c.AgentLog("node1")
			must(t, err)
			log, err := os.ReadFile(path)
			must(t, err)
			line := fmt.Sprintf(`pod="default/%s" direction="%s"`, pod.name, strings.ToLower(direction))
			if !strings.Contains(string(log), line) {
				return "no line with " + line
			}
			return ""
		})
	}
	enforce := func(direction, peers string) {
		t.Helper()
		c.apply(t, fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: friends}\n"+
			"spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [%s], "+
			"%s: [{%s: [{podSelector: {matchLabels: {app: b}}}]}]}\n", direction, strings.ToLower(direction), peers))
	}
	check(false, false)
	// One direction at a time: if replies are denied, it does not show what gets in. What is open when a pod becomes
	// isolated may wait for its client.
	enforce("Egress", "to")
	denied(targets[0], "Egress", targets[0], strangers[0])
	check(false, true)
	enforce("Ingress", "from")
	for i, a := range targets {
		denied(a, "Ingress", strangers[i], a)
	}
	check(true, false)
	c.toSteer(t)
	check(true, false)
}
